"""What is done for a reply while the caller still speaks.

Owns the branch of the open user turn: opened at speech onset, fed with the words as they firm up
(so their KV is resident before the turn ends), asked for P(end of turn) at the first pause, and
handed to the turn that answers. `LiveBranch` keeps one reader on the branch's events for its whole
life, so the branch can change hands while events are under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

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
    Tool,
    ToolCall,
)
from voiceloop.config import Ahead
from voiceloop.errors import BackendError, Overloaded, VoiceLoopError, error_of

ReplyEvent = PreemptiveDelta | PreemptiveCall | PreemptiveDone | TextDelta | ToolCall | Generated
MAX_UNREAD_EVENTS = 512  # a reply's tokens; a reader that is later than this waits

KnownEnd = tuple[tuple[str, ...], float | None]  # words, and P(end of turn) after them
PEndCallback = Callable[[tuple[str, ...], float | None], None]


@dataclass(frozen=True, slots=True)
class Context:
    """What a branch continues: it fits a prompt that begins with the same messages and tools."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()


class LiveBranch:
    """A branch that is being opened, staged, and at last committed by a turn."""

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
        self._language_model = language_model
        self._branch_id = branch_id
        self._on_p_end = on_p_end
        self._tenant = tenant
        self._branch: Branch | None = None
        self._opened = asyncio.Event()
        self._events: asyncio.Queue[ReplyEvent | VoiceLoopError] = asyncio.Queue(MAX_UNREAD_EVENTS)
        self._failure: VoiceLoopError | None = None
        self._words: tuple[str, ...] = ()
        self._n_staged = 0
        self._n_drafts = 0
        self._drafts_wanted = False
        self.draft_is_lost = False  # the newest: the same turn may be drafted once more
        self._staged_words: dict[int, tuple[str, ...]] = {}
        self._p_end: KnownEnd | None = None  # after these words
        self._task: asyncio.Task[None] | None = None
        self.n_resident = 0

    def start(self, tasks: asyncio.TaskGroup) -> LiveBranch:
        self._task = tasks.create_task(self._read(), name=f"branch {self._branch_id}")
        return self

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def turn_text(self, words: tuple[str, ...]) -> str:
        """The open turn as the model will be given it: with what was said before, unanswered."""
        return " ".join((self.said_before, *words) if self.said_before else words)

    async def _read(self) -> None:
        try:
            self._branch = await self._language_model.branch(
                self._branch_id, self.context.messages, self.context.tools, self._tenant
            )
            self._opened.set()
            self._stage_words()
            async for event in self._branch.events():
                if isinstance(event, Staged):
                    self._observe(event)
                elif self._is_wanted(event):
                    if isinstance(event, PreemptiveDone) and event.finish_reason == "lost":
                        self.draft_is_lost = True
                    await self._events.put(event)
            raise BackendError("expected the reply's events, found the branch closed")
        except Exception as error:  # a bug costs a turn, not the call
            self._failure = error_of(error)
            self._opened.set()
            await self._events.put(self._failure)
        finally:
            if self._branch is not None:
                await self._branch.close()

    def _observe(self, staged: Staged) -> None:
        words = self._staged_words.pop(staged.stage_id, None)
        self.n_resident = staged.n_resident
        if words is not None:
            self._p_end = (words, staged.p_end_of_turn)
            if self._on_p_end is not None and self._known_end is not None:
                self._on_p_end(*self._known_end)

    @property
    def _known_end(self) -> KnownEnd | None:
        """P(end of turn), if it is that of the present words."""
        return self._p_end if self._p_end is not None and self._p_end[0] == self._words else None

    def stage(self, words: tuple[str, ...]) -> KnownEnd | None:
        """Make the open user turn's words resident; a revision replaces what it changes.

        Returns P(end of turn) where it is known already: after the words of a second pause, or
        where all of them were stable before it. Else `on_p_end` is called once it is.
        """
        if words != self._words:
            self._words = words
            self._stage_words()
            return None
        return self._known_end

    def _stage_words(self) -> None:
        if self._branch is None or self.failed:
            return
        self._n_staged += 1
        self._staged_words[self._n_staged] = self._words
        try:
            self._branch.stage(self._n_staged, self.turn_text(self._words))
        except Overloaded:
            self._n_staged -= 1  # the next revision stages these words too
        except BackendError as error:
            self._failure = error

    # --- drafts ---

    def speculate(self, text: str, params: GenerateParams) -> int | None:
        """Draft the reply to this user turn; the draft's number, None where it cannot be."""
        if self._branch is None or self.failed:
            return None
        try:
            self._branch.begin_preemptive(self._n_drafts + 1, text, params)
        except (BackendError, Overloaded):
            return None
        self._n_drafts += 1
        self._drafts_wanted, self.draft_is_lost = True, False
        return self._n_drafts

    def stop_draft(self) -> None:
        """The caller goes on: no more of it for now."""
        if self._branch is not None and not self.failed and self._drafts_wanted:
            try:
                self._branch.stop_preemptive()
            except (BackendError, Overloaded):
                pass  # it ends by itself

    def drop_draft(self) -> None:
        """Nobody reads it any more."""
        self.stop_draft()
        self._drafts_wanted = False
        while not self._events.empty():
            self._events.get_nowait()

    def _is_wanted(self, event: ReplyEvent) -> bool:
        match event:
            case (
                PreemptiveDelta(attempt=attempt)
                | PreemptiveCall(attempt=attempt)
                | PreemptiveDone(attempt=attempt)
            ):
                return self._drafts_wanted and attempt == self._n_drafts
        return True

    # --- the reply ---

    def commit_now(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
        """As `commit`, on a branch that has drafted; an error comes out of `events`.

        Returns the branch's promise that the reply begins with the newest draft.
        """
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
        """The reply, round after round. Raises: BackendError, Overloaded."""
        while True:
            if self._failure is not None and self._events.empty():
                raise self._failure
            event = await self._events.get()
            if isinstance(event, VoiceLoopError):
                raise event
            yield event

    def close(self) -> None:
        """Idempotent; the branch itself is closed by the reader on its way out."""
        if self._task is not None:
            self._task.cancel()


@dataclass(slots=True)
class Drafting:
    """The branch whose drafts a held turn reads, and the number of the newest."""

    live: LiveBranch
    number: int


class Anticipation:
    """The open user turn's branch, if there is one."""

    def __init__(
        self,
        language_model: LanguageModel,
        session_id: str,
        tasks: asyncio.TaskGroup,
        on_p_end: PEndCallback,
        ahead: Ahead,
        tenant: str = "",
    ) -> None:
        self._language_model = language_model
        self._session_id = session_id
        self._tasks = tasks
        self._on_p_end = on_p_end
        self._prefills = ahead.prefill
        self._tenant = tenant
        # P(end) and drafts come from staged words: without prefill these are staged at a pause.
        self._enabled = ahead.prefill or ahead.p_end or ahead.speculative_reply
        self._live: LiveBranch | None = None
        self._n_branches = 0

    def new_branch(
        self, context: Context, on_p_end: PEndCallback | None = None, said_before: str = ""
    ) -> LiveBranch:
        self._n_branches += 1
        branch_id = f"{self._session_id}.b{self._n_branches}"
        live = LiveBranch(
            self._language_model, branch_id, context, on_p_end, said_before, self._tenant
        )
        return live.start(self._tasks)

    @property
    def live(self) -> LiveBranch | None:
        """The open turn's branch."""
        return self._live

    @property
    def is_open(self) -> bool:
        return self._live is not None or not self._enabled

    def open(self, messages: tuple[ChatMessage, ...], tools: tuple[Tool, ...]) -> None:
        """The caller began to speak: bring the conversation so far into the cache.

        A last message of the caller's that nobody answered is the beginning of this turn.
        """
        if not self._enabled:
            return
        said_before = ""
        if messages and messages[-1].role == "user":
            messages, said_before = messages[:-1], messages[-1].content
        context, live = Context(messages, tools), self._live
        if live is not None and not live.failed:
            if (live.context, live.said_before) == (context, said_before):
                return
        self.abort()
        self._live = self.new_branch(context, self._on_p_end, said_before)

    def observe_words(
        self, stable: tuple[str, ...], unstable: tuple[str, ...], *, full: bool
    ) -> KnownEnd | None:
        """Stage what will stay; at a pause all there is, since it may be the whole turn.

        Returns as `LiveBranch.stage`.
        """
        if self._live is not None and (full or self._prefills):
            return self._live.stage(stable + unstable if full else stable)
        return None

    def adopt(
        self, prompt: tuple[ChatMessage, ...], tools: tuple[Tool, ...]
    ) -> tuple[LiveBranch, tuple[ChatMessage, ...]]:
        """The branch that answers `prompt`, and the messages it still has to be given.

        It is the anticipated one where that continues the same conversation, else a new one.
        """
        live, self._live = self._live, None
        if live is not None:
            known = live.context
            n = len(known.messages)
            if (
                not live.failed
                and known.tools == tools
                and len(prompt) > n
                and prompt[:n] == known.messages
            ):
                return live, prompt[n:]
            live.close()
        return self.begin(prompt, tools)

    def begin(
        self, prompt: tuple[ChatMessage, ...], tools: tuple[Tool, ...]
    ) -> tuple[LiveBranch, tuple[ChatMessage, ...]]:
        """As `adopt`, on a branch of its own; the open user turn's stays as it is."""
        return self.new_branch(Context(prompt[:-1], tools)), prompt[-1:]

    def abort(self) -> None:
        """The caller said nothing after all."""
        if self._live is not None:
            self._live.close()
            self._live = None
