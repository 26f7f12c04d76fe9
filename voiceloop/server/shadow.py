"""Turns of calls that a canary answers too, for nobody to hear.

Owns the task that has its engine answer them, one at a time, as work of the lowest class: what a
turn asked for is taken from the call when that has been answered, tools are not called but say what
they said to the call, and nothing of the answer leaves this file but what is counted of it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Sequence

from msgspec.structs import replace

from voiceloop.backends import Branch, ChatMessage, Generated, LanguageModel, ToolCall, Usage
from voiceloop.canary.trial import ShadowTurn, Trial
from voiceloop.canary.turns import TurnFigures
from voiceloop.errors import VoiceLoopError
from voiceloop.reply.steps import MAX_ROUNDS
from voiceloop.reply.tool_answers import lacking

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
LONGEST_S = 30.0  # of one answer, as a reply that somebody waits for is given
MOST_BUSY = 0.7  # of the engine's time: above it the calls that the canary has need it
# What a tool says that the call did not ask in the same words.
ACCEPTED = json.dumps({"status": "ok"})


class Shadow:
    """trial: whose turns are taken; model: of the canary's engines alone."""

    def __init__(self, trial: Trial, model: LanguageModel) -> None:
        self._trial = trial
        self._model = model
        self._serial = itertools.count()

    async def run(self) -> None:
        """Answer turns for ever."""
        while True:
            is_free = float(getattr(self._model, "utilization", 0.0)) <= MOST_BUSY
            turn = self._trial.take_shadow_turn() if is_free else None
            if turn is None:
                await asyncio.sleep(LOOK_EVERY_S)
            else:
                self._trial.observe_shadow(turn, await self._answer(turn))

    async def _answer(self, turn: ShadowTurn) -> TurnFigures:
        try:
            async with asyncio.timeout(LONGEST_S):
                branch_id = f"shadow-{next(self._serial)}"
                branch = await self._model.branch(
                    branch_id, turn.prompt[:-1], turn.tools, turn.tenant
                )
                try:
                    return await _generate(branch, turn)
                finally:
                    await branch.close()
        except (VoiceLoopError, TimeoutError) as error:
            log.info("a turn was not answered for comparison: %s", error or "it took too long")
        except Exception:  # a bug costs a turn of nobody's, not all that follow
            log.exception("a turn was not answered for comparison")
        return TurnFigures(has_failed=True)


async def _generate(branch: Branch, turn: ShadowTurn) -> TurnFigures:
    """All rounds of one answer. Raises: BackendError."""
    tail: tuple[ChatMessage, ...] = turn.prompt[-1:]
    params = replace(turn.params, is_batch=True, within_ms=0.0)
    n_tokens = n_calls = n_wrong = 0
    token_ms: float | None = None
    for n_more in reversed(range(MAX_ROUNDS)):
        if not n_more:
            params = replace(params, tool_choice="none")
        branch.commit(tail, params)
        calls, usage = await _one_round(branch)
        n_tokens += usage.n_reply_tokens
        token_ms = token_ms or usage.token_ms or None
        wrong = [call for call in calls if not _may_be_made(call, turn)]
        n_calls, n_wrong = n_calls + len(calls), n_wrong + len(wrong)
        if not calls or wrong:
            break
        tail = tuple(ChatMessage("tool", _said(call, turn), (), call.call_id) for call in calls)
        params = replace(params, tool_choice="auto")
    return TurnFigures(
        n_tokens=n_tokens, n_tool_calls=n_calls, n_wrong_tool_calls=n_wrong, token_ms=token_ms
    )


async def _one_round(branch: Branch) -> tuple[Sequence[ToolCall], Usage]:
    calls: list[ToolCall] = []
    async for event in branch.events():
        match event:
            case ToolCall():
                calls.append(event)
            case Generated(usage=usage):
                return calls, usage
    return calls, Usage()


def _may_be_made(call: ToolCall, turn: ShadowTurn) -> bool:
    tool = next((tool for tool in turn.tools if tool.name == call.name), None)
    return tool is not None and not lacking(tool, call.arguments)


def _said(call: ToolCall, turn: ShadowTurn) -> str:
    """What the tool said to the call of these arguments, else to the last of its calls."""
    said = {made.call_id: made for message in turn.answer for made in message.tool_calls}
    last = ACCEPTED
    for message in turn.answer:
        made = said.get(message.tool_call_id or "")
        if made is not None and made.name == call.name:
            last = message.content
            if made.arguments == call.arguments:
                break
    return last
