"""One answer of the agent, from the prompt to the last sample the caller hears.

Owns its tasks: generate -> feed the voice -> take its audio -> play. The pieces between them are
bounded queues. A turn ends in exactly one way (completed, incomplete, failed, cancelled), catches
every backend's error itself, and leaves nothing open. Tool calls that the agent file answers go on
in the same turn with another response; others end it, and the client's result begins the next.

A turn may begin before it is known to be wanted: without a response it generates and synthesizes,
and holds everything (sound, text, calls) until `release` gives it the response to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from audio.codec import encode
from audio.resample import Resampler
from voiceloop.anticipation import LiveBranch
from voiceloop.backends import (
    ChatMessage,
    Generated,
    Speech,
    SpeechEnd,
    TextDelta,
    ToolCall,
    Usage,
    VoiceOptions,
    VoiceStream,
)
from voiceloop.ear import TurnInput
from voiceloop.errors import (
    BackendError,
    BackendTimeout,
    Overloaded,
    VoiceLoopError,
    first_error,
)
from voiceloop.items import FunctionCallOutput
from voiceloop.playout import Chunk, Pacer, Playout
from voiceloop.reply_plan import ReplyPlan
from voiceloop.response import CloseReason, ResponseHandle
from voiceloop.services import Services
from voiceloop.spoken_text import SpokenText
from voiceloop.telemetry import TurnTimeline

Outcome = Literal["completed", "incomplete", "failed", "cancelled"]

GENERATE_DEADLINE_S = 30.0  # prompt to last token
VOICE_DEADLINE_S = 10.0  # between two pieces of audio once all text is there
MAX_ROUNDS = 4  # tool calls answered by the agent file, one after the other
TEXT_QUEUE = 64  # deltas between the language model and the voice
FEED_RETRY_S = 0.02
ECHO_CHARACTERS = 80  # about five seconds of speech


@dataclass(slots=True)
class _Round:
    """One response: what the model said and called in it."""

    calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str = "stop"
    usage: Usage | None = None


class Turn:
    """Answers once. `start`, then `cancel` at any time; `done` when nothing more comes."""

    def __init__(
        self,
        services: Services,
        plan: ReplyPlan,
        timeline: TurnTimeline,
        *,
        fixed_text: str | None = None,
        not_before_s: float = 0.0,
        speaks_ahead: bool = True,
    ) -> None:
        self.plan = plan
        self._speaks_ahead = speaks_ahead  # else a held reply stays text until it is released
        self.timeline = timeline
        self.answers: TurnInput | None = None  # the caller's turn this is the answer to
        self.outcome: Outcome | None = None
        self.wasted_audio_ms = 0.0
        self.n_deltas = 0  # about the tokens generated, where no usage is reported
        self._usage: Usage | None = None
        self._services = services
        self.on_done: Callable[[Turn], None] | None = None
        self._fixed_text = fixed_text
        self._task: asyncio.Task[None] | None = None
        self._response: ResponseHandle | None = None
        self._released = asyncio.Event()
        self._new_playout(not_before_s)

    def _new_playout(self, not_before_s: float) -> None:
        services, audio_format = self._services, self.plan.output_format
        self._encoding, self._rate_hz = audio_format.encoding, audio_format.rate
        pacer = Pacer(self._rate_hz, services.lead_ms, not_before_s)
        self.playout = Playout(pacer, self._emit, services.clock)
        self._spoken = SpokenText()
        self._text_is_whole = False
        self._text: asyncio.Queue[str | None] = asyncio.Queue(TEXT_QUEUE)

    # --- from outside ---

    def start(self, tasks: asyncio.TaskGroup, on_done: Callable[[Turn], None]) -> Turn:
        self.on_done = on_done
        self._task = tasks.create_task(self._run(), name="turn")
        # A task cancelled before its first step never enters `_run`.
        self._task.add_done_callback(lambda task: self._finish())
        return self

    def release(self, response: ResponseHandle, timeline: TurnTimeline | None = None) -> Turn:
        """This is the response it answers: what is held leaves now, the rest as it comes."""
        self._response = response
        if timeline is not None:
            for name, at_s in self.timeline.marks.items():
                timeline.mark(name, at_s)
            self.timeline = timeline
        self.timeline.turn_id = response.id
        self._released.set()
        return self

    @property
    def is_released(self) -> bool:
        return self._response is not None

    @property
    def response(self) -> ResponseHandle:
        """The response being answered (of this round); only after `release`."""
        if self._response is None:
            raise RuntimeError("expected a released turn, found one that is held")
        return self._response

    @property
    def _is_out_of_band(self) -> bool:
        return self._response is not None and self._response.is_out_of_band

    def cancel(self) -> None:
        """Silence now, for good; idempotent. The response itself is closed by who cancels."""
        if self.outcome is None:
            self.outcome = "cancelled"
        if not self.playout.pacer.is_stopped:
            self.wasted_audio_ms = self.playout.pacer.buffered_ms
            self.playout.stop()
        if self._task is not None:
            self._task.cancel()

    def said_lately(self) -> str:
        """The end of what was sent: the echo of it may be heard now."""
        return self._spoken.taken[-ECHO_CHARACTERS:]

    def unsaid(self, heard: str) -> str:
        """What follows the words heard of a spoken reply that was cut short."""
        if not self.plan.speaks:
            return ""
        return self._spoken.after(len(heard), is_whole=self._text_is_whole)

    @property
    def is_audible(self) -> bool:
        return self.playout.pacer.is_audible(self._services.clock())

    @property
    def usage(self) -> Usage:
        """What the model reported, or what was seen of a reply that was cut short."""
        if self._usage is not None and self.is_released:
            return self._usage
        n_discarded = 0 if self.is_released else self.n_deltas
        return Usage(n_reply_tokens=self.n_deltas, n_discarded_tokens=n_discarded)

    @property
    def remaining_ms(self) -> float | None:
        """Audio the caller has still to hear; None while more may come."""
        pacer = self.playout.pacer
        if not pacer.is_finished:
            return None
        ahead_ms = 1000.0 * max(0.0, pacer.play_end_s - self._services.clock())
        return pacer.buffered_ms + ahead_ms

    # --- the turn's own task ---

    async def _run(self) -> None:
        live: LiveBranch | None = None
        try:
            tail = self.plan.prompt
            if self._fixed_text is None:
                anticipation = self._services.anticipation
                # What the caller is saying is staged for the reply to it, not for one beside it.
                begin = anticipation.begin if self._is_out_of_band else anticipation.adopt
                live, tail = begin(tail, self.plan.tools)
            await self._rounds(live, tail)
            await self.playout.played_out()
        except asyncio.CancelledError:
            self._close("cancelled")
            raise
        except BaseExceptionGroup as group:
            self._fail(first_error(group))
        except VoiceLoopError as error:
            self._fail(error)
        finally:
            if live is not None:
                live.close()
            self._finish()

    def _finish(self) -> None:
        """Tell that nothing more comes, once."""
        on_done, self.on_done = self.on_done, None
        if on_done is not None:
            self.timeline.mark("turn_end", self._services.clock())
            on_done(self)

    def _fail(self, error: VoiceLoopError) -> None:
        self.playout.stop()
        self._close("failed", error)

    def _close(self, outcome: Outcome, error: VoiceLoopError | None = None) -> None:
        """End the response on the wire, unless whoever cancelled has done so."""
        if self.outcome is None:
            self.outcome = outcome
        if self._response is None:
            return
        reason: CloseReason | None = "max_output_tokens" if outcome == "incomplete" else None
        self._response.close(outcome, reason, error, self._usage)
        self._services.on_output()

    async def _rounds(self, live: LiveBranch | None, tail: tuple[ChatMessage, ...]) -> None:
        for n_more in reversed(range(MAX_ROUNDS)):
            done = await self._one_round(live, tail)
            self._usage = done.usage
            results = self._results(done.calls)
            if done.finish_reason == "cancelled":
                raise BackendError("expected a whole reply, found it cancelled by the model")
            self._close("incomplete" if done.finish_reason == "length" else "completed")
            if results is None or not n_more:
                return
            tail = self._continue_with(results)

    async def _one_round(self, live: LiveBranch | None, tail: tuple[ChatMessage, ...]) -> _Round:
        done = _Round()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._generate(live, tail, done))
            if self.plan.speaks:
                tasks.create_task(self._synthesize())
                tasks.create_task(self._play())
        await self._released.wait()
        if self.plan.speaks:
            self.response.transcript_delta(self._spoken.take_rest())
        return done

    # --- generate ---

    async def _generate(
        self, live: LiveBranch | None, tail: tuple[ChatMessage, ...], done: _Round
    ) -> None:
        if live is None:
            await self._say(self._fixed_text or "")
        else:
            try:
                async with asyncio.timeout(GENERATE_DEADLINE_S):
                    await self._reply(live, tail, done)
            except TimeoutError:
                raise BackendTimeout(
                    f"expected the whole reply in {GENERATE_DEADLINE_S:.0f} s"
                ) from None
        self._text_is_whole = True
        await self._text.put(None)

    async def _reply(self, live: LiveBranch, tail: tuple[ChatMessage, ...], done: _Round) -> None:
        clock = self._services.clock
        offered = {tool.name for tool in self.plan.tools}
        await live.commit(tail, self.plan.params)
        self.timeline.mark("prompt_committed", clock())
        async for event in live.events():
            match event:
                case TextDelta(text=text):
                    self.timeline.mark("first_token", clock())
                    self.n_deltas += 1
                    await self._say(text)
                case ToolCall(name=name) if name not in offered:
                    pass  # a call of nothing that exists: nobody could answer it
                case ToolCall():
                    done.calls.append(event)
                    await self._released.wait()
                    self.response.function_call(event.call_id, event.name)
                    self.response.arguments_done(event.call_id, event.arguments)
                    self._services.on_output()
                case Generated():
                    done.finish_reason, done.usage = event.finish_reason, event.usage
                    if self.plan.speaks and not done.calls and self._spoken.is_blank:
                        await self._say(self._services.agent.fallback)
                    return

    async def _say(self, text: str) -> None:
        if self.plan.speaks:
            self._spoken.add(text, self._services.clock())
            await self._text.put(text)
        else:
            await self._released.wait()
            self.response.text_delta(text)
            self._services.on_output()

    # --- speak ---

    async def _synthesize(self) -> None:
        if not self._speaks_ahead:
            await self._released.wait()
        options = VoiceOptions(self.plan.voice, self.plan.speed)
        try:
            async with asyncio.timeout(VOICE_DEADLINE_S):
                stream = await self._services.voice.open(self._services.new_stream_id(), options)
        except TimeoutError:
            raise BackendTimeout(f"expected a voice in {VOICE_DEADLINE_S:.0f} s") from None
        try:
            async with asyncio.timeout(None) as stall, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._feed(stream, stall))
                await self._take_audio(stream, stall)
        except TimeoutError:
            raise BackendTimeout(f"expected audio within {VOICE_DEADLINE_S:.0f} s") from None
        finally:
            await stream.close()

    async def _feed(self, stream: VoiceStream, stall: asyncio.Timeout) -> None:
        while (text := await self._text.get()) is not None:
            while True:
                try:
                    stream.feed(text)
                    break
                except Overloaded:
                    await asyncio.sleep(FEED_RETRY_S)
        stream.finish()
        stall.reschedule(asyncio.get_running_loop().time() + VOICE_DEADLINE_S)

    async def _take_audio(self, stream: VoiceStream, stall: asyncio.Timeout) -> None:
        resampler = Resampler(self._services.voice.rate_hz, self._rate_hz)
        async for event in stream.events():
            if isinstance(event, SpeechEnd):
                await self.playout.push(resampler.flush())
                self.playout.finish()
                return
            self._mark_audio(event)
            due_s = stall.when()
            stall.reschedule(None)  # a full playout is no fault of the voice
            samples = np.frombuffer(event.samples, "<i2").astype(np.int16, copy=False)
            await self.playout.push(resampler.push(samples), event.words)
            if due_s is not None:
                stall.reschedule(asyncio.get_running_loop().time() + VOICE_DEADLINE_S)
        raise BackendError("expected the end of speech, found the voice closed")

    def _mark_audio(self, speech: Speech) -> None:
        if "first_audio_frame" in self.timeline.marks:
            return
        n_chars = max((word.text_end for word in speech.words), default=0)
        self.timeline.mark("first_clause", self._spoken.fed_at_s(n_chars))
        self.timeline.mark("first_audio_frame", self._services.clock())

    async def _play(self) -> None:
        await self._released.wait()
        await self.playout.run()

    def _emit(self, chunk: Chunk) -> None:
        """One chunk to the wire; its words' text goes just before the sound."""
        if chunk.words:
            self.response.transcript_delta(self._spoken.take(chunk.words[-1].text_end))
            self.response.add_words(chunk.words)
        data = encode(chunk.samples, self._encoding)
        self.response.audio_delta(data, chunk.duration_ms, is_fade=chunk.is_fade)
        self.timeline.mark("first_audio_queued", self._services.clock())
        self._services.on_output()

    # --- tools the agent file answers ---

    def _results(self, calls: list[ToolCall]) -> list[tuple[ToolCall, str]] | None:
        """An answer to every call, or None where there is none or a client must answer."""
        results = []
        for call in calls:
            tool = self._services.agent.tool(call.name)
            answer = tool.answer(call.arguments) if tool is not None else None
            if answer is None:
                return None
            results.append((call, answer))
        return results or None

    def _continue_with(self, results: list[tuple[ToolCall, str]]) -> tuple[ChatMessage, ...]:
        """The next response of this turn, and what it adds to the prompt."""
        protocol = self._services.protocol
        request = self.response.request
        for call, answer in results:
            if self._is_out_of_band:
                break
            item_id = protocol.new_id("item")
            protocol.add_item(FunctionCallOutput(id=item_id, call_id=call.call_id, output=answer))
        self._response = protocol.open_response(request)
        self.outcome = None
        self._new_playout(self.playout.pacer.play_end_s)
        self._services.on_output()
        return tuple(ChatMessage("tool", answer, (), call.call_id) for call, answer in results)
