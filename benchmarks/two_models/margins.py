"""Where the small model is not sure: right and wrong replies by their least margin, and the bound.

Twelve businesses that no model has seen are asked as `benchmarks.strangers` asks them, first of the
small model alone, whose margins the server tells. The bound that the wanted share of replies is
under is then served, with a large model that knows every answer, and all of it asked again.
"""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.any_brain.served import Found
from benchmarks.harness.harness import Bar
from benchmarks.strangers import Stranger, read_strangers
from benchmarks.two_models.service import LargeModel, served
from clients.connection import RealtimeConnection, own_key
from clients.errors import ConnectionFailed
from clients.server_process import running_server
from engine.recipes.conversations.plain_questions import Question
from engine.recipes.measuring.plain_answers import Answer

LEAST_BOUND = 0.001  # margins are told, and no reply is under it
WANTED_SHARE = 0.4  # of replies that the large model may end: 60 % stay small
LEAST_AUC = 0.6


@dataclass(frozen=True, slots=True)
class Weighed:
    """One reply of the small model. margin: the least of its clauses, None where none was told."""

    is_right: bool
    margin: float | None
    reasons: tuple[str, ...]


async def measure(found: Found, *, is_quick: bool, n_calls: int, seed: int) -> None:
    strangers = read_strangers()[: 1 if is_quick else 4 * n_calls]
    weighed = await _asked(strangers, LEAST_BOUND)
    told = [one for one in weighed if one.margin is not None]
    right = [one.margin for one in told if one.is_right and one.margin is not None]
    wrong = [one.margin for one in told if not one.is_right and one.margin is not None]
    bound = sorted(one.margin for one in told if one.margin is not None)[
        round(WANTED_SHARE * (len(told) - 1))
    ]
    again = await _asked(strangers, bound)
    n_escalated = sum("unsure" in one.reasons for one in again)
    found.figures.update({
        "questions": len(weighed), "with_margins": len(told), "right_alone": len(right),
        "auc": auc(right, wrong), "bound": bound, "escalated": n_escalated,
        "wrong_escalated": sum(m < bound for m in wrong) / max(1, len(wrong)),
        "right_escalated": sum(m < bound for m in right) / max(1, len(right)),
    })  # fmt: skip
    found.bars.append(
        Bar("margins: AUC of right over wrong", auc(right, wrong), LEAST_AUC, "", at_least=True)
    )
    found.bars.append(Bar("escalated at the bound", float(n_escalated), 1.0, "", at_least=True))


def auc(right: list[float], wrong: list[float]) -> float | None:
    """The probability that a right reply has the greater margin of the two."""
    pairs = [(a > b) + 0.5 * (a == b) for a in right for b in wrong]
    return sum(pairs) / len(pairs) if pairs else None


async def _asked(strangers: tuple[Stranger, ...], bound: float) -> list[Weighed]:
    large = LargeModel(30.0, token_ms=2.0, replies=("As I know, that is so.",))
    weighed = list[Weighed]()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(served(large))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = folder / "server.toml"
        config.write_text(
            f'[cascade]\nlarge = "big"\nleast_margin = {bound}\n'
            f'[[models]]\nname = "big"\nurl = "{url}"\n',
            encoding="utf-8",
        )
        arguments = ("--preset", "embedded", "--config", str(config))
        running = await stack.enter_async_context(running_server(arguments, log=folder / "log"))
        for stranger in strangers:
            for question in (*stranger.right, *stranger.refused):
                weighed.append(await _put(running.url, stranger, question))
    return weighed


async def _put(url: str, stranger: Stranger, question: Question) -> Weighed:
    """One question in a call of its own, for the small model."""
    connection = await RealtimeConnection.open(
        url, key=own_key(url), extras={"voiceloop.timeline": "1"}
    )
    try:
        session = {
            "type": "realtime",
            "output_modalities": ["text"],
            "instructions": stranger.instructions,
            "reasoning": {"effort": "low"},
        }
        await connection.send({"type": "session.update", "session": session})
        for role, kind, text in (
            ("assistant", "output_text", f"Hello, this is {stranger.name}. How can I help?"),
            ("user", "input_text", question.text),
        ):
            item = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
            await connection.send({"type": "conversation.item.create", "item": item})
        await connection.send({"type": "response.create"})
        said, called = "", list[str]()
        async with aclosing(connection.events()) as events:
            async for received in events:
                event = received.event
                match event["type"]:
                    case "response.output_text.done":
                        said += event["text"]
                    case "response.function_call_arguments.done":
                        called.append(event["name"])
                    case "voiceloop.timeline":
                        told = event["timeline"]
                        is_right = Answer(question, said, tuple(called)).is_good
                        reasons = tuple(one["reason"] for one in told.get("speakers", ()))
                        return Weighed(is_right, told.get("least_margin"), reasons)
        raise ConnectionFailed(f"the server ended the call: {connection.ended_by}")
    finally:
        await connection.close()
