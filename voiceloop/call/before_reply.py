"""The agent's class hears of a turn that is over before it is answered: its hook `before_reply`.

Owns the wait for it. A spoken turn's words come a moment later, as words do that a recognizer is
late with, so that whatever happens meanwhile is known to turn-taking; what is prepared stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping

from voiceloop.call.events import CallEvent, TurnPassed
from voiceloop.listening.events import TurnTranscribed
from voiceloop.realtime.commands import CreateResponse
from voiceloop.realtime.protocol import Protocol
from voiceloop.reply.context import ReplyContext
from voiceloop.telemetry.record import Mark


class BeforeReply:
    """The hook `before_reply` of the agent that `context` is of. advance: of the call's one
    loop.
    """

    def __init__(
        self,
        context: ReplyContext,
        protocol: Protocol,
        clock: Callable[[], float],
        advance: Callable[[CallEvent], None],
    ) -> None:
        hooks = context.hooks
        self._hooks = hooks if hooks is not None and hooks.has("before_reply") else None
        self._context = context
        self._protocol = protocol
        self._clock = clock
        self._advance = advance
        # Of which turn's item it was asked last, for it is asked once, and the asking.
        self._asked: tuple[str | None, asyncio.Task[None] | None] = None, None

    def holds(self, event: CallEvent, item_ids: Mapping[int, str]) -> bool:
        """Whether this is a turn's words, of which the class is to hear first: they come again, as
        `TurnPassed`. item_ids: of turns, by segment.
        """
        hooks = self._hooks
        if hooks is None or not isinstance(event, TurnTranscribed) or not event.turn.words:
            return False
        turn, transcribed = event.turn, event
        item_id = item_ids.get(turn.segment)

        async def ask() -> None:
            await self._context.prepared.ask_before(hooks, turn.text, item_id)
            turn.record.mark(Mark.CLASS_ASKED, self._clock())
            self._advance(TurnPassed(transcribed))

        self._begin(ask(), item_id)
        return True

    def respond(self, command: CreateResponse) -> None:
        """Answer what the client asks for; to typed words once the class has heard them."""
        response, hooks = command.response, self._hooks
        if response.closed:
            return
        last = response.messages()[-1:]
        is_turn = bool(last) and last[0].role == "user" and response.request.input is None
        item_id, (asked_of, asking) = self._protocol.conversation.newest_turn_id, self._asked
        is_asked = item_id is not None and item_id == asked_of
        is_over = is_asked and (asking is None or asking.done())
        if hooks is None or not is_turn or response.is_out_of_band or is_over:
            self._advance(command)
            return
        words = last[0].content

        async def ask() -> None:
            if is_asked and asking is not None:
                await asyncio.wait({asking})
            else:
                await self._context.prepared.ask_before(hooks, words, item_id)
            if not response.closed:
                self._advance(command)

        self._begin(ask(), item_id)

    def _begin(self, asking: Coroutine[None, None, None], item_id: str | None) -> None:
        self._asked = item_id, self._context.tasks.create_task(asking, name="before_reply")
