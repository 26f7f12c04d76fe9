"""Work for a reply while the caller still speaks, on branches of the conversation.

Owns the branch of the open user turn: opened at speech onset, fed with the words as they firm up
(so their KV is resident before the turn ends), asked for P(end of turn) at the first pause, and
handed to the reply that answers. And of every branch the one reader of its events, for its whole
life: so it can change hands while events are under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import cast

from voiceloop.admission.overload import Level
from voiceloop.backends import (
    BESIDE,
    OWN_MODEL,
    Branch,
    ChatMessage,
    DraftedBranch,
    Generated,
    GenerateParams,
    HearingBranch,
    LanguageModel,
    NamedModel,
    OpenSound,
    PreemptiveCall,
    PreemptiveDelta,
    PreemptiveDone,
    RouteSigns,
    Staged,
    TextDelta,
    Thinks,
    Tool,
    ToolCall,
    Verified,
    alone,
    hears,
    words_of,
)
from voiceloop.config import Ahead, AheadPart
from voiceloop.errors import BackendError, Overloaded, VoiceLoopError, error_of
from voiceloop.telemetry.record import Draft

NOTHING_SAID = ChatMessage("user", "")  # of the open turn, before it
PreemptiveEvent = PreemptiveDelta | PreemptiveCall | PreemptiveDone
ReplyEvent = PreemptiveEvent | Thinks | TextDelta | ToolCall | Generated
# A reply's tokens, of which an agent file allows 160 unless it says otherwise. A reader that is
# later than this makes the branch wait.
MAX_UNREAD_EVENTS = 512

KnownEnd = tuple[tuple[str, ...], float | None]  # words, and P(end of turn) after them
PEndCallback = Callable[[tuple[str, ...], float | None], None]


@dataclass(frozen=True, slots=True)
class Context:
    """The beginning that a branch continues: it fits a prompt that begins with the same messages
    and tools.
    """

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()


class Preemptive(Enum):
    """The outcome of the newest preemptive reply that a branch was asked for."""

    NONE = "none"  # none was, or nobody reads it any more
    WANTED = "wanted"
    MADE = "made"  # as much of it as is made ahead
    RESTED = "rested"  # stopped before that, for the caller went on: it may be asked for once more
    LOST = "lost"  # the model gave it up: the same


class LiveBranch:
    """Private to one open turn or reply. said_before: words of the turn that nobody answered,
    sound_before: and their sound.

    model: whose it is, as of `Backends.models`. beside: the same on another model, which reads what
    this one reads, until either is taken; it is closed with this one. draft: the other's, of the
    preemptive reply that was asked for last.
    """

    def __init__(
        self,
        language_model: LanguageModel,
        branch_id: str,
        context: Context,
        on_p_end: PEndCallback | None = None,
        said_before: str = "",
        tenant: str = "",
        model: str = OWN_MODEL,
        sound_before: tuple[bytes, ...] = (),
    ) -> None:
        self.model = model
        self.beside: LiveBranch | None = None
        self.draft: Draft | None = None
        self._on_drafted: Callable[[tuple[int, ...]], None] | None = None
        self.context = context
        self.said_before = said_before
        self.preemptive = Preemptive.NONE
        self._language_model = language_model
        self._hears = hears(language_model)
        self._sound_before = sound_before
        self.open_sound: OpenSound | None = None  # of the open turn
        self._branch_id = branch_id
        self._tenant = tenant
        self._branch: Branch | None = None
        self._opened = asyncio.Event()
        self._on_p_end = on_p_end
        self.staged_words: tuple[str, ...] = ()  # the open turn's, as they were staged last
        self._stages: dict[int, tuple[str, ...]] = {}  # under way, by request
        self._n_stages = 0
        self._p_end: KnownEnd | None = None  # as it came last
        self.signs: tuple[str, RouteSigns] | None = None  # of the turn with these words
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

    def on(self, model: str) -> LiveBranch | None:
        """Return this branch, or the one beside it: of this model; None where neither is."""
        if self.model == model:
            return self
        beside = self.beside
        return beside if beside is not None and beside.model == model else None

    def take(self, model: str) -> LiveBranch | None:
        """As `on`; the other of both is then the one beside."""
        found = self.on(model)
        if found is not None and found is not self:
            self.beside, found.beside = None, self
        return found

    async def _read(self) -> None:
        try:
            self._branch = await self._language_model.branch(
                self._branch_id, self.context.messages, self.context.tools, self._tenant
            )
            self._opened.set()
            if self.open_sound is not None:
                self.hear(self.open_sound)
            if self._on_p_end is not None:  # of the open turn: a reply's is committed at once
                self._stage_words()
            async for event in self._branch.events():
                if isinstance(event, Staged):
                    self._observe(event)
                elif isinstance(event, Verified):
                    self._note_verified(event)
                elif self._is_wanted(event):
                    if isinstance(event, PreemptiveDone):
                        if event.finish_reason == "lost":
                            self.preemptive = Preemptive.LOST
                        elif self.preemptive is Preemptive.WANTED:
                            self.preemptive = Preemptive.MADE
                        if self._on_drafted is not None:  # nobody waits for its text
                            self._on_drafted(event.tokens)
                            continue
                    await self._events.put(event)
            raise BackendError("The language model closed before the end of its reply.")
        except Exception as error:  # a bug costs a turn, not the call
            self._failure = error_of(error)
            self._opened.set()
            await self._events.put(self._failure)
        finally:
            if self._branch is not None:
                await self._branch.close()

    async def opened(self) -> Branch | None:
        """The branch, once it is open; None where it failed to."""
        await self._opened.wait()
        return self._branch

    # --- heard ---

    def hear(self, sound: OpenSound) -> None:
        """Hear more of the open turn's sound."""
        self.open_sound = sound
        if self.beside is not None:
            self.beside.hear(sound)
        if not self._hears or self._branch is None or self.has_failed:
            return
        try:
            cast(HearingBranch, self._branch).hear(sound, self._sound_before)
        except Overloaded:
            pass  # what was not taken goes with the next
        except BackendError as error:
            self._failure = error

    @property
    def sound(self) -> tuple[bytes, ...]:
        """Return the sound of the open turn up to its last pause, with what was said before."""
        pieces = self.open_sound.pieces if self.open_sound is not None else ()
        return self._sound_before + pieces

    def _heard(self, tail: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
        """Return what the model is given of it: one that does not hear is given words alone."""
        return tail if self._hears else words_of(tail)

    # --- staging ---

    def turn_text(self, words: tuple[str, ...]) -> str:
        """The open turn as the model is given it: with what was said before, unanswered."""
        return " ".join((self.said_before, *words) if self.said_before else words)

    def _observe(self, staged: Staged) -> None:
        if staged.route is not None and staged.stage_id == self._n_stages:
            self.signs = self.turn_text(self.staged_words), staged.route
        words = self._stages.pop(staged.stage_id, None)
        if words is None:
            return
        self._p_end = words, staged.p_end_of_turn
        if words == self.staged_words and self._on_p_end is not None:
            self._on_p_end(*self._p_end)

    def stage(self, words: tuple[str, ...]) -> KnownEnd | None:
        """Make the open user turn's words resident; a revision replaces what it changes.

        Returns P(end of turn) where it is known already: at a second pause after the same words,
        or where all of them were stable before the pause. Else `on_p_end` is called once it is.
        """
        if words == self.staged_words:
            return self._p_end if self._p_end is not None and self._p_end[0] == words else None
        self._rest_preemptive()  # the model stops it, for it is to others
        self.staged_words = words
        self._stage_words()
        if self.beside is not None:
            self.beside.stage(words)
        return None

    def stage_stable(self, stable: tuple[str, ...], unstable: tuple[str, ...]) -> KnownEnd | None:
        """Make what will not change resident. What was staged in a pause stays, and what was made
        ahead of it, as long as nothing that is heard is against it. Returns as `stage`.
        """
        staged = self.staged_words
        stands = len(staged) >= len(stable) and (stable + unstable)[: len(staged)] == staged
        return self.stage(staged if stands else stable)

    def _stage_words(self) -> None:
        if self._branch is None or self.has_failed:
            return
        try:
            self._n_stages += 1
            self._stages[self._n_stages] = self.staged_words
            self._branch.stage(self._n_stages, self.turn_text(self.staged_words))
        except Overloaded:
            pass  # the next revision stages these words too
        except BackendError as error:
            self._failure = error

    # --- a preemptive reply ---

    @property
    def newest_attempt(self) -> int:
        return self._n_preemptive

    def begin_preemptive(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
        """Ask for the reply to the user turn that the tail begins with, ahead of that turn's end.

        It takes the place of the one before. Returns whether the branch can make one.
        """
        if self._branch is None or self.has_failed:
            return False
        try:
            self._branch.begin_preemptive(self._n_preemptive + 1, self._heard(tail), params)
        except (BackendError, Overloaded):
            return False
        self._begin_attempt()
        return True

    def _begin_attempt(self) -> None:
        self._n_preemptive += 1
        self.preemptive = Preemptive.WANTED
        self.draft = self._on_drafted = None

    def draft_for(
        self, large: LiveBranch, tail: tuple[ChatMessage, ...], params: GenerateParams
    ) -> None:
        """Draft the preemptive reply that the other was asked for last. It writes it by itself all
        the same, and verifies in one pass what is drafted once that is there.
        """
        if self.has_failed or not isinstance(self._branch, DraftedBranch):
            return
        try:
            self._branch.draft(self._n_preemptive + 1, self._heard(tail), params)
        except (BackendError, Overloaded):
            return
        self._begin_attempt()
        self._on_drafted = partial(large._verify, large.newest_attempt)

    def _verify(self, attempt: int, tokens: tuple[int, ...]) -> None:
        """Have these tokens verified, of a preemptive reply that is not made yet."""
        is_due = attempt == self._n_preemptive and self.preemptive is Preemptive.WANTED
        if not (tokens and is_due and isinstance(self._branch, DraftedBranch)) or self.has_failed:
            return
        with suppress(BackendError, Overloaded):  # it is written without
            self._branch.verify(attempt, tokens)
            self.draft = Draft(len(tokens))

    def _note_verified(self, verified: Verified) -> None:
        if self.draft is not None and verified.attempt == self._n_preemptive:
            self.draft = Draft(self.draft.n_tokens, verified.n_kept)

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

    def drop_preemptive(self) -> None:
        """Drop the preemptive reply: nobody reads it any more."""
        self.stop_preemptive()
        self.preemptive = Preemptive.NONE
        while not self._events.empty():
            self._events.get_nowait()

    def _is_wanted(self, event: ReplyEvent) -> bool:
        """Whether it is no preemptive reply that was replaced, dropped, or overtaken by the
        reply itself.
        """
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
                return self._branch.commit(self._heard(tail), params)
            except VoiceLoopError as refused:
                error = refused
        self._failure = error or BackendError("The conversation at the language model is closed.")
        if not self._events.full():  # else nobody waits, and the failure is found after the rest
            self._events.put_nowait(self._failure)
        return False

    async def commit(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> None:
        """Ask for the reply to `tail`. Raises: BackendError, Overloaded."""
        await self._opened.wait()
        if self._failure is not None:
            raise self._failure
        assert self._branch is not None
        self._branch.commit(self._heard(tail), params)

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
        if self.beside is not None:
            self.beside.close()
        if self._task is not None:
            self._task.cancel()


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
        level: Callable[[], Level] = lambda: Level.NORMAL,
        models: Mapping[str, NamedModel] | None = None,
        staged: Callable[[], tuple[str, ...]] = lambda: (OWN_MODEL,),
    ) -> None:
        """models: as of `Backends`. staged: as of `Router`."""
        self._models = {OWN_MODEL: language_model}
        self._models |= {name: one.model for name, one in (models or {}).items()}
        self._staged = staged
        self._session_id = session_id
        self._tasks = tasks
        self._on_p_end = on_p_end
        self._prefills = ahead.does("prefill")
        self.tenant = tenant
        self._level = level
        # P(end) and preemptive replies need staged words: without prefill, those of a pause.
        needed_by: tuple[AheadPart, ...] = ("prefill", "p_end", "speculative_reply")
        self._enabled = any(map(ahead.does, needed_by))
        self._live: LiveBranch | None = None
        self._n_branches = 0
        self.is_english = True  # of the calls that a reader of words can read

    @property
    def reads_by_itself(self) -> bool:
        """Whether the ends of turns are read by the server's own model, in what it was not fitted
        to: no reader of words knows the caller's language.
        """
        own = self._models[OWN_MODEL]
        return not self.is_english and self._staged()[0] == OWN_MODEL and alone(own) is not own

    def new_branch(
        self,
        context: Context,
        on_p_end: PEndCallback | None = None,
        said_before: str = "",
        model: str = OWN_MODEL,
        sound_before: tuple[bytes, ...] = (),
        kind: str = "",
    ) -> LiveBranch:
        self._n_branches += 1
        branch_id = f"{self._session_id}.b{self._n_branches}{kind}"
        named = self._models[model] if self.is_english else alone(self._models[model])
        live = LiveBranch(
            named, branch_id, context, on_p_end, said_before, self.tenant, model, sound_before
        )
        return live.start(self._tasks)

    def _open_branches(self, context: Context, said: ChatMessage) -> LiveBranch:
        """One of the open turn on each model that reads it; the first tells where it ends."""
        first, *others = self._staged()
        before = said.content, said.sound
        live = self.new_branch(context, self._on_p_end, before[0], first, before[1])
        for other in others:  # there is one at the most
            live.beside = self.new_branch(context, lambda *known: None, before[0], other, before[1])
        return live

    def _reads_on(self, live: LiveBranch) -> bool:
        """Whether it is on the models that read the open turn now."""
        first, *others = self._staged()
        beside = live.beside.model if live.beside is not None else None
        return (live.model, beside) == (first, others[0] if others else None)

    @property
    def live(self) -> LiveBranch | None:
        return self._live

    def signs(self, turn_text: str) -> RouteSigns | None:
        """Return what the route head has read of the open turn with these words; None: nothing."""
        known = self._live.signs if self._live is not None else None
        return known[1] if known is not None and known[0] == turn_text else None

    @property
    def has_time(self) -> bool:
        """Whether the machine has time for what no caller waits for yet."""
        return self._prefills and self._level() is Level.NORMAL

    @property
    def is_open(self) -> bool:
        return self._live is not None or not self._enabled

    def open(self, messages: tuple[ChatMessage, ...], tools: tuple[Tool, ...]) -> None:
        """The caller began to speak: bring the conversation so far into the cache.

        If the last message is the caller's and unanswered, this turn continues it.
        """
        if not self._enabled:
            return
        context, said = _open_turn(messages, tools)
        live = self._live
        if live is not None and not live.has_failed and self._reads_on(live):
            if (live.context, live.said_before) == (context, said.content):
                return
        self.abort()
        self._live = self._open_branches(context, said)

    def follow(self, messages: tuple[ChatMessage, ...], tools: tuple[Tool, ...]) -> bool:
        """The conversation before the open turn may have changed, or the models that read it: where
        one has, bring it and the words staged so far into the cache, for no reply would be asked
        for on what was staged.

        Returns whether it had.
        """
        context, said = _open_turn(messages, tools)
        live = self._live
        if live is None or (live.context == context and self._reads_on(live)):
            return False
        if live.context != context:  # else the new ones read before the old are left
            live.close()
        self._live = self._open_branches(context, said)
        if live.open_sound is not None:
            self._live.hear(live.open_sound)
        self._live.stage(live.staged_words)
        live.close()
        return True

    def hear(self, sound: OpenSound) -> None:
        """Hear more of the open turn's sound."""
        if self._live is not None:
            self._live.hear(sound)

    def observe_words(
        self, stable: tuple[str, ...], unstable: tuple[str, ...], *, full: bool
    ) -> KnownEnd | None:
        """Stage the words that are stable; at a pause (`full`) all, since they may be the turn.

        Returns as `LiveBranch.stage`.
        """
        if self._live is None or not (full or self._prefills):
            return None
        return (
            self._live.stage(stable + unstable)
            if full
            else self._live.stage_stable(stable, unstable)
        )

    def adopt(
        self,
        prompt: tuple[ChatMessage, ...],
        tools: tuple[Tool, ...],
        model: str = OWN_MODEL,
    ) -> tuple[LiveBranch, tuple[ChatMessage, ...]]:
        """The branch of this model that answers `prompt`, and the messages it has to be given yet.

        The open user turn's branch where that continues the same conversation, else a new one.
        """
        live, self._live = self._live, None
        if live is None:
            return self.begin(prompt, tools, model)
        known = live.context
        n = len(known.messages)
        fits = known.tools == tools and len(prompt) > n and prompt[:n] == known.messages
        chosen = live.take(model) if fits else None
        if chosen is not None and not chosen.has_failed:
            return chosen, prompt[n:]
        warm = None  # the one beside it, which may have to go on
        if chosen is not None:
            warm, chosen.beside = chosen.beside, None
        (chosen or live).close()
        begun, tail = self.begin(prompt, tools, model)
        begun.beside = warm
        return begun, tail

    def begin(
        self,
        prompt: tuple[ChatMessage, ...],
        tools: tuple[Tool, ...],
        model: str = OWN_MODEL,
    ) -> tuple[LiveBranch, tuple[ChatMessage, ...]]:
        """As `adopt`, but always on a new branch; the open user turn's stays as it is."""
        return self.new_branch(Context(prompt[:-1], tools), model=model), prompt[-1:]

    def begin_beside(
        self,
        prompt: tuple[ChatMessage, ...],
        tools: tuple[Tool, ...],
        model: str = OWN_MODEL,
    ) -> tuple[LiveBranch, tuple[ChatMessage, ...]]:
        """As `begin`, of a reply that is no part of the conversation."""
        live = self.new_branch(Context(prompt[:-1], tools), model=model, kind=BESIDE)
        return live, prompt[-1:]

    def abort(self) -> None:
        """The caller said nothing after all."""
        if self._live is not None:
            self._live.close()
            self._live = None


def _open_turn(
    messages: tuple[ChatMessage, ...], tools: tuple[Tool, ...]
) -> tuple[Context, ChatMessage]:
    """Return what an open turn continues, and its words so far: the caller's last, which nobody has
    answered.
    """
    if messages and messages[-1].role == "user":
        return Context(messages[:-1], tools), messages[-1]
    return Context(messages, tools), NOTHING_SAID
