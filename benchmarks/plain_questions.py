"""The plain questions to an agent as it is served: ``python -m benchmarks.plain_questions``.

Each of the thirty questions to the shipped cafe is typed into ``voiceloop serve``, in a call of its
own behind the agent's greeting, and judged by its keyword rule: what the model, the `[[answer]]`s
and the tools make of it together, where `engine.recipes.evaluate_agent` asks the model alone.
"""

from __future__ import annotations

import asyncio
import sys

from benchmarks.harness.command_line import benchmark_parser, exit_code, run
from benchmarks.harness.harness import RESULTS, Bar, bar_table, results, write_results
from clients.connection import RealtimeConnection, own_key
from clients.outputs import prepare_folder
from clients.server_process import running_server
from engine.recipes.conversations.plain_questions import Question, read_questions
from engine.recipes.measuring.plain_answers import Answer

AGENT = "cafe"
LEAST_GOOD = 29.0
ANSWER_S = 30.0


async def ask(url: str, greeting: str, question: Question) -> Answer:
    """One question, and what is said to it."""
    connection = await RealtimeConnection.open(url, key=own_key(url), extras={})
    try:
        session = {"type": "realtime", "output_modalities": ["text"]}
        await connection.send({"type": "session.update", "session": session})
        for role, kind, text in (
            ("assistant", "output_text", greeting),
            ("user", "input_text", question.text),
        ):
            item = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
            await connection.send({"type": "conversation.item.create", "item": item})
        await connection.send({"type": "response.create"})
        said, called = "", []
        async with asyncio.timeout(ANSWER_S):
            async for received in connection.events():
                event = received.event
                match event["type"]:
                    case "response.output_text.done":
                        said += event["text"]
                    case "response.function_call_arguments.done":
                        called.append(event["name"])
                    case "response.done" if said or event["response"]["status"] != "completed":
                        break
        return Answer(question, said, tuple(called))
    finally:
        await connection.close()


async def measure() -> list[Answer]:
    """Raises: ClientError: the server did not start, or a call broke off."""
    asked = read_questions(AGENT)
    arguments = ("--preset", "embedded", "--agent", AGENT)
    async with running_server(arguments, log=RESULTS / "plain_questions.log") as server:
        greeting = asked.agent["greeting"]
        return [await ask(server.url, greeting, question) for question in asked.turns]


def main() -> int:
    arguments = benchmark_parser("plain_questions", "Plain questions to the cafe as it is served.")
    arguments.add_argument("--check", action="store_true", help="exit 1 where the bar is missed")
    options = arguments.parse_args()
    prepare_folder(RESULTS)
    answers = asyncio.run(measure())
    for answer in answers:
        if not answer.is_good:
            print(f"{answer.question.text}\n    {answer.reply}")
    n_good = sum(answer.is_good for answer in answers)
    bar = Bar(f"of {len(answers)} answered", float(n_good), LEAST_GOOD, "", at_least=True)
    print(bar_table([bar]))
    said = [{"asked": one.question.text, "said": one.reply, "good": one.is_good} for one in answers]
    print(write_results(results("plain_questions", 0, {"agent": AGENT}, [bar], answers=said)))
    return exit_code([bar], None, is_checked=options.check)


if __name__ == "__main__":
    sys.exit(run(main))
