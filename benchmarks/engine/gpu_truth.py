"""Whether the kernels say what the model says: logits, codes, and whole replies in any company.

Truth is plain torch in fp32 on the CPU, over the same rounded weights, and the device itself with
one reply alone. The models are small and random, of the served formats: an error of one code, row
or block changes what they say. On the device "reference", where the kernels are torch's, faults
are planted (`gpu_faults`), and every one of them has to be found by a row.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.gpu_faults import FAULTS, planted
from benchmarks.engine.models import RandomCheckpoint, Shape, write_folder
from benchmarks.engine.setting import drain
from engine.device import open_device
from engine.engine import Engine
from engine.kernels.decoder import INT4_GROUP
from engine.linear import Linear, make_linear
from engine.load.loader import read_config
from engine.load.packed import dense
from engine.load.quant import quantize
from engine.model import Decoder
from engine.runner import Extension
from engine.sequence import Sequence
from engine.text.text import Text
from engine.types import BLOCK_TOKENS, Done, EngineConfig, SamplingParams, Staged

Row = tuple[str, Callable[[], dict[str, Any]]]
DEVICE = "cuda"  # "reference" where there is no GPU

SHAPE = Shape(128, 256, 3, 4, 2, vocab_size=512, max_position_embeddings=1024, head_dim=64,
              family="Qwen3", tie_word_embeddings=False)  # fmt: skip
SHAPES = {"full": SHAPE, "windowed": replace(SHAPE, family="Mistral", sliding_window=48)}
SERVED = ("int8", "int8")
FORMATS = ((None, "plain"), ("int4", "int8"), SERVED)
N_REPLIES, N_TOKENS, N_PROMPT = 50, 24, 400
N_DRAFTED, N_POOLED = 9, 24
COMPANIES = (2, 8, 17, 33, 64)
PROMPTS = (23, 64, 97, 150, 31)  # tokens before the places that are looked at
WIDTHS = (1, 1, 3, 8, 1, 17, 1, 8)  # rows of each sequence in a step: 40 places of five are 200
# Of a place's logits' norm, and of a vector of keys or values: three times what bf16 was found to
# do on "reference". What is unrelated is at 1.4.
LOGITS_APART, VECTORS_APART = 0.12, 0.12
CODES_APART = 4  # steps of a code in the first layer, whose inputs are the embedding's
LIKELY_WITHIN = 0.15  # of the logits' spread: how far below the likeliest a greedy token may be
PROBABILITY_APART = 0.15
SCHEMA = (
    '{"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"],'
    ' "additionalProperties": false}'
)


class Wrong(RuntimeError):
    """What was found is not what was expected."""


class SeededCheckpoint(RandomCheckpoint):
    """Weights by name, the same on every device; norms differ from channel to channel."""

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        assert shape is not None
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        noise = torch.randn(shape, generator=generator)
        values = 1 + 0.2 * noise if len(shape) == 1 else noise * 1.5 / shape[-1] ** 0.5
        if "embed" in name:
            values = noise
        return values.bfloat16().to(self._device)


def build(kind: str = "full", *, is_truth: bool = False, **changes: Any) -> Engine:
    """An engine of the kernels; is_truth: of plain torch in fp32, its weights rounded alike.

    Steps have at most 128 rows, as in those of more products are rounded otherwise. References run
    in fp32 unless asked: torch's products of bf16 differ with the rows beside, and near ties part.
    """
    settings = {"quant": "int8", "kv_format": "int8", "kv_tokens": 32768, "max_branches": 66,
                "step_tokens": 64, "background_tokens": 64,
                "dtype": "bf16" if DEVICE.startswith("cuda") else "fp32"}  # fmt: skip
    where = {"device": "cpu", "dtype": "fp32", "native": False} if is_truth else {"device": DEVICE}
    config = EngineConfig(share_steps=True, **{**settings, **changes, **where})  # type: ignore[arg-type]
    device = open_device(config)

    def rounded(weight: Any, bias: Tensor | None, *, quant: str | None, **given: Any) -> Linear:
        return make_linear(dense(quantize(weight, quant, INT4_GROUP)), bias, quant=None, **given)

    with tempfile.TemporaryDirectory() as folder:
        model_dir = write_folder(Path(folder), SHAPES[kind])
        model = read_config(model_dir)
        decoder = Decoder(
            SeededCheckpoint(model_dir, device.torch_name), model, dtype=config.dtype,
            quant=config.quant, device=device.torch_name, context_length=model.context_length,
            make_linear=rounded if is_truth else device.make_linear,
        )  # fmt: skip
        return Engine(Text.read(model_dir, model.eos_ids), decoder, config)


def words(n: int, salt: int) -> list[int]:
    return [7 + (i * i * 13 + i * (salt + 3) + 31 * salt) % 500 for i in range(n)]


# -- logits, keys and values ----------------------------------------------------------------------


def passes(kind: str, quant: str | None, kv_format: str) -> dict[str, Any]:
    """200 places of five sequences, in steps of all widths: logits, then codes where written."""
    texts = [words(n + sum(WIDTHS), i) for i, n in enumerate(PROMPTS)]
    engines = [
        build(kind, quant=quant, kv_format=kv_format, is_truth=t, step_tokens=512, dtype="bf16")
        for t in (False, True)
    ]
    before = _blocks_of(engines[0])
    read = [[_sequence(engine, tokens) for tokens in texts] for engine in engines]
    found = _in_steps(engines[0], read[0])
    worst = 0.0
    for line, sequence in enumerate(read[1]):
        n = len(sequence.tokens)
        right = engines[1].runner.run([Extension(sequence, n, n_logits=sum(WIDTHS))])
        sequence.n_resident = n
        assert right is not None
        apart = (found[line] - right).norm(dim=-1) / right.norm(dim=-1)
        place = int(apart.argmax())
        _within(f"logits of sequence {line}, place {place}", float(apart[place]), LOGITS_APART)
        worst = max(worst, float(apart[place]))
    row = {"logits_apart": round(worst, 4), **_codes(engines, read)}
    written = sorted({block for sequence in read[0] for block in sequence.table})
    others = [block for block in range(engines[0].pool.n_blocks) if block not in written]
    for now, then in zip(_blocks_of(engines[0]), before, strict=True):
        if not torch.equal(now[:, others], then[:, others]):
            raise Wrong("expected blocks of nobody as they were, found them changed")
    return row


def _blocks_of(engine: Engine) -> tuple[Tensor, ...]:
    pool = engine.pool
    return tuple(torch.stack(part).cpu() for part in (pool.blocks, pool.scale_blocks))


def _sequence(engine: Engine, tokens: list[int]) -> Sequence:
    sequence = Sequence(engine.pool, engine.tree)
    sequence.tokens = list(tokens)
    sequence.reserve(len(tokens))
    return sequence


def _in_steps(engine: Engine, sequences: list[Sequence]) -> list[Tensor]:
    """Each sequence's logits at its last places, all sequences in the same steps."""
    logits: list[list[Tensor]] = [[] for _ in sequences]
    for width in (0, *WIDTHS):
        asked = [
            Extension(s, width or n, n_logits=width)
            for s, n in zip(sequences, PROMPTS, strict=True)
        ]
        for line, outcome in enumerate(_all_of(engine, asked)):
            if outcome.logits is not None:
                logits[line].append(outcome.logits.float().cpu())
        for extension in asked:
            extension.sequence.n_resident += extension.n_known
    return [torch.cat(parts) for parts in logits]


def _all_of(engine: Engine, asked: list[Extension]) -> list[Any]:
    """The outcome of every extension, however many steps they take."""
    found: list[Any] = [None] * len(asked)
    while missing := [i for i, outcome in enumerate(found) if outcome is None]:
        for i, outcome in zip(
            missing, engine.runner.step([asked[i] for i in missing]), strict=True
        ):
            found[i] = outcome
    return found


def _codes(engines: list[Engine], read: list[list[Sequence]]) -> dict[str, Any]:
    """Hold keys and values against the truth's, slot by slot of those that were written."""
    worst, steps = 0.0, 0
    for mine, true in zip(*read, strict=True):
        n, vectors = len(mine.tokens), []
        for engine, sequence in zip(engines, (mine, true), strict=True):
            table = torch.tensor(sequence.table, device=engine.pool.device)
            codes, scales = (
                torch.stack([layer[table].flatten(0, 1)[:n] for layer in part]).cpu().float()
                for part in (engine.pool.blocks, engine.pool.scale_blocks)
            )
            vectors.append(codes * scales[..., None] if scales.numel() else codes)
            if scales.numel():
                vectors.append(codes)
        if len(vectors) == 4:
            apart = (vectors[1][0] - vectors[3][0]).abs()
            steps = max(steps, int(apart.max()))
            _within("steps between a code of the first layer and its truth", steps, CODES_APART)
        found, right = vectors[0], vectors[len(vectors) // 2]
        apart = (found - right).norm(dim=-1) / right.norm(dim=-1)
        worst = max(worst, float(apart.nan_to_num(torch.inf).max()))
        _within("a vector of keys or values", worst, VECTORS_APART)
    return {"vectors_apart": round(worst, 4), "steps_apart": steps}


def _within(what: str, found: float, most: float) -> None:
    if not found <= most:  # NaN too
        raise Wrong(f"{what}: expected at most {most:.3g} from the truth, found {found:.3g}")


# -- replies --------------------------------------------------------------------------------------


def asked(n: int) -> list[tuple[list[int], SamplingParams]]:
    """So many prompts, of which every third is greedy, one drawn, one drawn with penalties."""
    kinds = (
        {}, {"temperature": 0.8, "top_p": 0.9}, {"temperature": 1.0, "frequency_penalty": 0.4},
    )  # fmt: skip
    return [
        (
            words(3 + 5 * i % 41, i),
            SamplingParams(max_tokens=N_TOKENS, ignore_eos=True, seed=i, **kinds[i % 3]),  # type: ignore[arg-type]
        )
        for i in range(n)
    ]


def replies(engine: Engine, some: list[tuple[list[int], SamplingParams]]) -> list[list[int]]:
    """Their tokens, side by side; the pool is whole afterwards."""
    branches = [engine.branch(f"b{i}") for i in range(len(some))]
    for branch, (prompt, params) in zip(branches, some, strict=True):
        branch.commit(list(prompt), params)
    failed = [event for event in drain(engine) if isinstance(event, Done) and event.error]
    if failed:
        raise Wrong(f"expected replies, found {failed[0].error}")
    found = [b.sequence.tokens[len(p) :] for b, (p, _) in zip(branches, some, strict=True)]
    for branch in branches:
        branch.close()
    engine.check_integrity()
    return found


def _same(found: list[list[int]], expected: list[list[int]], where: str) -> None:
    parted = [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]
    if parted:
        raise Wrong(f"{where}: expected 0 replies to part, found {len(parted)} of {len(found)}")


def alone(engine: Engine, some: list[tuple[list[int], SamplingParams]]) -> list[list[int]]:
    return [replies(engine, [one])[0] for one in some]


def company() -> dict[str, Any]:
    """Replies alone are likely by the truth, and the same among others and beside a prompt."""
    engine, some = build(), asked(N_REPLIES)
    expected = alone(engine, some)
    _likely([(p, said) for (p, s), said in zip(some, expected, strict=True) if not s.temperature])
    for n in COMPANIES:
        for at in range(0, len(some), n):
            group = [(at + i) % len(some) for i in range(n)]
            found = replies(engine, [some[i] for i in group])
            _same(found, [expected[i] for i in group], f"among {n}")
    return {"replies": len(some), "companies": list(COMPANIES)}


def beside_a_prompt() -> dict[str, Any]:
    """The same while a prompt is read in chunks; each prompt is new, or it would be shared.

    A step of more than 128 rows rounds other sums to bf16, so that near ties may part: on a GPU
    what is said has to be likely all the same.
    """
    engine, some = build(step_tokens=512), asked(8)
    expected = alone(engine, some)
    other = (words(N_PROMPT, 99), SamplingParams(max_tokens=2, ignore_eos=True))
    found = replies(engine, [*some, other])[:-1]
    if DEVICE.startswith("cuda"):
        greedy = [(p, said) for (p, s), said in zip(some, found, strict=True) if not s.temperature]
        _likely(greedy)
    else:
        _same(found, expected, "beside a prompt")
    n_parted = sum(a != b for a, b in zip(found, expected, strict=True))
    return {"replies": len(some), "parted": n_parted}


def _likely(said: list[tuple[list[int], list[int]]]) -> None:
    """Each greedy token is among the likeliest of the truth."""
    engine = build(is_truth=True)
    for prompt, tokens in said:
        sequence = _sequence(engine, prompt + tokens[:-1])
        n = len(sequence.tokens)
        logits = engine.runner.run([Extension(sequence, n, n_logits=len(tokens))])
        sequence.release()
        assert logits is not None
        below = logits.amax(-1) - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        spread = logits.amax(-1) - logits.mean(-1)
        _within("a greedy token below the likeliest", float((below / spread).max()), LIKELY_WITHIN)


class Guesses:
    """Knows the reply, and is wrong in two places of five: first guesses are wrong as well."""

    name = "half right"

    def __init__(self, known: dict[int, list[int]]) -> None:
        self.known = known  # by the prompt's length, which all differ in

    def propose(self, branch_id: str, target: Sequence, reply: Any, n_most: int) -> list[int]:
        start = len(reply.tokens)
        said = self.known[len(target.tokens) - start][start : start + min(n_most, 5)]
        return [token if (start + i) % 5 < 3 else 16 for i, token in enumerate(said)]

    def stage(self, branch_id: str, target: Sequence) -> bool:
        return False

    def forget(self, branch_id: str, committed: list[int]) -> None:
        """Nothing is kept."""


def drafted() -> dict[str, Any]:
    """Replies that are guessed at, by n-grams in the graph and from outside, change no token."""
    from engine.drafting.speculation import Speculation

    some = asked(N_DRAFTED)
    expected = alone(build(), some)
    inside: Any = build(ngram_draft=True)
    inside.runner.length.choose = lambda n_replies: 7
    echoing = [(prompt * 4, params) for prompt, params in some]
    _same(replies(inside, some), expected, "drafted by n-grams")
    _same(replies(inside, echoing), alone(build(), echoing), "drafted by n-grams, echoing")
    outside = build()
    known = {len(p): said for (p, _), said in zip(some, expected, strict=True)}
    outside.speculation = Speculation([Guesses(known)], 5, outside.clock)
    for _, length in outside.speculation._drafters:
        length.choose = lambda *_: 5  # type: ignore[method-assign]
    _same(alone(outside, some), expected, "drafted from outside")
    _same(replies(outside, some), expected, "drafted from outside, side by side")
    row = {
        name: int(inside.metrics()[name] + outside.metrics()[name])
        for name in ("drafted_tokens", "accepted_tokens")
    }
    if not 0 < row["accepted_tokens"] < row["drafted_tokens"]:
        raise Wrong(f"expected guesses that stand and guesses that fall, found {row}")
    return row


def grammar() -> dict[str, Any]:
    """A reply under a schema is valid, among others that are not bound and change no token."""
    if importlib.util.find_spec("llguidance") is None:
        return {"not_measured": "expected the package llguidance, found none"}
    bound = SamplingParams(max_tokens=120, temperature=1.0, seed=5, json_schema=SCHEMA)
    engine, some = build(), [*asked(4), (words(9, 77), bound)]
    expected = alone(engine, some)
    found = replies(engine, some)
    _same(found, expected, "under a schema, among others")
    said = engine.text.decode(found[-1]).removesuffix("<|end|>")
    try:
        value = json.loads(said)
    except ValueError:
        raise Wrong(f"expected JSON under the schema, found {said!r}") from None
    if value.get("a") not in ("x", "y"):
        raise Wrong(f"expected a value of the schema, found {said!r}")
    return {"said": said}


def late_cancel() -> dict[str, Any]:
    """Who is cancelled with a step under way changes nobody, nor who takes its blocks."""
    engine, some = build(ngram_draft=True), asked(4)
    expected = alone(engine, some)
    branches = [engine.branch(f"c{i}") for i in range(3)]
    for branch, (prompt, params) in zip(branches, some, strict=False):
        branch.commit(list(prompt), params)
    for _ in range(6):
        engine.step()
    branches[1].cancel()
    branches[1].close()
    newcomer = engine.branch("newcomer")
    newcomer.commit(list(some[3][0]), some[3][1])
    drain(engine)
    for branch, i in ((branches[0], 0), (branches[2], 2), (newcomer, 3)):
        _same([branch.sequence.tokens[len(some[i][0]) :]], [expected[i]], "beside a late cancel")
    engine.check_integrity()
    return {"replies": 3}


def full_pool() -> dict[str, Any]:
    """Replies whose blocks were others' say the same: the pool holds some of them at a time."""
    some = [(words(60, i) + prompt, params) for i, (prompt, params) in enumerate(asked(N_POOLED))]
    expected = alone(build(), some)
    engine = build(kv_tokens=40 * BLOCK_TOKENS)
    _same(replies(engine, some), expected, "in a full pool")
    _same(replies(engine, some), expected, "in a full pool, again")
    return {"replies": 2 * len(some), "blocks": engine.pool.n_blocks}


def staged() -> dict[str, Any]:
    """The probability that a turn ends, after words and after others in their place."""
    told: list[list[float]] = []
    for is_truth in (False, True):
        engine = build(is_truth=is_truth)
        branch, seen = engine.branch("s", words(40, 3)), []
        for said in (words(7, 5), words(12, 5), words(12, 6)):
            branch.stage(said)
            seen += [e.p_end_of_turn for e in drain(engine) if isinstance(e, Staged)]
        branch.close()
        told.append(seen)
    apart = max(abs(a - b) / b for a, b in zip(*told, strict=True))
    _within("the probability of an end of turn, of itself", apart, PROBABILITY_APART)
    return {"apart": round(apart, 4)}


# -- rows -----------------------------------------------------------------------------------------


def checks() -> Iterator[Row]:
    """In the order in which most is found soonest."""
    for quant, kv_format in FORMATS:
        name = f"logits and codes, {quant or 'bf16'}, kv {kv_format}"
        yield name, partial(passes, "full", quant, kv_format)
    yield "logits and codes, windowed", partial(passes, "windowed", *SERVED)
    for check in (staged, drafted, grammar, late_cancel, full_pool, beside_a_prompt, company):
        yield check.__name__.replace("_", " "), check


def found_by(fault: str) -> dict[str, Any]:
    """The first row that tells a planted fault. Raises: Wrong where none does."""
    with planted(fault):
        for name, measure in of_served():
            try:
                measure()
            except Exception as error:  # an engine that a fault breaks has told of it as well
                return {"found_by": name, "said": f"{error}".splitlines()[0][:120]}
    raise Wrong(f"expected a row that finds the planted fault {fault!r}, found none")


def of_served() -> Iterator[Row]:
    """The served format alone: what it does not show is looked for in replies."""
    yield "logits and codes", partial(passes, "full", *SERVED)
    yield from list(checks())[len(FORMATS) + 1 :]


def rows() -> Iterator[Row]:
    yield from checks()
    if DEVICE == "reference":
        for fault in FAULTS:
            yield f"planted: {fault}", partial(found_by, fault)
