"""One branch of the conversation in the language model: opened, staged, and committed by a reply.

Owns the one reader of the branch's events, for the branch's whole life: so it can change hands
(from the open user turn to the reply that answers it) while events are under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum

from voiceloop.backends import (
    Branch,
    ChatMessage,
    Generated,
    GenerateParams,
    LanguageModel,
    PreemptiveCall,
    PreemptiveDelta,
    PreemptiveDone,
    Staged,
    TextDelta,
    Thinks,
    Tool,
    ToolCall,
)
from voiceloop.errors import BackendError, Overloaded, VoiceLoopError, error_of

PreemptiveEvent = PreemptiveDelta | PreemptiveCall | PreemptiveDone
ReplyEvent = PreemptiveEvent | Thinks | TextDelta | ToolCall | Generated
# A reply's tokens, of which an agent file allows 160 unless it says otherwise. A reader that is
# later than this makes the branch wait.
MAX_UNREAD_EVENTS = 512

KnownEnd = tuple[tuple[str, ...], float | None]  # words, and P(end of turn) after them
PEndCallback = Callable[[tuple[str, ...], float | None], None]


@dataclass(frozen=True, slots=True)
class Context:
    """What a branch continues: it fits a prompt that begins with the same messages and tools."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()


class StagedWords:
    """The open user turn's words as they were last staged, and P(end of turn) after them. Pure."""

    def __init__(self) -> None:
        self.words: tuple[str, ...] = ()
        self._n_requests = 0
        self._pending: dict[int, tuple[str, ...]] = {}  # words by request
        self._p_end: KnownEnd | None = None  # as it came last

    def begin_request(self) -> int:
        """The words are being staged; returns the request's number."""
        self._n_requests += 1
        self._pending[self._n_requests] = self.words
        return self._n_requests

    def observe(self, staged: Staged) -> KnownEnd | None:
        """The request is done; returns P(end of turn) if it is that of the present words."""
        words = self._pending.pop(staged.stage_id, None)
        if words is None:
            return None
        self._p_end = (words, staged.p_end_of_turn)
        return self.known_end

    @property
    def known_end(self) -> KnownEnd | None:
        """P(end of turn) after the present words."""
        return self._p_end if self._p_end is not None and self._p_end[0] == self.words else None


class Preemptive(Enum):
    """What became of the newest preemptive reply that a branch was asked for."""

    NONE = "none"  # none was, or nobody reads it any more
    WANTED = "wanted"
    MADE = "made"  # as much of it as is made ahead
    RESTED = "rested"  # stopped before that, for the caller went on: it may be asked for once more
    LOST = "lost"  # the model gave it up: the same


class LiveBranch:
    """Private to one open turn or reply. said_before: words of the turn that nobody answered."""

    def __init__(
        self,
        language_model: LanguageModel,
        branch_id: str,
        context: Context,
        on_p_end: PEndCallback | None = None,
        said_before: str = "",
        tenant: str = "",
    ) -> None:
        self.context = context
        self.said_before = said_before
        self.preemptive = Preemptive.NONE
        self._language_model = language_model
        self._branch_id = branch_id
        self._tenant = tenant
        self._branch: Branch | None = None
        self._opened = asyncio.Event()
        self._on_p_end = on_p_end
        self._staged = StagedWords()
        self._n_preemptive = 0
        self._events: asyncio.Queue[ReplyEvent | VoiceLoopError] = asyncio.Queue(MAX_UNREAD_EVENTS)
        self._failure: VoiceLoopError | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: asyncio.TaskGroup) -> LiveBranch:
        self._task = tasks.create_task(self._read(), name=f"branch {self._branch_id}")
        return self

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    async def _read(self) -> None:
        try:
            self._branch = await self._language_model.branch(
                self._branch_id, self.context.messages, self.context.tools, self._tenant
            )
            self._opened.set()
            if self._on_p_end is not None:  # of the open turn: a reply's is committed at once
                self._stage_words()
            async for event in self._branch.events():
                if isinstance(event, Staged):
                    self._observe(event)
                elif self._is_wanted(event):
                    if isinstance(event, PreemptiveDone):
                        self._end_preemptive(is_lost=event.finish_reason == "lost")
                    await self._events.put(event)
            raise BackendError("expected the reply's events, found the branch closed")
        except Exception as error:  # a bug costs a turn, not the call
            self._failure = error_of(error)
            self._opened.set()
            await self._events.put(self._failure)
        finally:
            if self._branch is not None:
                await self._branch.close()

    # --- staging ---

    @property
    def staged_words(self) -> tuple[str, ...]:
        """The open turn's, as they were staged last."""
        return self._staged.words

    def turn_text(self, words: tuple[str, ...]) -> str:
        """The open turn as the model is given it: with what was said before, unanswered."""
        return " ".join((self.said_before, *words) if self.said_before else words)

    def _observe(self, staged: Staged) -> None:
        known_end = self._staged.observe(staged)
        if known_end is not None and self._on_p_end is not None:
            self._on_p_end(*known_end)

    def stage(self, words: tuple[str, ...]) -> KnownEnd | None:
        """Make the open user turn's words resident; a revision replaces what it changes.

        Returns P(end of turn) where it is known already: at a second pause after the same words,
        or where all of them were stable before the pause. Else `on_p_end` is called once it is.
        """
        if words == self._staged.words:
            return self._staged.known_end
        self._rest_preemptive()  # the model stops it, for it is to others
        self._staged.words = words
        self._stage_words()
        return None

    def stage_stable(self, stable: tuple[str, ...], unstable: tuple[str, ...]) -> KnownEnd | None:
        """Make what will not change resident. What was staged in a pause stays, and what was made
        ahead of it, as long as nothing that is heard is against it. Returns as `stage`.
        """
        staged = self._staged.words
        stands = len(staged) >= len(stable) and (stable + unstable)[: len(staged)] == staged
        return self.stage(staged if stands else stable)

    def _stage_words(self) -> None:
        if self._branch is None or self.has_failed:
            return
        try:
            number = self._staged.begin_request()
            self._branch.stage(number, self.turn_text(self._staged.words))
        except Overloaded:
            pass  # the next revision stages these words too
        except BackendError as error:
            self._failure = error

    # --- a preemptive reply ---

    @property
    def newest_attempt(self) -> int:
        """The number of the preemptive reply that was asked for last."""
        return self._n_preemptive

    def begin_preemptive(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
        """Ask for the reply to the user turn that the tail begins with, ahead of that turn's end.

        It takes the place of the one before. Returns whether the branch can make one.
        """
        if self._branch is None or self.has_failed:
            return False
        try:
            self._branch.begin_preemptive(self._n_preemptive + 1, tail, params)
        except (BackendError, Overloaded):
            return False
        self._n_preemptive += 1
        self.preemptive = Preemptive.WANTED
        return True

    def stop_preemptive(self) -> None:
        """The caller goes on: generate no more of it for now."""
        if self._branch is None or self.has_failed or self.preemptive is Preemptive.NONE:
            return
        self._rest_preemptive()
        try:
            self._branch.stop_preemptive()
        except (BackendError, Overloaded):
            pass  # it ends by itself

    def _rest_preemptive(self) -> None:
        if self.preemptive is Preemptive.WANTED:
            self.preemptive = Preemptive.RESTED

    def _end_preemptive(self, *, is_lost: bool) -> None:
        """Nothing more of it comes."""
        if is_lost:
            self.preemptive = Preemptive.LOST
        elif self.preemptive is Preemptive.WANTED:
            self.preemptive = Preemptive.MADE

    def drop_preemptive(self) -> None:
        """Nobody reads it any more."""
        self.stop_preemptive()
        self.preemptive = Preemptive.NONE
        while not self._events.empty():
            self._events.get_nowait()

    def _is_wanted(self, event: ReplyEvent) -> bool:
        """Not a preemptive reply that was replaced, dropped, or overtaken by the reply itself."""
        if not isinstance(event, PreemptiveEvent | Thinks) or event.attempt is None:
            return True
        return self.preemptive is not Preemptive.NONE and event.attempt == self._n_preemptive

    # --- the reply ---

    def commit_now(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
        """As `commit`, in place of the preemptive reply; an error comes out of `events`.

        Returns the branch's promise that the reply begins with the preemptive one.
        """
        self.preemptive = Preemptive.NONE
        error = self._failure
        if error is None and self._branch is not None:
            try:
                return self._branch.commit(tail, params)
            except VoiceLoopError as refused:
                error = refused
        self._failure = error or BackendError("expected an open branch, found none")
        if not self._events.full():  # else nobody waits, and the failure is found after the rest
            self._events.put_nowait(self._failure)
        return False

    async def commit(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> None:
        """Ask for the reply to `tail`. Raises: BackendError, Overloaded."""
        await self._opened.wait()
        if self._failure is not None:
            raise self._failure
        assert self._branch is not None
        self._branch.commit(tail, params)

    async def events(self) -> AsyncIterator[ReplyEvent]:
        """Preemptive replies, then the reply by rounds. Raises: BackendError, Overloaded."""
        while True:
            if self._failure is not None and self._events.empty():
                raise self._failure
            event = await self._events.get()
            if isinstance(event, VoiceLoopError):
                raise event
            if self._is_wanted(event):
                yield event

    def close(self) -> None:
        """Idempotent; the branch itself is closed by the reader on its way out."""
        if self._task is not None:
            self._task.cancel()
