"""The families, the kinds of GGUF and the bound tool calls that the engine reads.

    python -m benchmarks.models_people_have [--check] [--replies 1000]

Of each family a tiny random checkpoint of the true architecture: tokens against transformers in
fp32 (the first bar), the same from a GGUF file, its chat template with a turn that is still open,
its own notation of tool calls parsed and bound, and the tokens that end its replies. It prints the
table of `voiceloop/docs/MODELS.md`, which a test holds. Then so many replies of each in int8, by
the layers that serve it: drafted for, in any company, and beside them the same alone.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine.rows import Foretold, parted
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import Bar
from engine.engine import Engine
from engine.load.gguf_codes import FOUR_BITS, MORE_BITS
from engine.quality import log_probabilities
from engine.text.text import Text
from engine.text.tool_calls import ParsedCall, ToolCallParser
from engine.types import EngineConfig, GrammarError, SamplingParams
from tests.engine.families import (
    ASKED,
    ROWS,
    SENTENCEPIECE,
    SYSTEM,
    TOOL,
    Row,
    reference,
    write_text,
)  # fmt: skip
from tests.engine.load.gguf_files import write_gguf

N_TOKENS = 40
CLOSE = 1e-3  # of log probabilities: both compute in fp32, in another order
LEAST = {"families": 9, "bound notations": 6, "GGUF kinds": 9}
CONFIG = EngineConfig(dtype="fp32", kv_tokens=1024)
SERVED = EngineConfig(quant="int8", kv_tokens=2048)
MOST_WORDS = 60  # of a caller's
CALL = ParsedCall("book_table", '{"people": 4}')


@dataclass(slots=True)
class Found:
    """What was found of a family. wrong: sentences; none where all holds."""

    row: Row
    is_bound: bool = False
    wrong: list[str] = field(default_factory=list)

    def expect(self, holds: bool, sentence: str) -> None:
        if not holds:
            self.wrong.append(f"{self.row.name}: expected {sentence}")


def check(row: Row, folder: Path) -> Found:
    """Everything that the table says of one family."""
    found = Found(row)
    n_vocab = write_text(row, folder)
    text = Text.read(folder)
    ids = [text.tokenizer.token_to_id(end) for end in row.ends]
    drawn = torch.randint(20, n_vocab, (N_TOKENS,), generator=torch.Generator().manual_seed(3))
    tokens: list[int] = drawn.tolist()
    logits = reference(row.model, folder, tokens, vocab_size=n_vocab, eos_token_id=ids)
    truth = logits.log_softmax(-1)
    words: dict[str, Any] = {"tokenizer.ggml.pre": row.split}
    if row.split == SENTENCEPIECE:
        scores = [-float(number) for number in range(n_vocab)]
        words = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": scores}
    words["tokenizer.ggml.eos_token_id"] = ids[0]
    file = write_gguf(folder, folder / "model.gguf", row.arch, **words)
    for path in (folder, file):
        engine = Engine.load(path, CONFIG)
        said = log_probabilities(engine, tokens)
        found.expect(
            said.argmax(-1).equal(truth.argmax(-1)), f"transformers' tokens of {path.name}"
        )
        found.expect(torch.allclose(said, truth, atol=CLOSE), f"its probabilities of {path.name}")
    _check_text(found, Engine.load(folder, CONFIG).text, ids)
    _check_calls(found, Engine.load(folder, CONFIG))
    return found


def _check_text(found: Found, text: Text, ids: list[int]) -> None:
    """The template takes a call with a turn still open, and its ends are the reply's."""
    messages = [{"role": "system", "content": SYSTEM}]
    turn = {"role": "user", "content": ASKED}
    whole = text.encode_chat([*messages, turn], add_generation_prompt=True)
    still_open = text.encode_chat(messages, open_user=ASKED)
    found.expect(whole[: len(still_open)] == still_open, "an open turn to begin the whole one")
    found.expect(SYSTEM in text.tokenizer.decode(whole), "the system's words in the prompt")
    found.expect(set(ids) <= text.stop_ids, f"{found.row.ends} to end a reply")
    if not found.row.called:
        return
    call = {"name": CALL.name, "arguments": json.loads(CALL.arguments_json)}
    history: list[dict[str, Any]] = [
        *messages,
        turn,
        {"role": "assistant", "content": "",
         "tool_calls": [{"id": "call_b1_1", "type": "function", "function": call}]},
        {"role": "tool", "content": "done", "tool_call_id": "call_b1_1"},
    ]  # fmt: skip
    tool = {"type": "function", "function": TOOL}
    said = text.tokenizer.decode(text.encode_chat(history, [tool]), skip_special_tokens=False)
    found.expect('"people": 4' in said and "done" in said, "a call and its result in the prompt")
    asked = text.encode_chat([*messages, turn], [tool])
    found.expect("Books a table." in text.tokenizer.decode(asked), "the tools in the prompt")


def _check_calls(found: Found, engine: Engine) -> None:
    """Its own notation is parsed, and bound to the tools where the reply may also speak."""
    row, notation = found.row, engine.notation
    found.expect((notation is not None) == bool(row.called), "a notation where it has one")
    if notation is None or not row.called:
        return
    parser = ToolCallParser(notation)
    said = [one for piece in row.opening + row.called for one in parser.feed(piece)]
    found.expect([*said, *parser.finish()] == [CALL], "its call parsed, a character at a time")
    offered = SamplingParams(offered_tools=json.dumps([TOOL]))
    reply = engine.new_reply(1, offered)
    coming = reply._offered
    found.expect(coming is not None, "its calls bound under auto")
    if coming is None:
        return
    wrong = row.called.replace("book_table", "book_tables")
    others = row.called.replace('"people"', '"people_"')
    found.is_bound = [_obeys(engine, notation.keep_open, offered, one) for one in (
        row.called, wrong, others
    )] == [True, False, False]  # fmt: skip
    found.expect(found.is_bound, "its call taken, and no other name or argument")


def _obeys(engine: Engine, is_bare: bool, offered: SamplingParams, written: str) -> bool:
    """Whether what follows the opening mark may be written so, and may end there."""
    found = engine.new_reply(1, offered)._offered
    assert found is not None
    grammar = (found.force() if is_bare else found.begin).grammar()
    assert grammar is not None
    try:
        for token in engine.text.encode(written):
            grammar.advance(token)
        if not grammar.is_over:
            grammar.advance(min(engine.text.stop_ids))
    except GrammarError:
        return False
    return True


def parting(row: Row, folder: Path, n_replies: int) -> int:
    """How many replies of this family part by what else is computed; tells it."""
    n_vocab = write_text(row, folder)
    words = Text.read(folder).tokenizer
    ends = [words.token_to_id(end) for end in row.ends]
    reference(row.model, folder, [1], vocab_size=n_vocab, eos_token_id=ends)
    chance = random.Random(row.name)
    prompts = [
        [chance.randrange(20, n_vocab) for _ in range(chance.randint(1, MOST_WORDS))]
        for _ in range(n_replies)
    ]
    plain, drafted = (
        Engine.load(folder, replace(SERVED, max_draft_tokens=n, ngram_draft=n > 0))
        for n in (0, SERVED.max_draft_tokens)
    )
    n_parted, told = parted(plain, drafted, prompts, 0, ignore_eos=True, foretold=Foretold(0))
    print(f"{row.name}: {told}", flush=True)
    return n_parted


def table(found: Iterable[Found]) -> str:
    """The lines of MODELS.md."""
    lines = [
        "| family | checkpoints | GGUF, its text split as | own tool calls, bound under `auto` | "
        "ends a reply |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        row = one.row
        calls = "none of its own"
        if row.called:
            written = (row.opening + row.called).replace("\n", "").replace("|", "\\|")
            calls = f"`{written}`" + ("" if one.is_bound else ", not bound")
        ends = ", ".join(f"`{end}`" for end in row.ends).replace("|", "\\|")
        lines.append(
            f"| {row.name} | {row.checkpoints} | `{row.arch}`, {row.split} | {calls} | {ends} |"
        )
    return "\n".join(lines)


def notations(found: Iterable[Found]) -> set[str]:
    """The bound notations, each once: by what stands around the JSON."""
    return {one.row.opening + one.row.called.replace("\n", "") for one in found if one.is_bound}


def main(arguments: Sequence[str] | None = None) -> int:
    command = Benchmark("models_people_have", "Families, kinds of GGUF and bound calls.")
    command.count("--replies", 1000, "of each family, drafted for and in company", at_least=0)
    chosen = command.parse(arguments)
    found, n_parted = [], dict[str, int]()
    for row in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            found.append(check(row, Path(folder)))
        print(*found[-1].wrong or [f"{row.name}: all as expected"], sep="\n", flush=True)
        if chosen.replies:
            with tempfile.TemporaryDirectory() as folder:
                n_parted[row.name] = parting(row, Path(folder), chosen.replies)
    print(table(found))
    counts = {
        # Phi-4-mini is Phi by its class.
        "families": len({one.row.model.split("-mini")[0] for one in found if not one.wrong}),
        "bound notations": len(notations(found)),
        "GGUF kinds": len(FOUR_BITS) + len(MORE_BITS),
    }
    bars = [Bar(name, counts[name], least, "", at_least=True) for name, least in LEAST.items()]
    bars.append(Bar("wrong", sum(len(one.wrong) for one in found), 0, ""))
    if n_parted:
        most = max(n_parted.values())
        bars.append(Bar("replies that part, of the worst family", most, 0, "", n=chosen.replies))
    told = table(found).splitlines()
    return command.finish({"replies": chosen.replies}, bars, table=told, parted=n_parted)


if __name__ == "__main__":
    sys.exit(run(main))
