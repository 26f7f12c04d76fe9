"""The operator's prefix across restarts: exactly what was computed, or nothing."""

import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from engine.engine import Engine
from engine.kv_cache import BlockStore
from engine.prefix_tree import PUBLIC
from engine.public_prefix import PrefixFiles, PublicPrefix, identity
from engine.types import Done, Event, SamplingParams, TextDelta
from tests.stepping import drain

MakeEngine = Callable[..., Engine]
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)
TOKENS = [7 + (i * i * 31) % 90 for i in range(100)]  # six whole blocks
MIB = 1 << 20


def files_in(folder: Path, name: str = "engine", n_bytes: int = MIB) -> PrefixFiles:
    return PrefixFiles(folder, n_bytes, lambda: name)


def run(engine: Engine, prefix: PublicPrefix) -> list[Event]:
    """Step until the prefix is where it belongs, its file too."""
    events: list[Event] = []
    deadline = time.monotonic() + 60
    while engine.has_work():
        assert time.monotonic() < deadline
        for event in engine.step():
            prefix.observe(event)
    if prefix.writing is not None:
        prefix.writing.join(60)
    return events


def answer(engine: Engine, tokens: list[int], salt: str) -> tuple[str, Done]:
    branch = engine.branch("caller", tokens[:-2], salt)
    branch.commit(tokens[-2:], GREEDY)
    events = drain(engine)
    branch.close()
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    return text, next(event for event in events if isinstance(event, Done))


@pytest.mark.parametrize("kv_format", ["plain", "int8"])
def test_after_a_restart_every_tenant_finds_the_prefix_computed(
    make_engine: MakeEngine, tmp_path: Path, kv_format: str
) -> None:
    prompt = [*TOKENS, 5, 6]
    cold = make_engine(kv_format=kv_format)
    expected, first = answer(cold, prompt, "key of one")
    assert first.usage.cached_tokens == 0
    run(cold, PublicPrefix(cold, "operator", TOKENS, files_in(tmp_path)))
    restarted = make_engine(kv_format=kv_format)
    prefix = PublicPrefix(restarted, "operator", TOKENS, files_in(tmp_path))
    run(restarted, prefix)
    assert prefix.writing is None  # it was read
    for salt in ("key of one", "key of another"):
        text, done = answer(restarted, prompt, salt)
        assert text == expected
        assert done.usage.cached_tokens >= 96
    restarted.check_integrity()


def test_a_changed_prompt_is_computed_anew_and_kept_beside(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    for tokens in (TOKENS, TOKENS[:50] + [3] * 50):
        engine = make_engine()
        prefix = PublicPrefix(engine, "operator", tokens, files_in(tmp_path))
        run(engine, prefix)
        assert prefix.writing is not None
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def written(engine: Engine, files: PrefixFiles, tokens: list[int] = TOKENS) -> Path:
    """A file of blocks that nothing computed; its path."""
    blocks = engine.pool.store(len(tokens) // 16)
    blocks.codes.copy_(torch.rand(blocks.codes.shape, generator=torch.Generator().manual_seed(1)))
    files.write(tokens, blocks)
    return files.path(tokens)


def flip(content: bytearray) -> None:
    content[-1000] ^= 1


def cut(content: bytearray) -> None:
    del content[len(content) // 2 :]


def empty(content: bytearray) -> None:
    content.clear()


def other_header(content: bytearray) -> None:
    content[0:8] = (1 << 40).to_bytes(8, "little")


@pytest.mark.parametrize("damage", [flip, cut, empty, other_header])
def test_a_damaged_file_is_passed_over_with_one_line(
    make_engine: MakeEngine,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[bytearray], None],
) -> None:
    engine, files = make_engine(), files_in(tmp_path)
    path = written(engine, files)
    assert files.read(TOKENS, engine.pool) is not None
    content = bytearray(path.read_bytes())
    damage(content)
    path.write_bytes(content)
    assert files.read(TOKENS, engine.pool) is None
    assert len(caplog.records) == 1 and "passed over" in caplog.text


def open_to_all(path: Path) -> None:
    path.chmod(0o666)


def a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("make", [open_to_all, a_link])
def test_a_file_that_others_may_have_written_is_passed_over(
    make_engine: MakeEngine,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[Path], None],
) -> None:
    engine, files = make_engine(), files_in(tmp_path)
    make(written(engine, files))
    assert files.read(TOKENS, engine.pool) is None
    assert len(caplog.records) == 1 and "passed over" in caplog.text


def test_a_file_under_the_wrong_name_is_passed_over(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine, files = make_engine(), files_in(tmp_path)
    path = written(engine, files)
    path.rename(files_in(tmp_path, "another").path(TOKENS))
    assert files_in(tmp_path, "another").read(TOKENS, engine.pool) is None
    path = written(engine, files)
    path.rename(files.path(TOKENS[:-16]))
    assert files.read(TOKENS[:-16], engine.pool) is None


def test_blocks_of_another_format_are_passed_over(make_engine: MakeEngine, tmp_path: Path) -> None:
    files = files_in(tmp_path)
    written(make_engine(), files)
    assert files.read(TOKENS, make_engine(kv_format="int8").pool) is None


def test_the_longest_unused_files_make_room_and_what_was_left_behind_goes(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = make_engine()
    n_bytes = written(engine, files_in(tmp_path)).stat().st_size
    files = files_in(tmp_path, n_bytes=2 * n_bytes + 100)
    paths = [written(engine, files, [i, *TOKENS[1:]]) for i in (1, 2)]
    left = tmp_path / ".left-1.part"
    left.touch()
    for age_s, path in enumerate((left, *paths)):
        os.utime(path, (1000.0 + age_s, 1000.0 + age_s))
    assert files.read([1, *TOKENS[1:]], engine.pool) is not None  # used: the younger one now
    written(engine, files, [3, *TOKENS[1:]])
    assert not left.exists() and not paths[1].exists() and paths[0].exists()


def test_a_prefix_larger_than_the_bound_is_shared_but_not_kept(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = make_engine()
    run(engine, PublicPrefix(engine, "operator", TOKENS, files_in(tmp_path, n_bytes=1000)))
    assert not list(tmp_path.iterdir())
    assert len(engine.tree.match(TOKENS, "anybody")) == 6


def test_a_folder_that_takes_nothing_costs_a_line_and_no_more(
    make_engine: MakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    engine = make_engine()
    run(engine, PublicPrefix(engine, "operator", TOKENS, files_in(tmp_path / "file" / "below")))
    assert len(engine.tree.match(TOKENS, "anybody")) == 6
    assert "nothing more is kept" in caplog.text


def test_callers_who_need_the_room_get_it_from_the_prefix(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = make_engine(kv_tokens=128)
    run(engine, PublicPrefix(engine, "operator", TOKENS, files_in(tmp_path)))
    _, done = answer(engine, [9] * 100, "")
    assert done.finish_reason == "length"
    assert len(engine.tree.match(TOKENS, PUBLIC)) < 6


def test_a_file_is_for_one_model_one_format_and_one_way_to_compute(
    write_checkpoint: Callable[..., Path], make_engine: MakeEngine
) -> None:
    model = write_checkpoint()
    config = make_engine(model).config
    names = {
        identity(model, config, "torch"),
        identity(model, replace(config, quant="int8"), "torch"),
        identity(model, replace(config, kv_format="int8"), "torch"),
        identity(model, replace(config, dtype="fp32"), "torch"),
        identity(model, replace(config, adapter_dir=write_checkpoint()), "torch"),
        identity(model, config, "native"),
        identity(write_checkpoint(seed=1), config, "torch"),
    }
    assert len(names) == 7
    assert identity(model, replace(config, max_branches=3), "torch") in names
    template = model / "chat_template.jinja"
    template.write_text("changed")
    assert identity(model, config, "torch") not in names


class AnyPool:
    """As much of a pool as reading asks of it: blocks of half a megabyte."""

    def store(self, n_blocks: int) -> BlockStore:
        return BlockStore(
            torch.zeros(n_blocks, 1 << 19, dtype=torch.uint8),
            torch.zeros(n_blocks, 2, dtype=torch.uint8),
        )


def write_for_ever(folder: str, contents: list[BlockStore], done: Connection) -> None:
    """In a process that is killed: one content after the other under one name."""
    for blocks in cycle(contents):
        files_in(Path(folder), n_bytes=1 << 30).write(TOKENS[:96], blocks)
        done.send_bytes(b".")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_whoever_is_killed_while_writing_leaves_a_whole_file_or_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    numbers, files = random.Random(4), files_in(tmp_path, n_bytes=1 << 30)
    contents = []
    for value in (1, 2, 3):
        blocks = AnyPool().store(6)
        blocks.codes.fill_(value)
        blocks.scales.fill_(value)
        contents.append(blocks)
    forking = get_context("fork")  # with torch imported already
    for _ in range(8):
        here, there = forking.Pipe(duplex=False)
        writer = forking.Process(target=write_for_ever, args=(str(tmp_path), contents, there))
        writer.start()
        assert here.poll(60)  # one is whole, the next under way
        time.sleep(numbers.uniform(0, 0.02))
        writer.kill()
        writer.join()
        here.close()
        there.close()
        found = files.read(TOKENS[:96], AnyPool())  # type: ignore[arg-type]
        assert found is not None
        assert len({int(found.codes.min()), int(found.codes.max()), int(found.scales.max())}) == 1
    assert not caplog.records  # nothing bad was even seen
