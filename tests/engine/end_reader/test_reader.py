"""Whether a turn is over, read without torch: the engine's own answers, bounded work and memory."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from engine.end_reader.reader import STEP_ROWS, EndReader, Judged
from engine.engine import Engine
from engine.types import CheckpointError, EngineConfig, PromptTooLong, Staged
from tests.stepping import drain

AGENT = Path(__file__).parents[3] / "engine" / "embedded" / "agent"
GREETING = [{"role": "assistant", "content": "Juniper Cafe, good morning. What can I get you?"}]
SAID = (
    "I would like a large latte and a muffin please no make that two it is five five three".split()
)


def judged(reader: EndReader, branch_id: str, words: str, stage_id: int = 1) -> Judged:
    reader.stage(branch_id, stage_id, words)
    told: list[Judged] = []
    while reader.has_work():
        some, failed = reader.step()
        assert not failed
        told += some
    [one] = told
    return one


def words_of(seed: int, n: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.sample(SAID, draw.randint(1, len(SAID)))) for _ in range(n)]


def test_what_it_tells_is_what_the_engine_tells_bit_for_bit() -> None:
    engine = Engine.start(AGENT, EngineConfig(quant="int8"))
    history = engine.text.encode_chat(GREETING)
    branch = engine.branch("a.1", history)
    reader = EndReader(AGENT)
    reader.open("a.1", GREETING)
    for words in words_of(1, 12):
        branch.stage(engine.text.encode_chat(GREETING, open_user=words)[len(history) :])
        events = drain(engine)
        [expected] = [e.p_end_of_turn for e in events if isinstance(e, Staged)]
        found = judged(reader, "a.1", words).p_end_of_turn
        assert found == pytest.approx(expected, abs=1e-5)


def test_a_revised_partial_computes_its_new_words_alone() -> None:
    reader = EndReader(AGENT)
    reader.open("a.1", GREETING)
    first = judged(reader, "a.1", "I would like a large latte")
    longer = judged(reader, "a.1", "I would like a large latte and")
    again = judged(reader, "a.1", "I would like a large latte")
    assert first.n_computed > longer.n_computed == 1
    assert again.n_computed == 1  # the state behind the last word is wanted again
    assert again.p_end_of_turn == first.p_end_of_turn


def test_the_next_turn_continues_what_the_last_one_left_and_nobody_elses() -> None:
    reader = EndReader(AGENT)
    reader.open("a.1", GREETING)
    whole = judged(reader, "a.1", "a latte please").n_computed
    reader.close("a.1")
    said = [*GREETING, {"role": "user", "content": "a latte please"}]
    reader.open("b.1", said)
    stranger = judged(reader, "b.1", "thanks").n_computed
    reader.open("a.2", said)
    own = judged(reader, "a.2", "thanks").n_computed
    assert stranger > whole > own


def test_a_few_new_words_do_not_wait_for_a_conversation_of_hundreds() -> None:
    reader = EndReader(AGENT)
    reader.open("long.1", GREETING * 12)
    reader.open("short.1", GREETING)
    judged(reader, "short.1", "a latte")
    reader.stage("long.1", 1, "and a muffin")
    reader.stage("short.1", 2, "a latte please")
    told, _ = reader.step()
    assert [one.branch_id for one in told] == ["short.1"]
    assert reader.n_rows <= 2 * STEP_ROWS
    steps = 1
    while reader.has_work():
        told, _ = reader.step()
        steps += 1
    assert [one.branch_id for one in told] == ["long.1"] and steps > 2


def test_all_callers_words_share_a_step() -> None:
    reader = EndReader(AGENT)
    names = [f"call{n}.1" for n in range(8)]
    for name in names:
        reader.open(name, GREETING)
        judged(reader, name, "I would like")
    for name in names:
        reader.stage(name, 2, "I would like a latte")
    told, _ = reader.step()
    assert {one.branch_id for one in told} == set(names)


def test_only_the_newest_words_are_read() -> None:
    reader = EndReader(AGENT)
    reader.open("a.1", GREETING)
    reader.stage("a.1", 1, "I would")
    assert judged(reader, "a.1", "I would like a latte", 2).stage_id == 2


def test_where_the_pool_is_full_who_waits_longest_gives_way_and_everybody_is_still_read() -> None:
    reader = EndReader(AGENT, n_blocks=8)
    expected = {}
    for n in range(6):
        reader.open(f"c{n}.1", GREETING)
        words = words_of(n, 1)[0]
        expected[f"c{n}.1"] = words, judged(reader, f"c{n}.1", words).p_end_of_turn
    for name, (words, p_end) in expected.items():
        assert judged(reader, name, words).p_end_of_turn == pytest.approx(p_end, abs=1e-6)
        reader.close(name)
    reader.close("c0.1")  # idempotent
    reader.open("other.1", GREETING)
    assert judged(reader, "other.1", "hello").n_tokens > 0


def test_a_turn_of_minutes_is_read_by_its_end_and_what_is_too_long_fails_alone() -> None:
    reader = EndReader(AGENT)
    reader.open("a.1", GREETING)
    assert judged(reader, "a.1", "and a latte " * 2000).n_tokens < reader.shape.n_positions
    reader.open("b.1", GREETING)
    reader.stage("b.1", 1, "\u4e00" * 4000)  # three tokens a character
    reader.stage("a.1", 2, "thanks")
    told, failed = reader.step()
    assert [(name, type(error)) for name, error in failed] == [("b.1", PromptTooLong)]
    assert [one.branch_id for one in told] == ["a.1"]


@pytest.mark.parametrize("torn", ["config.json", "end_of_turn.safetensors"])
def test_a_folder_that_is_not_whole_is_refused_by_name(tmp_path: Path, torn: str) -> None:
    folder = tmp_path / "agent"
    shutil.copytree(AGENT, folder)
    (folder / torn).write_bytes(b"\x00" * 40)
    with pytest.raises(CheckpointError, match=torn.replace(".", r"\.")):
        EndReader(folder)
