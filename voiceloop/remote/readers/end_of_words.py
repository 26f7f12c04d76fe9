"""The end of the caller's turn, read by a second model where the one that answers cannot tell it.

A service, or a model that never learned it, gives no P(end of turn) after the words so far. The
embedded engine does, at no cost that the caller waits for. Owns the pair: what is staged goes to
both, what is committed to the model that answers. Without the reader the call goes on, and
endpointing falls back to prosody and words.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from voiceloop.backends import (
    Branch,
    ChatMessage,
    DraftedBranch,
    GenerateParams,
    HearingBranch,
    LanguageEvent,
    LanguageModel,
    OpenSound,
    SparedModel,
    SpeakingBranch,
    Staged,
    Tool,
    Voice,
    VoiceOptions,
    VoiceStream,
    hears,
    speaks,
)
from voiceloop.errors import VoiceLoopError
from voiceloop.event_stream import TaskStream

log = logging.getLogger(__name__)

# Whether a turn is over depends on what the agent asked last. Some 500 tokens of English: a prompt
# written for a large model would overflow a small one's context, and cost a prefill at each turn.
MAX_HISTORY_CHARACTERS = 2000


class EndReadingModel:
    """``LanguageModel`` that answers by one model and reads the end of turn by another.

    is_ready: whether the reader takes a branch at once. A call never waits for one that does not.
    """

    def __init__(
        self,
        answering: LanguageModel,
        reading: LanguageModel,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._answering = answering
        self._unread = answering.unread() if isinstance(answering, SparedModel) else answering
        self._reading = reading
        self._is_ready = is_ready

    @property
    def alone(self) -> LanguageModel:
        """The model that answers: the reader beside it knows English alone."""
        return self._answering

    @property
    def hears(self) -> bool:
        """Whether the model that answers does."""
        return hears(self._answering)

    @property
    def speaks(self) -> bool:
        """The same."""
        return speaks(self._answering)

    @property
    def utilization(self) -> float:
        """Return the load of the model that answers (`Backends.utilization`); 0 where it cannot
        tell.
        """
        return float(getattr(self._answering, "utilization", 0.0))

    def adapted(self, adapter: str) -> EndReadingModel:
        """As `WorkerLanguageModel.adapted`, of the model that answers."""
        answering: Any = self._answering
        return EndReadingModel(answering.adapted(adapter), self._reading, self._is_ready)

    @property
    def tokens(self) -> str:
        """As of `WorkerLanguageModel`."""
        return str(getattr(self._answering, "tokens", ""))

    async def branch(
        self,
        branch_id: str,
        history: tuple[ChatMessage, ...],
        tools: tuple[Tool, ...] = (),
        tenant: str = "",
    ) -> EndReadingBranch:
        """Raises: BackendError when the answering model gives no branch."""
        answering = await self._unread.branch(branch_id, history, tools, tenant)
        if not self._is_ready():
            return EndReadingBranch(branch_id, answering, None)
        reading: Branch | None = None
        try:
            reading = await self._reading.branch(f"{branch_id}.end", recent(history), tenant=tenant)
        except VoiceLoopError as error:
            log.warning("the end of turn is not read: %s", error)
        except BaseException:
            await answering.close()
            raise
        return EndReadingBranch(branch_id, answering, reading)


def recent(history: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    """The last messages that were said aloud, within `MAX_HISTORY_CHARACTERS`."""
    kept: list[ChatMessage] = []
    n_characters = 0
    for message in reversed(history):
        if message.role not in ("user", "assistant") or not message.content:
            continue
        n_characters += len(message.content)
        if n_characters > MAX_HISTORY_CHARACTERS:
            break
        kept.append(ChatMessage(message.role, message.content))
    return tuple(reversed(kept))


class EndReadingBranch(TaskStream[LanguageEvent]):
    """One conversation's continuation in both models."""

    def __init__(self, branch_id: str, answering: Branch, reading: Branch | None) -> None:
        super().__init__(branch_id)
        self._answering = answering
        self._reading = reading
        self._unread: list[int] = []  # stages the reader has not answered
        self._held: tuple[int, str] | None = None  # staged at the reader alone so far
        self._resident = Staged(0, 0, 0, None)  # in the cache of the model that answers
        self._keep(self._relay(), "answers")
        if reading is not None:
            self._keep(self._read(reading), "ends")

    def hear(self, sound: OpenSound, before: tuple[bytes, ...]) -> None:
        cast(HearingBranch, self._answering).hear(sound, before)

    def speak(self, stream_id: str, options: VoiceOptions, beside: Voice) -> VoiceStream:
        return cast(SpeakingBranch, self._answering).speak(stream_id, options, beside)

    def stage(self, stage_id: int, user_text: str) -> None:
        """Stage at the model that answers once it is known whether a reply is made ahead: that
        takes the words along, and a pass for them alone would keep it waiting.
        """
        if self._reading is None:
            self._answering.stage(stage_id, user_text)
            return
        self._unread.append(stage_id)
        self._held = stage_id, user_text
        self._reading.stage(stage_id, user_text)

    async def events(self) -> AsyncIterator[LanguageEvent]:
        """As `EventStream.events`; who takes what was read begins a reply at once, or none."""
        async for event in super().events():
            yield event
            held = self._held
            if held is not None and isinstance(event, Staged) and event.stage_id == held[0]:
                self._held = None
                self._answering.stage(*held)

    def begin_preemptive(
        self, attempt: int, tail: tuple[ChatMessage, ...], params: GenerateParams
    ) -> None:
        self._held = None
        self._answering.begin_preemptive(attempt, tail, params)

    def draft(self, attempt: int, tail: tuple[ChatMessage, ...], params: GenerateParams) -> None:
        """Draft with models that make the same tokens alone."""
        assert isinstance(self._answering, DraftedBranch)
        self._held = None
        self._answering.draft(attempt, tail, params)

    def verify(self, attempt: int, tokens: tuple[int, ...]) -> None:
        assert isinstance(self._answering, DraftedBranch)
        self._answering.verify(attempt, tokens)

    def stop_preemptive(self) -> None:
        self._answering.stop_preemptive()

    def commit(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
        self._held = None
        return self._answering.commit(tail, params)

    async def close(self) -> None:
        await super().close()
        await self._answering.close()
        if self._reading is not None:
            await self._reading.close()

    async def _relay(self) -> None:
        try:
            async for event in self._answering.events():
                if not isinstance(event, Staged):
                    self.deliver(event)
                    continue
                self._resident = event
                if event.stage_id not in self._unread:  # else the reader's answer tells it
                    self.deliver(self._staged(event.stage_id, None))
        except VoiceLoopError as error:
            self.fail(error)

    async def _read(self, reading: Branch) -> None:
        """Pass P(end of turn) on, with the tokens that are resident where the reply is made."""
        try:
            async for event in reading.events():
                if isinstance(event, Staged):
                    if event.stage_id in self._unread:
                        self._unread.remove(event.stage_id)
                    self.deliver(self._staged(event.stage_id, event.p_end_of_turn))
        except VoiceLoopError as error:
            log.warning("the end of turn is no longer read: %s", error)
            self._reading = None
            await reading.close()
            unread, self._unread = self._unread, []
            for stage_id in unread:
                self.deliver(self._staged(stage_id, None))

    def _staged(self, stage_id: int, p_end_of_turn: float | None) -> Staged:
        known = self._resident if self._resident.stage_id == stage_id else Staged(0, 0, 0, None)
        return Staged(stage_id, known.n_resident, known.n_prefilled, p_end_of_turn, known.route)
