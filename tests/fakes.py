"""Scripted recognizer, language model and voice: instant by default, slow or broken on demand.

They implement the protocols of voiceloop/backends.py in process and know nothing of asyncio's
real time but call_later, so they run on a virtual clock in tests and on the real one behind a real
server in benchmarks ("the runtime alone": every model answers at once).
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from voiceloop.backends import (
    Backends,
    ChatMessage,
    Generated,
    GenerateParams,
    LanguageEvent,
    Partial,
    PreemptiveCall,
    PreemptiveDelta,
    PreemptiveDone,
    RecognizerEvent,
    RecognizerOptions,
    RouteSigns,
    Speech,
    SpeechEnd,
    SpokenWord,
    Staged,
    TextDelta,
    Thinks,
    TokenLogprob,
    Tool,
    ToolCall,
    Transcript,
    Usage,
    Verified,
    VoiceEvent,
    VoiceOptions,
    Word,
)
from voiceloop.errors import BackendError, Overloaded, WorkerLost

T = TypeVar("T")
Action = Literal["fail", "hang", "overload"]
LOUD = 300  # int16 RMS of 10 ms above which the fakes call audio speech (-41 dBFS)


@dataclass(frozen=True, slots=True)
class Fault:
    """At the nth call (from 0) of `at`, after `after` of its events: fail the stream or hang.

    "overload" refuses to open.

    at: "open", "flush", "finalize" (recognizer); "branch", "stage", "commit" (language model);
    "open", "feed", "finish" (voice).
    """

    at: str
    action: Action = "fail"
    nth: int = 0
    after: int = 0


class FaultPlan:
    """Counts calls over all streams of one fake and says which of them goes wrong."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = tuple(faults)
        self._counts: dict[str, int] = {}

    def next(self, at: str) -> Fault | None:
        count = self._counts.get(at, 0)
        self._counts[at] = count + 1
        return next((f for f in self._faults if f.at == at and f.nth == count), None)


class EventPipe(Generic[T]):
    """Events of one stream, each due at its own time, never out of order."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[T | Exception | None] = asyncio.Queue()
        self._pending: deque[T | Exception | None] = deque()
        self._due_s = 0.0
        self.closed = False
        self.hung = False

    def put(self, event: T | Exception | None, delay_ms: float = 0.0) -> None:
        if self.hung or (self.closed and event is not None):
            return
        loop = asyncio.get_running_loop()
        self._due_s = max(self._due_s, loop.time() + delay_ms / 1000.0)
        self._pending.append(event)
        if self._due_s <= loop.time():
            self._deliver()
        else:
            loop.call_at(self._due_s, self._deliver)

    def _deliver(self) -> None:
        """The next event: timers that are due together fire in any order."""
        event = self._pending.popleft()
        if not self.closed or event is None:
            self._queue.put_nowait(event)

    def go_wrong(self, fault: Fault) -> None:
        if fault.action == "hang":
            self.hung = True
        else:
            self.put(WorkerLost("expected an answer, found a scripted fault"))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._queue.put_nowait(None)

    async def events(self) -> AsyncIterator[T]:
        while True:
            event = await self._queue.get()
            if event is None:
                return
            if isinstance(event, Exception):
                raise event
            yield event


def loud_ms(samples: NDArray[np.int16], rate_hz: int = 16_000) -> float:
    """Milliseconds of `samples` [n] whose 10 ms frames are loud."""
    frame = rate_hz // 100
    n_frames = len(samples) // frame
    frames = samples[: n_frames * frame].astype(np.float64).reshape(n_frames, frame)
    return 10.0 * int((np.sqrt((frames**2).mean(axis=1)) > LOUD).sum()) if n_frames else 0.0


# --- recognizer ---------------------------------------------------------------------------------


class FakeRecognizerStream:
    def __init__(self, owner: FakeRecognizer, options: RecognizerOptions) -> None:
        self._owner = owner
        self.options = options
        self._pipe: EventPipe[RecognizerEvent] = EventPipe()
        self._segment = 0
        self._rest = np.zeros(0, np.int16)
        self._loud_ms = 0.0
        self._shown = 0
        self.fed_bytes = 0

    def feed(self, samples: bytes) -> None:
        self.fed_bytes += len(samples)
        joined = np.concatenate((self._rest, np.frombuffer(samples, "<i2")))
        whole = len(joined) // 160 * 160
        self._rest = joined[whole:]
        self._loud_ms += loud_ms(joined[:whole])
        words = self._heard()
        if len(words) > self._shown:
            self._shown = len(words)
            self._pipe.put(
                Partial(self._segment, words[:-1], words[-1:]), self._owner.partial_delay_ms
            )

    def _script(self) -> tuple[str, ...]:
        return tuple(self._owner.script(self._owner.n_taken).split()) if self._loud_ms else ()

    def _heard(self) -> tuple[str, ...]:
        script = self._script()
        return script[: int(self._loud_ms / self._owner.ms_per_word)]

    def flush(self) -> None:
        if fault := self._owner.plan.next("flush"):
            self._pipe.go_wrong(fault)
            return
        script = self._script()
        count = -int(-self._loud_ms // self._owner.ms_per_word)  # the word under way counts
        self._shown = max(self._shown, min(count, len(script)))
        self._pipe.put(
            Partial(
                self._segment,
                (),
                script[: self._shown],
                flushed=True,
                p_voice=self._owner.p_voice,
            ),
            self._owner.partial_delay_ms,
        )

    def finalize(self) -> None:
        if fault := self._owner.plan.next("finalize"):
            self._pipe.go_wrong(fault)
            return
        script = self._script()
        if self._loud_ms:
            self._owner.n_taken += 1
        step_ms = self._owner.ms_per_word
        words = tuple(Word(w, i * step_ms, (i + 1) * step_ms) for i, w in enumerate(script))
        self._pipe.put(Transcript(self._segment, words), self._owner.final_delay_ms)
        self._segment += 1
        self._loud_ms, self._shown = 0.0, 0

    def set_options(self, options: RecognizerOptions) -> None:
        self.options = options

    def events(self) -> AsyncIterator[RecognizerEvent]:
        return self._pipe.events()

    async def close(self) -> None:
        self._pipe.close()
        self._owner.open_streams.discard(self)


class FakeRecognizer:
    """Hears the scripted utterances in turn, a word per `ms_per_word` of loud audio.

    transcripts: the words of each segment, cycled; a segment without loud audio is empty and takes
    none. `finalize` always answers with the whole utterance. p_voice: comes with every flush.
    """

    def __init__(
        self,
        transcripts: Sequence[str] = ("hello there",),
        *,
        ms_per_word: float = 250.0,
        partial_delay_ms: float = 0.0,
        final_delay_ms: float = 0.0,
        faults: Sequence[Fault] = (),
        p_voice: float | None = None,
    ) -> None:
        self.transcripts = tuple(transcripts)
        self.p_voice = p_voice
        self.ms_per_word = ms_per_word
        self.partial_delay_ms = partial_delay_ms
        self.final_delay_ms = final_delay_ms
        self.plan = FaultPlan(faults)
        self.n_taken = 0
        self.open_streams: set[FakeRecognizerStream] = set()

    def script(self, index: int) -> str:
        return self.transcripts[index % len(self.transcripts)]

    async def open(self, stream_id: str, options: RecognizerOptions) -> FakeRecognizerStream:
        if fault := self.plan.next("open"):
            await _fail_or_hang(fault)
        stream = FakeRecognizerStream(self, options)
        self.open_streams.add(stream)
        return stream


async def _fail_or_hang(fault: Fault) -> None:
    if fault.action == "hang":
        await asyncio.Event().wait()
    if fault.action == "overload":
        raise Overloaded("expected room for one more stream, found a scripted fault")
    raise BackendError("expected the backend to accept, found a scripted fault")


# --- language model -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """What the fake language model says to one commit; is_cancelled: and is then told to stop.

    text_after: behind the calls. is_malformed: it ends with a call that was never written whole.
    thinks: before it, unheard.
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    is_cancelled: bool = False
    text_after: str = ""
    is_malformed: bool = False
    thinks: bool = False


Replies = Sequence[str | Reply] | Callable[[tuple[ChatMessage, ...]], str | Reply]


def calls_first(
    tool: str, arguments: str = "{}", *, then: str = "{}", call_id: str = "c"
) -> Callable[[tuple[ChatMessage, ...]], Reply]:
    """A call of this tool, and then what is said of what came of it ("{}")."""

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        if messages[-1].role == "tool":
            return Reply(then.replace("{}", messages[-1].content))
        return Reply("", (ToolCall(call_id, tool, arguments),))

    return reply


class FakeBranch:
    def __init__(
        self, owner: FakeLanguageModel, history: tuple[ChatMessage, ...], tools: tuple[Tool, ...]
    ) -> None:
        self._owner = owner
        self.messages = list(history)
        self.tools = tools
        self.staged: list[str] = []
        self.attempts: list[str] = []
        self.drafts: list[str] = []
        self.committed: list[GenerateParams] = []
        self._attempt: Attempt | None = None
        self._n_discarded = 0
        self._pipe: EventPipe[LanguageEvent] = EventPipe()

    def stage(self, stage_id: int, user_text: str) -> None:
        if fault := self._owner.plan.next("stage"):
            self._pipe.go_wrong(fault)
            return
        self.staged.append(user_text)
        n = len(user_text.split())
        p = self._owner.p_end_of_turn(user_text)
        self._pipe.put(Staged(stage_id, n, 1, p, self._owner.route), self._owner.stage_delay_ms)

    def begin_preemptive(
        self, attempt: int, tail: tuple[ChatMessage, ...], params: GenerateParams
    ) -> None:
        self._drop_attempt()
        self.attempts.append(tail[0].content)
        if fault := self._owner.plan.next("begin_preemptive"):
            self._pipe.go_wrong(fault)
            return
        messages = (*self.messages, *tail)
        reply = self._owner.reply_to(messages, len(self._owner.prompts))
        now_s = asyncio.get_running_loop().time()
        made = self._attempt = Attempt(attempt, tail, reply, now_s)
        events: list[LanguageEvent] = [
            PreemptiveDelta(attempt, piece) for piece in _tokens(reply.text)
        ]
        events += [PreemptiveCall(attempt, call.name, call.arguments) for call in reply.tool_calls]
        events.append(PreemptiveDone(attempt, "stop"))
        made.events.extend(events)
        if reply.thinks:
            self._pipe.put(Thinks(attempt))
        for index in range(len(events)):
            delay_ms = self._owner.ttft_ms + index * self._owner.ms_per_token
            loop = asyncio.get_running_loop()
            made.timers.append(loop.call_later(delay_ms / 1000.0, self._deliver, made))

    def draft(self, attempt: int, tail: tuple[ChatMessage, ...], params: GenerateParams) -> None:
        """Its words are its tokens, and come when the last of them is there."""
        self.drafts.append(tail[0].content)
        reply = self._owner.reply_to((*self.messages, *tail), len(self._owner.prompts))
        tokens = tuple(map(_token, _tokens(reply.text)))
        delay_ms = self._owner.ttft_ms + len(tokens) * self._owner.ms_per_token
        self._pipe.put(PreemptiveDone(attempt, "stop", tokens), delay_ms)

    def verify(self, attempt: int, tokens: tuple[int, ...]) -> None:
        """What stands of them is there at once."""
        made = self._attempt
        assert made is not None and made.number == attempt, "a stale draft was sent"
        own = [_token(piece) for piece in _tokens(made.reply.text)]
        pairs = enumerate(zip(own, tokens, strict=False))
        n_kept = next((i for i, (a, b) in pairs if a != b), min(len(own), len(tokens)))
        for timer in made.timers[made.n_made : n_kept]:
            timer.cancel()
        while made.n_made < n_kept:
            self._deliver(made)
        self._pipe.put(Verified(attempt, n_kept))

    def _deliver(self, attempt: Attempt) -> None:
        """The next event: timers that are due together fire in any order."""
        event = attempt.events.popleft()
        attempt.n_made += isinstance(event, PreemptiveDelta)
        self._pipe.put(event)

    def stop_preemptive(self) -> None:
        if self._attempt is not None and self._owner.loses_attempts and self._attempt.events:
            self._pipe.put(PreemptiveDone(self._attempt.number, "lost"))
            self._drop_attempt()
        else:
            self._stop_attempt()

    def _stop_attempt(self) -> None:
        if self._attempt is not None:
            for timer in self._attempt.timers:
                timer.cancel()

    def _drop_attempt(self) -> Attempt | None:
        self._stop_attempt()
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            self._n_discarded += attempt.n_made
        return attempt

    def commit(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
        fault = self._owner.plan.next("commit")
        self.messages.extend(tail)
        self.committed.append(params)
        made = self._drop_attempt()
        is_kept = made is not None and tail == made.tail
        self._owner.prompts.append(tuple(self.messages))
        reply = self._must_call(params) or self._owner.reply_to(tuple(self.messages))
        tells = params.logprobs is not None and self._owner.tells_logprobs
        events: list[LanguageEvent] = [
            TextDelta(piece, (self._owner.logprob(piece),) if tells else ())
            for piece in _tokens(reply.text)
        ]
        cut = len(events) > params.max_tokens
        events = events[: params.max_tokens]
        events.extend(reply.tool_calls)
        events.extend(map(TextDelta, _tokens(reply.text_after)))
        reason: Any = "length" if cut else "stop"
        if reply.tool_calls:
            reason = "tool_calls"
        if reply.is_malformed:
            reason = "malformed_call"
        if reply.is_cancelled:
            reason = "cancelled"
        n_reply = len(events)
        n_kept = made.n_kept(reply) if made is not None else 0
        n_discarded, self._n_discarded = self._n_discarded - n_kept, 0
        usage = Usage(len(self.messages), 0, n_reply, n_discarded)
        events.append(Generated(reason, usage))
        if reply.thinks:
            self._pipe.put(Thinks())
        delay_ms = self._owner.ttft_ms if n_kept == 0 else 0.0
        for index, event in enumerate(events):
            if fault is not None and index == fault.after:
                self._pipe.go_wrong(fault)
                return is_kept
            self._pipe.put(event, delay_ms)
            if index >= n_kept:
                delay_ms += self._owner.ms_per_token
        self.messages.append(ChatMessage("assistant", reply.text, reply.tool_calls))
        return is_kept

    def _must_call(self, params: GenerateParams) -> Reply | None:
        """A call of the first tool where ``tool_choice`` leaves no other reply."""
        if not self.tools or params.tool_choice in ("auto", "none"):
            return None
        return Reply("", (ToolCall(f"call_{id(self)}", self.tools[0].name, '{"day": "monday"}'),))

    def events(self) -> AsyncIterator[LanguageEvent]:
        return self._pipe.events()

    async def close(self) -> None:
        self._stop_attempt()
        self._pipe.close()
        self._owner.open_branches.discard(self)


@dataclass(slots=True)
class Attempt:
    """A reply nobody has asked for yet, and how much of it was made."""

    number: int
    tail: tuple[ChatMessage, ...]
    reply: Reply
    began_s: float
    n_made: int = 0
    events: deque[LanguageEvent] = field(default_factory=deque)
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    def n_kept(self, reply: Reply) -> int:
        """Words made that the reply asked for begins with."""
        pairs = zip(_tokens(self.reply.text)[: self.n_made], _tokens(reply.text), strict=False)
        return next((i for i, (old, new) in enumerate(pairs) if old != new), self.n_made)


def _token(piece: str) -> int:
    return zlib.crc32(piece.encode())


def _tokens(text: str) -> list[str]:
    pieces = text.split(" ")
    return [piece if i == 0 else " " + piece for i, piece in enumerate(pieces)] if text else []


class FakeLanguageModel:
    """Answers each commit with the next scripted reply, a word per token.

    replies: cycled, or a function of all messages. p_end_of_turn, route: of the staged text.
    loses_attempts: one that is stopped before it is whole is lost, as with a remote service.
    """

    def __init__(
        self,
        replies: Replies = ("Sure, I can help you with that.",),
        *,
        ttft_ms: float = 0.0,
        ms_per_token: float = 0.0,
        stage_delay_ms: float = 0.0,
        p_end_of_turn: Callable[[str], float | None] = lambda text: None,
        route: RouteSigns | None = None,
        loses_attempts: bool = False,
        faults: Sequence[Fault] = (),
    ) -> None:
        self.tells_logprobs = True
        self.loses_attempts = loses_attempts
        self._replies = replies
        self.ttft_ms = ttft_ms
        self.ms_per_token = ms_per_token
        self.stage_delay_ms = stage_delay_ms
        self.p_end_of_turn = p_end_of_turn
        self.route = route
        self.plan = FaultPlan(faults)
        self.utilization = 0.0
        self.prompts: list[tuple[ChatMessage, ...]] = []  # what each commit answered to
        self.branches: list[FakeBranch] = []
        self.open_branches: set[FakeBranch] = set()

    def reply_to(self, messages: tuple[ChatMessage, ...], index: int | None = None) -> Reply:
        """The reply to the newest prompt; index: to one that is not among `prompts` yet."""
        if callable(self._replies):
            reply = self._replies(messages)
        else:
            index = len(self.prompts) - 1 if index is None else index
            reply = self._replies[index % len(self._replies)]
        return reply if isinstance(reply, Reply) else Reply(reply)

    def logprob(self, piece: str) -> TokenLogprob:
        return TokenLogprob(piece, -0.5, ((piece, -0.5),))

    async def branch(
        self,
        branch_id: str,
        history: tuple[ChatMessage, ...],
        tools: tuple[Tool, ...] = (),
        tenant: str = "",
    ) -> FakeBranch:
        if fault := self.plan.next("branch"):
            await _fail_or_hang(fault)
        branch = FakeBranch(self, history, tools)
        self.branches.append(branch)
        self.open_branches.add(branch)
        return branch


# --- voice --------------------------------------------------------------------------------------


RISE_FROM_HZ = 500.0  # of a tone that rises


class FakeVoiceStream:
    def __init__(self, owner: FakeVoice) -> None:
        self._owner = owner
        self._pipe: EventPipe[VoiceEvent] = EventPipe()
        self._pending = ""
        self._n_chars = 0
        self._n_samples = 0

    def feed(self, text: str) -> None:
        if fault := self._owner.plan.next("feed"):
            self._pipe.go_wrong(fault)
            return
        self._pending += text
        while (end := self._word_end()) > 0:
            self._speak(self._pending[:end])
            self._pending = self._pending[end:]

    def _word_end(self) -> int:
        """Characters up to the first space after a word; 0 while the word may go on."""
        stripped = self._pending.lstrip()
        space = stripped.find(" ")
        return len(self._pending) - len(stripped) + space if space > 0 else 0

    def _speak(self, piece: str) -> None:
        word = piece.strip()
        self._n_chars += len(piece)
        if not word:
            return
        rate_hz = self._owner.rate_hz
        start_ms = 1000.0 * self._n_samples / rate_hz
        tone_samples = self._tone(self._owner.ms_per_char * len(word))
        self._n_samples += len(tone_samples)
        end_ms = 1000.0 * self._n_samples / rate_hz
        spoken = SpokenWord(word, start_ms, end_ms, self._n_chars)
        self._pipe.put(
            Speech(tone_samples.astype("<i2").tobytes(), rate_hz, (spoken,)),
            self._owner.first_audio_ms if start_ms == 0 else self._owner.ms_per_audio_word,
        )

    def _tone(self, ms: float) -> NDArray[np.int16]:
        rate_hz, rise = self._owner.rate_hz, self._owner.rise_hz_per_s
        if not rise:
            return tone(ms, rate_hz)
        at_s = (self._n_samples + np.arange(round(ms * rate_hz / 1000.0))) / rate_hz
        turns = RISE_FROM_HZ * at_s + rise * at_s**2 / 2
        return (8000 * np.sin(2 * np.pi * turns)).astype(np.int16)

    def finish(self) -> None:
        if fault := self._owner.plan.next("finish"):
            self._pipe.go_wrong(fault)
            return
        self._speak(self._pending)
        self._pending = ""
        self._pipe.put(SpeechEnd(self._n_samples))

    def events(self) -> AsyncIterator[VoiceEvent]:
        return self._pipe.events()

    async def close(self) -> None:
        self._pipe.close()
        self._owner.open_streams.discard(self)


class FakeVoice:
    """Says each word as a tone of ms_per_char per character, all of it at once unless slowed.

    rise_hz_per_s: the tone rises from RISE_FROM_HZ, so that its pitch tells its place in the reply.
    """

    def __init__(
        self,
        *,
        rate_hz: int = 24_000,
        ms_per_char: float = 60.0,
        first_audio_ms: float = 0.0,
        ms_per_audio_word: float = 0.0,
        rise_hz_per_s: float = 0.0,
        faults: Sequence[Fault] = (),
    ) -> None:
        self.rate_hz = rate_hz
        self.ms_per_char = ms_per_char
        self.rise_hz_per_s = rise_hz_per_s
        self.first_audio_ms = first_audio_ms
        self.ms_per_audio_word = ms_per_audio_word
        self.plan = FaultPlan(faults)
        self.open_streams: set[FakeVoiceStream] = set()

    async def open(self, stream_id: str, options: VoiceOptions) -> FakeVoiceStream:
        if fault := self.plan.next("open"):
            await _fail_or_hang(fault)
        stream = FakeVoiceStream(self)
        self.open_streams.add(stream)
        return stream


# --- sound --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpeechProbability:
    """As audio.vad gives it."""

    end_position: int
    probability: float
    is_between: bool = False


@dataclass(slots=True)
class EnergyVad:
    """Loudness in place of a network: 1.0 for a loud 32 ms window, else 0.0."""

    position: int = 0
    _rest: NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, np.int16))

    def feed(self, samples: NDArray[np.int16]) -> list[SpeechProbability]:
        joined = np.concatenate((self._rest, samples))
        found = []
        while len(joined) >= 512:
            window, joined = joined[:512], joined[512:]
            self.position += 512
            wide = window.astype(np.float64)
            is_loud = wide @ wide > LOUD * LOUD * len(wide)
            found.append(SpeechProbability(self.position, 1.0 if is_loud else 0.0))
        self._rest = joined
        return found

    def look_between(self, does: bool) -> None:
        """There it hears nothing."""

    def reset(self) -> None:
        self.position, self._rest = 0, np.zeros(0, np.int16)


def tone(ms: float, rate_hz: int, hz: float = 440.0, amplitude: int = 8000) -> NDArray[np.int16]:
    """A sine int16 [n] that is loud from its first milliseconds on."""
    n = round(ms * rate_hz / 1000.0)
    return (amplitude * np.sin(2 * np.pi * hz * np.arange(n) / rate_hz)).astype(np.int16)


def utterance(ms: float, rate_hz: int, hz: float = 300.0) -> NDArray[np.int16]:
    """A tone that dies away over its last 100 ms, as the voice of one who has finished does."""
    samples = tone(ms, rate_hz, hz)
    n = min(len(samples), rate_hz // 10)
    samples[len(samples) - n :] = (samples[len(samples) - n :] * np.linspace(1.0, 0.1, n)).astype(
        np.int16
    )
    return samples


@cache
def _room(n: int, seed: int) -> NDArray[np.int16]:
    return np.random.default_rng(seed).normal(0.0, 16.0, n).astype(np.int16)


def quiet(ms: float, rate_hz: int, seed: int = 0) -> NDArray[np.int16]:
    """Room noise int16 [n] at about -66 dBFS."""
    return _room(round(ms * rate_hz / 1000.0), seed).copy()


def instant_backends(**options: Any) -> Backends:
    """Three fakes that answer at once; keywords replace recognizer, language_model or voice."""
    return Backends(
        recognizer=options.pop("recognizer", None) or FakeRecognizer(),
        language_model=options.pop("language_model", None) or FakeLanguageModel(),
        voice=options.pop("voice", None) or FakeVoice(),
        **options,
    )
