"""The GPU path with torch references in place of kernels: same replies as the CPU path."""

import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.drafting.speculation import Speculation
from engine.engine import Engine
from engine.runner import Extension
from engine.sequence import borrowed
from engine.text.tool_calls import notation_of
from engine.types import (
    MAX_AHEAD_TOKENS,
    ConfigError,
    Done,
    EngineConfig,
    SamplingParams,
    Staged,
)

pytest.importorskip("triton", reason="the GPU path needs triton")

from engine.graphs.part import MAX_WANTED  # noqa: E402
from engine.graphs.step import CHUNK_WANTED, graph_sizes  # noqa: E402

N_CASES = int(os.environ.get("VOICELOOP_FUZZ_EXAMPLES", "12"))
SAMPLINGS = (
    {},
    {"temperature": 0.8, "seed": 4},
    {"temperature": 1.3, "top_k": 30, "top_p": 0.9, "seed": -3},
    {"temperature": 0.6, "frequency_penalty": 0.4, "presence_penalty": 0.3},
    {"stop": ("e",)},
)
MakeReference = Callable[..., Engine]


@pytest.fixture(scope="module")
def make_reference(tiny_model: Path) -> MakeReference:
    def make(device: str = "reference", **changes: object) -> Engine:
        settings = {
            "dtype": "fp32",
            "device": device,
            "kv_tokens": 1024,
            "poison": True,
            "max_branches": 6,
            "step_tokens": 64,
            "background_tokens": 32,
            "share_steps": True,
            **changes,
        }
        engine = Engine.load(tiny_model, EngineConfig(**settings))  # type: ignore[arg-type]
        engine.notation = None
        return engine

    return make


def test_room_for_a_context_counts_what_is_computed_ahead(make_reference: MakeReference) -> None:
    assert make_reference(ngram_draft=True).pool.n_ahead == MAX_AHEAD_TOKENS


def drain(engine: Engine) -> dict[str, Done]:
    done = {}
    while engine.has_work():
        done |= {event.branch_id: event for event in engine.step() if isinstance(event, Done)}
    return done


def replies(engine: Engine, asked: list[tuple[list[int], SamplingParams]]) -> list[list[int]]:
    """Tokens of replies side by side, the second half committed some steps later."""
    branches = []
    for i, (prompt, params) in enumerate(asked):
        if i == len(asked) // 2:
            for _ in range(3):
                engine.step()
        branches.append(engine.branch(f"b{i}"))
        branches[-1].commit(prompt, params)
    drain(engine)
    found = [b.sequence.tokens[len(p) :] for b, (p, _) in zip(branches, asked, strict=True)]
    for branch in branches:
        branch.close()
    return found


@pytest.mark.parametrize("drafting", [{}, {"ngram_draft": True}], ids=["plain", "drafted"])
def test_any_batch_of_replies_is_that_of_the_cpu_path(
    make_reference: MakeReference, drafting: dict[str, object]
) -> None:
    chance = random.Random(5)
    expected, found = make_reference("cpu"), make_reference(**drafting)
    for case in range(N_CASES):
        asked = []
        for i in range(1 + case % 5):
            words = [chance.randrange(3, 60) for _ in range(chance.randrange(1, 25))]
            params = SamplingParams(
                max_tokens=chance.randrange(1, 30),
                ignore_eos=case % 3 > 0,
                **SAMPLINGS[(case + i) % len(SAMPLINGS)],  # type: ignore[arg-type]
            )
            asked.append((words * chance.randrange(1, 5), params))
        assert replies(found, asked) == replies(expected, asked), f"case {case}"
    found.check_integrity()
    assert found.runner.n_ahead_used > 0, "expected steps computed ahead to be used"


def test_staging_revising_drafting_and_salvage_go_through_graphs(
    make_reference: MakeReference,
) -> None:
    params = SamplingParams(max_tokens=9, ignore_eos=True, temperature=0.7, seed=1)
    said: dict[str, list[object]] = {}
    for device in ("cpu", "reference"):
        engine = make_reference(device)
        branch = engine.branch("b", [5 + i % 40 for i in range(50)])
        seen: list[object] = []
        for words in ([7, 8, 9], [7, 8, 9, 10, 11], [7, 8, 12]):
            branch.stage(words)
            events = []
            while engine.has_work():
                events += engine.step()
            seen += [round(e.p_end_of_turn, 5) for e in events if isinstance(e, Staged)]
        attempt = branch.begin_preemptive([13], params)
        drain(engine)
        branch.commit([7, 8, 14, 13], params, attempt)
        usage = drain(engine)["b"].usage
        seen += [branch.sequence.tokens, usage.drafted_tokens, usage.accepted_tokens]
        said[device] = seen
        branch.close()
        assert engine.pool.n_free + len(engine.tree) == engine.pool.n_blocks
    assert said["cpu"] == said["reference"]


def test_a_reply_cancelled_under_way_leaves_others_alone(make_reference: MakeReference) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    prompts = [[5, 6, 7], [8, 9], [10] * 20]
    alone = make_reference("cpu")
    expected = replies(alone, [(prompt, params) for prompt in prompts])
    engine = make_reference()
    branches = [engine.branch(f"b{i}") for i in range(3)]
    for branch, prompt in zip(branches, prompts, strict=True):
        branch.commit(prompt, params)
    for _ in range(6):
        engine.step()
    branches[1].cancel()
    branches[1].commit([11, 12], params)  # takes blocks the step ahead may still write to
    drain(engine)
    for i in (0, 2):
        assert branches[i].sequence.tokens[len(prompts[i]) :] == expected[i]
    engine.check_integrity()


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or "VOICELOOP_FUZZ_EXAMPLES" not in os.environ,
    reason="slow: needs TRITON_INTERPRET=1 and VOICELOOP_FUZZ_EXAMPLES",
)
@pytest.mark.parametrize("quant", [None, "int8"])
def test_the_kernels_themselves_say_what_their_references_say(
    write_checkpoint: Callable[..., Path], quant: str | None
) -> None:
    folder = write_checkpoint(hidden_size=64, intermediate_size=128, num_hidden_layers=1)
    params = SamplingParams(max_tokens=3, ignore_eos=True, temperature=0.8, top_p=0.9, seed=2)
    said = []
    for device in ("reference", "interpreter"):
        config = EngineConfig(
            device=device, quant=quant, kv_tokens=256, max_branches=1, step_tokens=32,
            background_tokens=16, context_length=100,
        )  # fmt: skip
        said.append(replies(Engine.load(folder, config), [([9, 8, 20], params)]))
    assert said[0] == said[1]


def test_a_lone_reply_is_launched_ahead_almost_always(make_reference: MakeReference) -> None:
    engine = make_reference()
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    engine.branch("b").commit([5, 6, 7], params)
    drain(engine)
    assert engine.runner.n_ahead_used >= 30


def test_a_reply_does_not_keep_the_steps_it_went_through(make_reference: MakeReference) -> None:
    engine = make_reference()
    runner: Any = engine.runner
    engine.branch("b").commit([5, 6, 7], SamplingParams(max_tokens=40, ignore_eos=True))
    n_kept = []
    while engine.has_work():
        engine.step()
        n_kept.append(0)
        part = runner._ahead.parts[0].before if runner._ahead is not None else None
        while part is not None:
            n_kept[-1], part = n_kept[-1] + 1, part.before
    assert max(n_kept) == 1


def test_ngrams_on_the_device_continue_what_was_said_before() -> None:
    from engine.kernels.ngram import guess_reference
    from engine.kernels.places import Places

    places = Places(2, 12, 3, torch.device("cpu"))
    places.history[1, :8] = torch.tensor([10, 11, 12, 13, 14, 10, 11, 12])
    which, guessing = torch.tensor([1, 0, 2]), torch.tensor([1, 1, 0])
    places.position[1] = 7
    guess_reference(which, guessing, places)
    assert places.guesses[1].tolist() == [13, 14, 10]
    assert places.n_guesses.tolist() == [0, 3, 0]
    places.position[1] = 6
    guess_reference(which, guessing, places)
    assert places.n_guesses.tolist() == [0, 0, 0], "10 11 was said, 14 10 11 was not"


def test_a_wide_step_near_the_end_of_the_context_stays_inside_the_history(
    make_reference: MakeReference,
) -> None:
    engine = make_reference(
        ngram_draft=True, context_length=300, step_tokens=256, background_tokens=256
    )
    branch = engine.branch("b")
    branch.stage([5, 6, 7] * 50)
    drain(engine)
    branch.commit([5, 6, 7] * 95, SamplingParams(max_tokens=4, ignore_eos=True))
    assert drain(engine)["b"].usage.output_tokens == 4


def test_only_resident_tokens_nobody_fed_are_uploaded() -> None:
    from engine.kernels.places import Places
    from engine.kv_cache import KvPool
    from engine.prefix_tree import PrefixTree
    from engine.sequence import Sequence

    pool = KvPool(n_layers=1, n_kv_heads=1, head_dim=2, n_blocks=4, dtype=torch.float32)
    places = Places(1, 16, 0, torch.device("cpu"))
    sequence = Sequence(pool, PrefixTree(pool))
    sequence.tokens = [3, 4, 5, 6, 7]
    place = places.take(sequence, 3, 2)
    assert place > 0, "place 0 is for padding"
    assert places.history[place, :6].tolist() == [3, 4, 5, 0, 0, 0], "a step writes the other two"
    assert places.take(sequence, 5, 0) == place
    assert places.history[place, :6].tolist() == [3, 4, 5, 0, 0, 0], "they were fed"
    sequence.tokens = [3, 9, 8, 1]
    places.take(sequence, 4, 0)
    assert places.history[place, :4].tolist() == [3, 9, 8, 1], "revised words are uploaded"


class Stubborn:
    """Guesses the same, whatever was said."""

    name = "stubborn"

    def propose(self, branch_id: str, target: object, reply: object, n_most: int) -> list[int]:
        return [5, 5]

    def stage(self, branch_id: str, target: object) -> bool:
        return False

    def forget(self, branch_id: str, committed: list[int]) -> None:
        pass


def test_no_step_is_launched_ahead_of_one_the_host_drafts_for(
    make_reference: MakeReference,
) -> None:
    """It would be thrown away, after having made the next one wait for it."""

    engine = make_reference()
    engine.speculation = Speculation([Stubborn()], 2, engine.clock)
    for _, length in engine.speculation._drafters:
        length.choose = lambda *_: 2  # type: ignore[method-assign]
    replies(engine, [([5, 6, 7], SamplingParams(max_tokens=24, ignore_eos=True))])
    # The prompt's step was launched ahead of too, and the last may have had no room for guesses.
    runner: Any = engine.runner
    assert runner.n_launches <= engine.metrics()["steps"] + 2


def test_guesses_come_too_late_for_a_step_under_way_and_are_no_misses(
    make_reference: MakeReference,
) -> None:
    engine = make_reference()
    engine.speculation = Speculation([Stubborn()], 2, engine.clock)
    booked: list[tuple[int, ...]] = []
    for _, length in engine.speculation._drafters:
        length.choose = lambda *_: 2  # type: ignore[method-assign]
        length.verified = lambda *guesses: booked.append(guesses)  # type: ignore[method-assign]
    engine.branch("b").commit([5, 6, 7], SamplingParams(max_tokens=24, ignore_eos=True))
    usage = drain(engine)["b"].usage
    assert sum(n_drafted for n_drafted, _ in booked) == usage.drafted_tokens > 0


def test_only_decoding_tells_what_guesses_are_worth(make_reference: MakeReference) -> None:
    """Not staged words, not a prompt's last few tokens, and no time in which nobody asked."""
    engine = make_reference(ngram_draft=True)
    runner: Any = engine.runner
    booked: list[tuple[int, int, float, bool]] = []

    def stepped(n_replies: int, n_rows: int, n_accepted: float, ms: float | None) -> None:
        booked.append((n_replies, n_rows - n_replies, n_accepted, ms is not None))

    runner.length.stepped = stepped
    runner.length.choose = lambda n_replies: 0
    branch = engine.branch("b")
    for n_words in (1, 2, 5):
        branch.stage([7, 8, 9, 10, 11][:n_words])
        drain(engine)
    assert booked == [] and runner.length.acceptance == 0.7
    branch.commit([7, 8, 9, 12, 13], SamplingParams(max_tokens=5, ignore_eos=True))
    drain(engine)
    # The prompt's step is none of decoding, but the next one began where it ended.
    assert [(n, drafted, timed) for n, drafted, _, timed in booked] == [(1, 0, True)] * 4


def test_a_chunk_of_a_prompt_fills_its_graph_where_few_are_drawn_from(
    make_reference: MakeReference,
) -> None:
    sizes = graph_sizes(EngineConfig(step_tokens=512))
    assert (sizes[512], sizes[575]) == (CHUNK_WANTED, MAX_WANTED)
    engine = make_reference(step_tokens=40, background_tokens=8)
    runner: Any = engine.runner
    replayed: list[int] = []
    for n_rows, replay in runner._replays.items():
        runner._replays[n_rows] = lambda n=n_rows, run=replay: (replayed.append(n), run())
    for n_logits in (0, 1, CHUNK_WANTED + 1):
        with borrowed(engine.pool, engine.tree, [16 + i for i in range(40)]) as sequence:
            runner.step([Extension(sequence, 40, n_logits=n_logits)])
    assert replayed == [40, 40, 64]


def test_a_step_of_many_replies_is_booked_once(make_reference: MakeReference) -> None:
    engine = make_reference(ngram_draft=True)
    runner: Any = engine.runner
    booked: list[tuple[int, int]] = []
    runner.length.stepped = lambda n, rows, hits, ms: booked.append((n, rows))
    runner.length.choose = lambda n_replies: 3
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    for i in range(3):
        engine.branch(f"b{i}").commit([5, 6, 7 + i], params)
    drain(engine)
    assert booked == [(4, 16)]


def test_what_a_step_has_no_room_for_is_verified_in_the_next(
    make_reference: MakeReference,
) -> None:
    """Five callers with a penalty, whose 30 guesses each are verified at once: 155 drawn rows."""
    params = SamplingParams(max_tokens=31, ignore_eos=True, presence_penalty=0.5)
    said = {}
    for device in ("cpu", "reference"):
        engine = make_reference(device, kv_tokens=4096)
        branches = [engine.branch(f"b{i}") for i in range(5)]
        for branch in branches:
            branch.stage([5, 6, 7])
        drain(engine)
        attempts = [branch.begin_preemptive([9], params) for branch in branches]
        drain(engine)
        for branch, attempt in zip(branches, attempts, strict=True):
            branch.commit([5, 6, 8, 9], params, attempt)
        done = drain(engine)
        drafted = [one.usage.drafted_tokens for one in done.values()]
        said[device] = [branch.sequence.tokens for branch in branches], drafted
    assert said["cpu"] == said["reference"]
    assert sum(said["cpu"][1]) == 5 * 30


def test_the_device_has_read_what_the_host_believes_it_has(make_reference: MakeReference) -> None:
    """Also of a prompt that had no room in the step it was asked for."""
    engine = make_reference(kv_tokens=4096)
    runner: Any = engine.runner
    places, n_left_out = runner._shared.places, 0
    branches = [engine.branch(f"b{i}") for i in range(5)]
    params = SamplingParams(max_tokens=31, ignore_eos=True, presence_penalty=0.5)
    for branch in branches:
        branch.stage([5, 6, 7])
    drain(engine)
    attempts = [branch.begin_preemptive([9], params) for branch in branches]
    drain(engine)
    for branch, attempt in zip(branches, attempts, strict=True):
        branch.commit([5, 6, 8, 9], params, attempt)
    while engine.has_work():
        engine.step()
        n_left_out += runner._ahead is not None and len(runner._ahead.parts) < len(branches)
        for place, known in places._places.values():
            assert places.history[place, : len(known)].tolist() == known
    assert n_left_out > 0


def keep_few_logits(monkeypatch: pytest.MonkeyPatch, engine: Engine, n_lines: int) -> None:
    """As where the vocabulary is large: engines loaded from now on have so many lines for them."""
    from engine.graphs import graph_runner

    runner: Any = engine.runner
    n_bytes = n_lines * 4 * runner.decoder.config.vocab_size * graph_runner.N_UNDER_WAY
    monkeypatch.setattr(graph_runner, "PINNED_LOGITS_BYTES", n_bytes)


def test_more_guesses_than_logits_can_be_told_of_are_dropped(
    make_reference: MakeReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a reply made ahead, which is verified in one step."""
    params = SamplingParams(max_tokens=31, ignore_eos=True, logprobs=1)
    said = []
    for device in ("cpu", "reference"):
        engine = make_reference(device)
        keep_few_logits(monkeypatch, engine, 4)
        branch = engine.branch("b")
        branch.stage([5, 6, 7])
        drain(engine)
        attempt = branch.begin_preemptive([9], params)
        drain(engine)
        branch.commit([5, 6, 8, 9], params, attempt)
        drain(engine)
        said.append(branch.sequence.tokens)
    assert said[0] == said[1]


def test_replies_that_go_on_by_themselves_keep_no_newcomer_waiting(
    make_reference: MakeReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_few_logits(monkeypatch, make_reference("cpu"), 2)
    engine = make_reference()
    for i, n_tokens in enumerate((40, 40, 3)):
        params = SamplingParams(max_tokens=n_tokens, ignore_eos=True, logprobs=1)
        engine.branch(f"b{i}").commit([5, 6, 7 + i], params)
        for _ in range(4):
            engine.step()
    assert next(iter(drain(engine))) == "b2"


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_quantized_products_give_the_same_model(make_reference: MakeReference, quant: str) -> None:
    """int4 groups differ between the paths, so only its tokens' plausibility is looked at."""
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    found = replies(make_reference(quant=quant), [([5, 6, 7], params)])
    expected = replies(make_reference("cpu", quant=quant), [([5, 6, 7], params)])
    assert len(found[0]) == 8
    if quant != "int4":
        assert found == expected


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"device": "tpu"}, "expected cpu, cuda, reference or interpreter"),
        ({"device": "reference", "dtype": "fp64"}, "bf16 or fp32"),
        ({"device": "cuda"}, "expected a GPU"),
    ],
)
def test_a_device_that_is_not_there_is_named(
    make_reference: MakeReference, changes: dict[str, object], sentence: str
) -> None:
    if torch.cuda.is_available() and changes["device"] == "cuda":
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match=sentence):
        make_reference(**changes)


@pytest.mark.parametrize("drafting", [{}, {"ngram_draft": True}], ids=["plain", "drafted"])
def test_calls_are_bound_where_the_device_draws_what_is_said_before_and_behind_them(
    make_reference: MakeReference, drafting: dict[str, object]
) -> None:
    pytest.importorskip("llguidance", reason="the optional package llguidance is not installed")
    parameters = {"properties": {"day": {"enum": ["Friday", "Sunday"]}}, "required": ["day"]}
    tools = json.dumps([{"name": "hours", "parameters": parameters}])
    asked = [
        ([5, 6, 7], SamplingParams(max_tokens=80, temperature=1.0, seed=seed, offered_tools=tools))
        for seed in (5, 15, 16, 19)
    ]
    engines = make_reference("cpu"), make_reference(**drafting)
    for engine in engines:
        engine.notation = notation_of(engine.text.template_source)
    expected, found = (replies(engine, asked) for engine in engines)
    assert found == expected
    said = [engines[0].text.decode(tokens) for tokens in found]
    called = re.compile(r'<tool_call>\s*{"name": ?"hours", ?"arguments": ?{"day": ?"\w+day"}}\s*</')
    assert all(map(called.search, said))


def test_a_grammar_binds_a_vocabulary_of_whole_words(
    write_checkpoint: Callable[..., Path],
) -> None:
    """As Qwen's: the mask has a word more than there are tokens."""
    pytest.importorskip("llguidance", reason="the optional package llguidance is not installed")
    folder = write_checkpoint(vocab_size=416)
    schema = '{"enum": ["Friday", "Sunday"]}'
    params = SamplingParams(max_tokens=30, temperature=1.0, seed=3, json_schema=schema)
    config = EngineConfig(device="reference", dtype="fp32", kv_tokens=1024, max_branches=2)
    engine = Engine.load(folder, config)
    (said,) = replies(engine, [([5, 6, 7], params)])
    assert json.loads(engine.text.decode(said).removesuffix("<|im_end|>")) in ("Friday", "Sunday")
