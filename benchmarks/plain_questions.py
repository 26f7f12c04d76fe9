"""The plain questions to an agent as it is served: ``python -m benchmarks.plain_questions``.

Each of the thirty questions to the shipped cafe is typed into ``voiceloop serve``, in a call of its
own behind the agent's greeting, and judged by its keyword rule: what the model, the `[[answer]]`s
and the tools make of it together, where `engine.recipes.evaluate_agent` asks the model alone.
``--agent pizzeria`` and ``--agent dentist`` ask another business its twelve turns in one call.
"""

from __future__ import annotations

import asyncio
import sys

from benchmarks.calls.typed_call import TypedCall, typed_call
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar
from clients.server_process import running_server
from engine.recipes.conversations.plain_questions import (
    BUSINESSES,
    Question,
    Questions,
    read_questions,
)
from engine.recipes.measuring.plain_answers import Answer

LEAST_GOOD = {"cafe": 29.0, "pizzeria": 9.0, "dentist": 9.0}


async def put(call: TypedCall, question: Question) -> Answer:
    """One question, and what is said to it."""
    turn = await call.turn(question.text)
    return Answer(question, turn.said, turn.called)


async def ask(url: str, asked: Questions) -> list[Answer]:
    """All of them, in one call or each in its own."""
    greeting = asked.agent["greeting"]
    if asked.is_one_call:
        async with typed_call(url, greeting, speaks=False) as call:
            return [await put(call, question) for question in asked.turns]
    answers = []
    for question in asked.turns:
        async with typed_call(url, greeting, speaks=False) as call:
            answers.append(await put(call, question))
    return answers


async def measure(business: str) -> list[Answer]:
    """Raises: ClientError: the server did not start, or a call broke off."""
    asked = read_questions(business)
    arguments = ("--preset", "embedded", "--agent", str(asked.file))
    async with running_server(arguments, log=RESULTS / "plain_questions.log") as server:
        return await ask(server.url, asked)


def main() -> int:
    command = Benchmark("plain_questions", "Plain questions to an agent as it is served.")
    command.choice("--agent", BUSINESSES, "cafe", "who is asked")
    chosen = command.parse()
    answers = asyncio.run(measure(chosen.agent))
    for answer in answers:
        if not answer.is_good:
            print(f"{answer.question.text}\n    {answer.reply}")
    n_good = sum(answer.is_good for answer in answers)
    least = LEAST_GOOD[chosen.agent]
    bar = Bar(f"of {len(answers)} answered", float(n_good), least, "", at_least=True)
    said = [{"asked": one.question.text, "said": one.reply, "good": one.is_good} for one in answers]
    return command.finish({"agent": chosen.agent}, [bar], answers=said)


if __name__ == "__main__":
    sys.exit(run(main))
