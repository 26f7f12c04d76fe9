"""A language model behind ``/v1/chat/completions``, streamed (vLLM, SGLang, llama.cpp, OpenAI).

Such a service keeps no branch for us; its prefix cache does what it can. What is staged it is made
to read by requests for one token, where that pays (``open_turn.py``, ``prompt_cache.py``). Closing
a branch in mid-reply closes the connection, which aborts the generation there.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from msgspec.structs import replace

from voiceloop.backends import (
    ChatMessage,
    GenerateParams,
    LanguageEvent,
    OpenSound,
    PreemptiveCall,
    PreemptiveDelta,
    PreemptiveDone,
    Staged,
    TextDelta,
    Thinks,
    Tool,
    Usage,
    words_of,
)
from voiceloop.cluster.pool import Member, Pins, by_prompt
from voiceloop.errors import BackendError, BackendRefused, error_of
from voiceloop.event_stream import TaskStream
from voiceloop.remote.chat_answer import ChatAnswer, chunk_of
from voiceloop.remote.chat_request import begun_body, request_body, tool_json, unanswered
from voiceloop.remote.dialect import MOST_REFUSALS, Dialect, Urgency
from voiceloop.remote.heard_turn import SoundForm, less_sound
from voiceloop.remote.open_turn import OpenTurn
from voiceloop.remote.prompt_cache import Prompt, PromptCache
from voiceloop.remote.service import RemoteService, ServiceRefused

log = logging.getLogger(__name__)

CHAT_PATH = "/chat/completions"
ONE_TOKEN = GenerateParams(max_tokens=1)
# Before the caller has said a word: many a chat template wants a message of theirs at the end.
NO_WORDS_YET = "."


class Place:
    """One service, how it is spoken to, and what it most likely still has of our prompts.

    sound: how much of the caller's it is sent.
    """

    def __init__(
        self,
        service: RemoteService,
        salt_of: Callable[[str], str],
        prompt_cache: PromptCache,
        added: Mapping[str, Any] | None = None,
    ) -> None:
        self.service, self.prompt_cache = service, prompt_cache
        self._salt_of = salt_of
        self.sound = SoundForm.NONE
        self._added = added
        self._dialect: Dialect | None = None
        self._model = ""  # that the dialect is for

    @property
    def dialect(self) -> Dialect:
        """As the service has named itself; one that was not there at the start does so later."""
        service, made = self.service, self._dialect
        if made is None or (made.kind, self._model) != (service.kind, service.model):
            self._model = service.model
            self._dialect = made = Dialect(service.kind, service.model, self._salt_of, self._added)
        return made


class RemoteLanguageModel:
    """``LanguageModel`` over services. A call stays with one while that answers.

    A request that fails before its first token is sent to another.

    A connection is made as the caller begins. ``reads_ahead``: the service is made to read the
    history then, and the words once they are staged, where that pays. ``hears``: it is sent the
    sound of the caller's turn too.
    """

    def __init__(
        self,
        *services: RemoteService,
        reads_ahead: bool = True,
        salt_of: Callable[[str], str] = lambda tenant: tenant,
        added: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = monotonic,
        hears: bool = False,
    ) -> None:
        self.reads_ahead = reads_ahead
        self.hears = hears
        self.clock = clock
        self.places = {one.url: Place(one, salt_of, PromptCache(clock), added) for one in services}
        for place in self.places.values():
            place.sound = SoundForm.PIECES if hears else SoundForm.NONE
        self._pins = Pins()
        self.n_unreported = 0  # tokens read ahead of turns that came to no reply: the next tells

    @property
    def name(self) -> str:
        """The first service's own name of its model."""
        return next(iter(self.places.values())).service.model

    @property
    def reachable(self) -> bool:
        """Whether one of its services would be asked now."""
        return any(place.service.reachable for place in self.places.values())

    @property
    def context_tokens(self) -> int:
        """Return what every service that tells its window takes of prompt and reply; 0: none
        tells.
        """
        told = (place.service.context_tokens for place in self.places.values())
        return min((n for n in told if n), default=0)

    async def branch(
        self,
        branch_id: str,
        history: tuple[ChatMessage, ...],
        tools: tuple[Tool, ...] = (),
        tenant: str = "",
    ) -> RemoteBranch:
        place = self.place_of(branch_id, tenant, history)
        place.service.keep_warm()
        return RemoteBranch(branch_id, self, place, history, tools, tenant)

    def place_of(self, branch_id: str, tenant: str, history: tuple[ChatMessage, ...]) -> Place:
        """The service that has read the most of this call, or of what it begins with."""
        there = [one for one in self.places.values() if one.service.reachable]
        members = [
            Member(one.service.url, one.service.n_open) for one in there or self.places.values()
        ]
        prompt = f"{tenant}\0{history[0].content if history else ''}".encode(errors="replace")
        call = branch_id.partition(".")[0]
        chosen = self._pins.choose(call, members, {}, partial(by_prompt, prompt), stays=True)
        return self.places[chosen.name]

    def another(self, than: Collection[Place]) -> Place | None:
        """One that is there and was not asked yet; the least busy."""
        left = [one for one in self.places.values() if one not in than and one.service.reachable]
        return min(left, key=lambda one: one.service.n_open, default=None)


class RemoteBranch(TaskStream[LanguageEvent]):
    """One conversation's continuation: its messages are sent whole with each request."""

    def __init__(
        self,
        branch_id: str,
        model: RemoteLanguageModel,
        place: Place,
        history: tuple[ChatMessage, ...],
        tools: tuple[Tool, ...],
        tenant: str = "",
    ) -> None:
        super().__init__(branch_id)
        self._model = model
        self._place = place
        self._messages = history
        self._tools = [tool_json(tool) for tool in tools]
        self._tools_text = json.dumps(self._tools) if tools else ""
        self._tenant = tenant
        self._task: asyncio.Task[None] | None = None
        self._attempt: _Attempt | None = None
        self._turn = OpenTurn(self._read, self._pays, self.deliver, self._keep)
        self._open_sound: OpenSound | None = None
        self._sound_before: tuple[bytes, ...] = ()
        self._n_discarded = 0  # reply tokens that nobody is going to hear
        self._n_read_ahead = 0

    async def close(self) -> None:
        await super().close()
        self._model.n_unreported += self._n_read_ahead
        self._n_read_ahead = 0

    # --- staged ---

    def hear(self, sound: OpenSound, before: tuple[bytes, ...]) -> None:
        """Hear the sound; it goes with the words, a piece more at each pause."""
        self._open_sound, self._sound_before = sound, before

    def _open_turn(self, user_text: str) -> tuple[ChatMessage, ...]:
        pieces = self._open_sound.pieces if self._open_sound is not None else ()
        return (ChatMessage("user", user_text or NO_WORDS_YET, sound=self._sound_before + pieces),)

    def stage(self, stage_id: int, user_text: str) -> None:
        """Have the service read what pays: at speech onset the history, later the words."""
        if self._model.reads_ahead and self.live:
            self._turn.stage(stage_id, user_text)
        else:
            self.deliver(Staged(stage_id, 0, 0, None))

    def _pays(self, user_text: str) -> bool:
        return self._place.prompt_cache.pays(self._prompt(self._open_turn(user_text)))

    async def _read(self, user_text: str) -> Usage:
        """Have the service read the turn so far; the token it answers with is thrown away.

        Raises: BackendError, BackendRefused, BackendTimeout.
        """
        self._n_discarded += 1
        turn = self._open_turn(user_text)
        usage = (await self._ask(turn, ONE_TOKEN, Urgency.STAGED, lambda text: None)).usage
        self._n_read_ahead += usage.n_prompt_tokens
        return usage

    # --- a preemptive reply ---

    def begin_preemptive(
        self, attempt: int, tail: tuple[ChatMessage, ...], params: GenerateParams
    ) -> None:
        """An ordinary request, which may be thrown away and is paid for."""
        self._give_up_attempt()
        if self.live and self._task is None:
            self._turn.abort_unless_begins(tail[0].content)
            made = self._attempt = _Attempt(attempt, tail, params)
            made.task = self._keep(self._write_ahead(made), "attempt")

    def stop_preemptive(self) -> None:
        """Stop: what a service began cannot be taken up later, so unless it is whole it is given
        up.
        """
        if self._attempt is not None and not self._attempt.is_whole:
            self.deliver(PreemptiveDone(self._attempt.number, "lost"))
            self._give_up_attempt()

    def _give_up_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None and attempt.task is not None:
            self._n_discarded += len(attempt.pieces)
            attempt.task.cancel()

    async def _write_ahead(self, attempt: _Attempt) -> None:
        try:
            answer = await self._ask(
                attempt.turn,
                attempt.params,
                Urgency.PREEMPTIVE,
                lambda text: attempt.add(text, self),
                lambda: attempt.think(self),
            )
            if not attempt.is_committed:
                generated, calls = answer.finish()
                for call in calls:
                    self.deliver(PreemptiveCall(attempt.number, call.name, call.arguments))
                self.deliver(PreemptiveDone(attempt.number, generated.finish_reason))
                attempt.is_whole = True
                await attempt.committed.wait()
            self._finish(answer, attempt.params)
        except Exception as error:  # a bug too: somebody waits for this
            failure = error_of(error)
            if attempt.is_committed:
                self.fail(failure)
            elif self._attempt is attempt:
                self._attempt = None
                self.deliver(PreemptiveDone(attempt.number, "lost"))

    # --- the reply ---

    def commit(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
        if not self.live:
            return False
        if self._task is not None and not self._task.done():
            self.fail(BackendError("The reply is still under way."))
            return False
        self._turn.end(tail[0].content if tail else "")
        attempt = self._attempt
        if attempt is not None and attempt.answers(tail, params):
            self._attempt = None
            self._messages += attempt.turn
            self._task = attempt.task
            attempt.commit(self)
            return True
        self._give_up_attempt()
        self._messages += (*unanswered(self._messages, tail), *tail)
        self._task = self._keep(self._reply(params), "reply")
        return False

    async def _reply(self, params: GenerateParams) -> None:
        urgency = Urgency.BATCH if params.is_batch else Urgency.COMMITTED
        try:
            answer = await self._ask(
                (),
                params,
                urgency,
                lambda text: self.deliver(TextDelta(text)),
                lambda: self.deliver(Thinks()),
            )
            self._finish(answer, params)
        except Exception as error:  # as above
            self.fail(error_of(error))

    def _finish(self, answer: ChatAnswer, params: GenerateParams) -> None:
        """The reply is whole. Raises: BackendError when it stopped before its end."""
        generated, calls = answer.finish()
        said = params.begins_with + answer.text
        self._messages += (ChatMessage("assistant", said, calls),)
        self._place.prompt_cache.add(self._prompt())
        for call in calls:
            self.deliver(call)
        usage = replace(
            generated.usage,
            n_discarded_tokens=self._n_discarded,
            n_read_ahead_tokens=self._n_read_ahead + self._model.n_unreported,
        )
        self._n_discarded = self._n_read_ahead = self._model.n_unreported = 0
        self.deliver(replace(generated, usage=usage))

    # --- asked ---

    def _prompt(self, turn: tuple[ChatMessage, ...] = ()) -> Prompt:
        return Prompt(self._tenant, self._tools_text, (*self._messages, *turn))

    async def _ask(
        self,
        turn: tuple[ChatMessage, ...],
        params: GenerateParams,
        urgency: Urgency,
        on_text: Callable[[str], None],
        on_thought: Callable[[], None] = lambda: None,
    ) -> ChatAnswer:
        """One request: the conversation so far and `turn`. Its text is passed on as it comes.

        on_thought: called once, where the model thinks before its first word.

        Raises: BackendError, BackendRefused, BackendTimeout.
        """
        asked = _Request(turn, params, urgency, on_text, on_thought)
        tried: list[Place] = []
        while True:
            tried.append(self._place)
            try:
                return await self._ask_place(self._place, asked)
            except BackendRefused:
                raise
            except BackendError as error:
                another = self._model.another(tried)
                is_awaited = urgency is not Urgency.STAGED
                if asked.has_begun or another is None or not is_awaited:
                    raise
                log.warning("%s; another service is asked", error)
                self._place = another

    async def _ask_place(self, place: Place, asked: _Request) -> ChatAnswer:
        """Ask this service. Raises: as `_ask`."""
        messages = self._prompt(asked.turn).messages
        dialect, learned = place.dialect, list[str]()
        n_left, begun = MOST_REFUSALS, asked.params.begins_with
        while True:
            sound, params = place.sound, asked.params
            chat = request_body(place.service.model, messages, self._tools, params, sound)
            wanted = begun_body(chat, begun, continues=dialect.continues) if begun else chat
            body, n_left = dialect.body(wanted, asked.urgency, self._tenant), n_left - 1
            try:
                return await self._ask_once(place, asked, body)
            except ServiceRefused as refusal:
                if (
                    less := less_sound(refusal.said, messages, sound, place.service.url)
                ) is not None:
                    place.sound = min(place.sound, less)
                    continue
                lesson = dialect.learn(refusal.said, body) if n_left else None
                if lesson is None:
                    dialect.forget(learned)
                    raise
                learned += [lesson] if lesson else []

    async def _ask_once(self, place: Place, asked: _Request, body: dict[str, object]) -> ChatAnswer:
        service, cache, prompt = place.service, place.prompt_cache, self._prompt(asked.turn)
        n_unread, started_s = cache.n_unread(prompt), self._model.clock()
        answer = ChatAnswer(begins_inside=place.dialect.begins_inside)
        is_ahead = asked.params is ONE_TOKEN
        async with service.stream(CHAT_PATH, is_ahead=is_ahead, json=body) as response:
            # Read to the very end, past "[DONE]": only then the connection can be used again.
            async with aclosing(service.lines(response)) as lines:
                async for line in lines:
                    had_thought, was_mute = answer.has_thought, not answer.text
                    text = answer.add(chunk_of(line))
                    if answer.has_begun and answer.ttft_ms == 0.0:
                        asked.has_begun = True
                        answer.ttft_ms = 1000 * (self._model.clock() - started_s)
                        cache.observe(prompt, n_unread, answer.ttft_ms)
                    if answer.has_thought and was_mute and not had_thought:
                        asked.on_thought()
                    if text:
                        asked.on_text(text)
        answer.total_ms = 1000 * (self._model.clock() - started_s)
        if not is_ahead:
            place.dialect.observe(answer.thoughts, has_thought=answer.has_thought)
        return answer


@dataclass(slots=True, eq=False)
class _Request:
    """One answer that is wanted, whichever service gives it. has_begun: its first token is here."""

    turn: tuple[ChatMessage, ...]
    params: GenerateParams
    urgency: Urgency
    on_text: Callable[[str], None]
    on_thought: Callable[[], None]
    has_begun: bool = False


@dataclass(slots=True, eq=False)
class _Attempt:
    """A reply that was begun before anybody asked for it; ``commit`` makes it the one asked for."""

    number: int
    turn: tuple[ChatMessage, ...]
    params: GenerateParams
    pieces: list[str] = field(default_factory=list)
    committed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    is_whole: bool = False
    has_thought: bool = False

    @property
    def is_committed(self) -> bool:
        return self.committed.is_set()

    def answers(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
        """Whether it is the reply to these words."""
        return params == self.params and words_of(self.turn) == words_of(tail)

    def add(self, text: str, branch: RemoteBranch) -> None:
        self.pieces.append(text)
        branch.deliver(TextDelta(text) if self.is_committed else PreemptiveDelta(self.number, text))

    def think(self, branch: RemoteBranch) -> None:
        self.has_thought = True
        branch.deliver(Thinks(None if self.is_committed else self.number))

    def commit(self, branch: RemoteBranch) -> None:
        self.committed.set()
        if self.has_thought:
            branch.deliver(Thinks())
        if self.pieces:
            branch.deliver(TextDelta("".join(self.pieces)))
