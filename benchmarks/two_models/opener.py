"""What the large model says behind an opener: whether it repeats or contradicts it, by rule.

The embedded model stands for a large one. Each question is answered as it would be said, with the
opener as the first tokens of the reply, and what repeats it is left out as a server leaves it out.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from benchmarks.harness.harness import Bar
from benchmarks.two_models.calls import said_twice
from benchmarks.two_models.head import AGENT, questions
from engine.engine import Engine
from engine.types import Done, EngineConfig, SamplingParams, TextDelta
from voiceloop.openers import OPENERS, SLOT, words_of
from voiceloop.reply.repeats import Repeats

N_TURNS, MOST_WRONG = 300, 3
MAX_TOKENS = 48
LINES = [line for line in OPENERS["en"] if SLOT not in line]
ACTS = {word for line in LINES for word in words_of(line)}
# Another act of the same kind, and the denial of one.
REPEATED = re.compile(
    r"\b(let me (check|look|see|have a look|think)|(one|a|just a) moment|having a look)\b", re.I
)
DENIED = re.compile(
    r"\b(can't|cannot|unable to|not able to|won't|don't) (check|look|see|think)\b", re.I
)


def behind_openers(is_quick: bool) -> tuple[dict[str, Any], Bar]:
    """Replies behind openers, and how many of them are wrong."""
    engine = Engine.load(AGENT, EngineConfig(quant="int8", threads=2, ngram_draft=True))
    asked = [each for each in questions(1 if is_quick else 12) if not each[2]]
    wrong, n_turns = list[str](), len(asked) if is_quick else N_TURNS
    turns = zip(itertools.cycle(asked), itertools.cycle(LINES), range(n_turns), strict=False)
    for (before, question, _), opener, _ in turns:
        reply = _reply(engine, [*before, {"role": "user", "content": question.text}], opener)
        if REPEATED.search(reply) or DENIED.search(reply) or said_twice(f"{opener} {reply}"):
            wrong.append(f"{opener} {reply}")
    found = {"turns": n_turns, "wrong": wrong}
    return found, Bar("contradict or repeat it, of 300", len(wrong), MOST_WRONG, "", n=n_turns)


def _reply(engine: Engine, messages: list[dict[str, Any]], opener: str) -> str:
    text, branch, echo = engine.text, engine.branch("opened"), Repeats(opener, ACTS)
    prompt = text.encode_chat(messages, [], add_generation_prompt=True)
    branch.commit([*prompt, *text.encode(opener)], SamplingParams(MAX_TOKENS))
    said, is_over = "", False
    while not is_over:
        for event in engine.step():
            if isinstance(event, TextDelta):
                said += echo.feed(event.text)
            is_over = is_over or isinstance(event, Done)
    branch.close()
    return (said + echo.finish()).strip()
