"""The rows of the embedded agent's card as callers meet them: ``python -m benchmarks.agent_card``.

The cases of `engine.recipes.evaluate_agent`, each typed to a server in a call of its own behind its
history: the chain of answerers goes before the model. ``--quote never``: the model answers alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from contextlib import aclosing
from pathlib import Path
from typing import Any

from benchmarks.calls.typed_call import typed_call
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar
from clients.connection import RealtimeConnection, own_key, typed
from clients.server_process import running_server
from engine.recipes.conversations.plain_questions import BUSINESSES, Questions, read_questions
from engine.recipes.evaluate_agent import EMBEDDED_AGENT, evaluate, kept, told
from engine.recipes.measuring.evaluation import Evaluation, Figure
from engine.recipes.measuring.plain_answers import Answer
from engine.recipes.model.chat_format import CALL_CLOSE, CALL_OPEN

CALLER = "caller"  # the agent of the generated calls: its instructions and tools are the session's
# What the issue asks of a row, above the recipe's own bar.
LEAST = {
    "obeys the system prompt's facts": 0.92,
    "reply uses the tool's result": 0.95,
    "right tool call with right arguments": 0.92,
    "repeats the caller's words that gold repeats": 0.75,
    "refuses and redirects out-of-scope questions": 0.97,
    "another business by its agent file": 0.88,
}


async def reply(url: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    """What is said behind these messages, and the calls as the recipes write them.

    Raises: ClientError: there is no server, or it refuses the call.
    """
    connection = await RealtimeConnection.open(url, key=own_key(url), extras={"agent": CALLER})
    try:
        is_told = bool(messages) and messages[0]["role"] == "system"
        session: dict[str, Any] = {
            "type": "realtime", "output_modalities": ["text"],
            "instructions": messages[0]["content"] if is_told else "",
            "tools": [{"type": "function", **tool["function"]} for tool in tools],
        }  # fmt: skip
        await connection.send({"type": "session.update", "session": session})
        for item in _items(messages[is_told:]):
            await connection.send({"type": "conversation.item.create", "item": item})
        await connection.send({"type": "response.create"})
        said = ""
        async with aclosing(connection.events()) as events:
            async for received in events:
                event = received.event
                if event["type"] == "response.output_text.done":
                    said += event["text"]
                elif event["type"] == "response.function_call_arguments.done":
                    name, arguments = json.dumps(event["name"]), event["arguments"]
                    call = f'{{"name": {name}, "arguments": {arguments}}}'
                    said += CALL_OPEN + call + CALL_CLOSE
                elif event["type"] == "response.done":
                    break
        return said.strip()
    finally:
        await connection.close()


def _items(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A conversation's items; each call has the result that follows it."""
    items: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        content = message["content"]
        if message["role"] == "user":
            items.append(typed(content))
        elif message["role"] == "tool":
            items.append(
                {"type": "function_call_output", "call_id": f"call_{number - 1}", "output": content}
            )
        else:
            if content:
                said = [{"type": "output_text", "text": content}]
                items.append({"type": "message", "role": "assistant", "content": said})
            for call in message.get("tool_calls", ()):
                arguments = json.dumps(call["function"]["arguments"])
                items.append({
                    "type": "function_call", "call_id": f"call_{number}",
                    "name": call["function"]["name"], "arguments": arguments,
                })  # fmt: skip
    return items


async def _answers(url: str, asked: Questions) -> list[Answer]:
    """Put to a business in one call, or each in a call of its own."""
    answers, greeting = [], asked.agent["greeting"]
    for turns in [asked.turns] if asked.is_one_call else [(turn,) for turn in asked.turns]:
        async with typed_call(url, greeting, speaks=False, agent=asked.file.stem) as call:
            for question in turns:
                turn = await call.turn(question.text)
                answers.append(Answer(question, turn.said, turn.called))
    return answers


class ServedEvaluation(Evaluation):
    """Every case, and every question to an agent's file, answered by the server at this URL."""

    def __init__(self, url: str, n_calls: int, seed: int) -> None:
        super().__init__(
            EMBEDDED_AGENT, None, n_calls, seed,
            served=lambda messages, tools: asyncio.run(reply(url, messages, tools)),
        )  # fmt: skip
        self._url = url

    def plain_answers(self, questions: Questions) -> list[Answer]:
        return asyncio.run(_answers(self._url, questions))


async def measure(quote: str, quick: bool, seed: int) -> tuple[list[Figure], ServedEvaluation]:
    """Raises: ClientError: the server did not start, or a call broke off."""
    with tempfile.TemporaryDirectory() as name:
        files = [read_questions(business).file for business in BUSINESSES]
        texts = {file.stem: file.read_text() for file in files}
        texts[CALLER] = 'name = "Caller"\ninstructions = "You answer the telephone."\n'
        for stem, text in texts.items():
            (Path(name) / f"{stem}.toml").write_text(f'quote = "{quote}"\n{text}')
        config = Path(name) / "server.conf"
        config.write_text("[limits]\nadmit_by_load = false\n")
        arguments = ["--preset", "embedded", "--config", str(config), "--agents", name]
        log = RESULTS / "agent_card.log"
        async with running_server(arguments, log=log, ready_timeout_s=300.0) as server:
            return await asyncio.to_thread(_measured, server.url, quick, seed)


def _measured(url: str, quick: bool, seed: int) -> tuple[list[Figure], ServedEvaluation]:
    evaluation = ServedEvaluation(url, 40 if quick else 200, seed)
    figures = []
    for figure in evaluate(evaluation, Path(), quick, is_served=True):
        figure.bar = LEAST.get(figure.name, figure.bar)
        figures.append(figure)
        print(told(figure), flush=True)
    return figures, evaluation


def main() -> int:
    command = Benchmark("agent_card", "The embedded agent's card, as callers meet it.")
    command.choice("--quote", ("auto", "always", "never"), "auto", "of the agents")
    command.switch("--quick", "a fifth of the cases")
    command.count("--seed", 7, "draws the cases")
    chosen = command.parse()
    try:
        figures, evaluation = asyncio.run(measure(chosen.quote, chosen.quick, chosen.seed))
    except FileNotFoundError as error:  # no dialogues
        return command.without_results(str(error))
    bars = [
        Bar(one.name, 100 * one.value, 100 * one.bar, "%", at_least=not one.at_most)
        for one in figures
        if one.bar is not None
    ]
    return command.finish({"quote": chosen.quote}, bars, **kept(figures, evaluation))


if __name__ == "__main__":
    sys.exit(run(main))
