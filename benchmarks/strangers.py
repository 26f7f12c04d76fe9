"""Businesses that no model of ours has seen: ``python -m benchmarks.strangers``.

Twelve agents of `strangers.toml`, each asked twenty typed questions, every one in a call of its
own behind a greeting. Counted: facts of the instructions that are said right, questions that the
instructions do not answer and that are refused, and those that got an answer all the same.
``--llm-model``, ``--llm-adapter`` and ``--engine-weights`` ask another model in the same server.
"""

from __future__ import annotations

import asyncio
import sys
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchmarks.calls.typed_call import typed_call
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar
from clients.server_process import running_server
from engine.recipes.conversations.plain_questions import Question
from engine.recipes.measuring.plain_answers import Answer

_FILE = Path(__file__).with_name("strangers.toml")
# One of these is said by who admits not to know, or leads back to what the agent is for.
_REFUSES = (
    "don't know",
    "do not know",
    "don't have",
    "do not have",
    "not have",
    "not sure",
    "no information",
    "only help",
    "can't help",
    "cannot help",
    "can't provide",
    "cannot provide",
    "unable",
    "not able",
    "afraid",
    "don't",
    "do not",
    "sorry",
)
_LEAST_RIGHT, _LEAST_REFUSED, _MOST_INVENTED = 75.0, 90.0, 5.0


@dataclass(frozen=True, slots=True)
class Stranger:
    """One business. right: questions with the rule of a good answer; refused: without an answer."""

    name: str
    instructions: str
    right: tuple[Question, ...]
    refused: tuple[Question, ...]


@lru_cache
def read_strangers() -> tuple[Stranger, ...]:
    """The businesses of `strangers.toml`."""
    given = tomllib.loads(_FILE.read_text())["business"]
    return tuple(
        Stranger(
            one["name"],
            one["instructions"],
            tuple(
                Question(text, (_wordings(expect),), tuple(filter(None, never.split("|"))))
                for text, expect, never in one["right"]
            ),
            tuple(Question(text, (_REFUSES,)) for text in one["refuse"]),
        )
        for one in given
    )


def _wordings(expect: str) -> tuple[str, ...]:
    """The alternatives of a rule; a figure may be a price, whether the file has a sign or not."""
    words = expect.split("|")
    return (*words, *(f"${word}" for word in words if word[:1].isdigit()))


async def _answer(url: str, stranger: Stranger, question: Question) -> Answer:
    greeting = f"Hello, this is {stranger.name}. How can I help?"
    async with typed_call(url, greeting, speaks=False, instructions=stranger.instructions) as call:
        turn = await call.turn(question.text)
    return Answer(question, turn.said, turn.called)


async def measure(arguments: list[str], n_businesses: int) -> list[tuple[Stranger, list[Answer]]]:
    """Every business asked, in one server.

    Raises: ClientError: the server did not start, or a call broke off.
    """
    found = []
    async with running_server(
        arguments, log=RESULTS / "strangers.log", ready_timeout_s=300.0
    ) as server:
        for stranger in read_strangers()[:n_businesses]:
            asked = (*stranger.right, *stranger.refused)
            found.append((stranger, [await _answer(server.url, stranger, one) for one in asked]))
    return found


def main() -> int:
    command = Benchmark("strangers", "Agents of businesses never seen, asked plainly.")
    command.count("--businesses", 12, "how many of the twelve are asked", at_most=12)
    for flag, told in (
        ("--llm-model", "a model of the server's list, or a file"),
        ("--llm-adapter", "its adapter"),
        ("--engine-weights", "its number format"),
    ):
        command.parser.add_argument(flag, default="", metavar="NAME", help=told)
    chosen = command.parse()
    arguments = ["--preset", "embedded"]
    settings: dict[str, str] = {}
    for flag in ("llm_model", "llm_adapter", "engine_weights"):
        if value := getattr(chosen, flag):
            arguments += [f"--{flag.replace('_', '-')}", value]
            settings[flag] = value
    found = asyncio.run(measure(arguments, chosen.businesses))
    rows = []
    n_right = n_asked = n_refused = n_silent = 0
    for stranger, answers in found:
        right = [one.is_good for one in answers[: len(stranger.right)]]
        refused = [one.is_good for one in answers[len(stranger.right) :]]
        n_right, n_asked = n_right + sum(right), n_asked + len(right)
        n_refused, n_silent = n_refused + sum(refused), n_silent + len(refused)
        print(f"{stranger.name}: {sum(right)} of {len(right)}, refused {sum(refused)}")
        rows += [
            {
                "of": stranger.name,
                "asked": one.question.text,
                "said": one.reply,
                "good": one.is_good,
            }
            for one in answers
        ]
    n_invented = n_silent - n_refused
    bars = [
        Bar("facts said right", 100.0 * n_right / n_asked, _LEAST_RIGHT, "%", at_least=True),
        Bar("refused rightly", 100.0 * n_refused / n_silent, _LEAST_REFUSED, "%", at_least=True),
        Bar("invented", 100.0 * n_invented / n_silent, _MOST_INVENTED, "%"),
    ]
    return command.finish(settings, bars, answers=rows)


if __name__ == "__main__":
    sys.exit(run(main))
