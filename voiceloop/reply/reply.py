"""One answer of the agent, from the prompt to the last sample the caller hears.

Owns its tasks: generate, and the utterance that speaks and plays. A turn ends in exactly one way
(completed, incomplete, failed, cancelled), catches every error itself, and leaves nothing open.
Tool calls that the agent file answers go on in the same turn with another response; others end it,
and the client's result begins the next.

A turn may begin before it is known to be wanted: then it reads the drafts of the reply, and holds
everything (sound, text, calls) until `release` gives it the response to answer. A later draft, or
the committed reply, that differs takes back only the clauses it changes.

A spoken turn that a sound cut short can be suspended until it is known whether the sound was said
to it, and then goes on after what was heard, in another response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from audio.codec import encode
from voiceloop.backends import (
    ChatMessage,
    Generated,
    GenerateParams,
    PreemptiveCall,
    PreemptiveDelta,
    PreemptiveDone,
    TextDelta,
    ToolCall,
    Usage,
    VoiceOptions,
)
from voiceloop.errors import BackendError, BackendTimeout, VoiceLoopError, error_of
from voiceloop.listening.events import UserTurn
from voiceloop.realtime.response import CloseReason, ResponseHandle
from voiceloop.reply.anticipation import Drafting, LiveBranch
from voiceloop.reply.context import ReplyContext
from voiceloop.reply.plan import ReplyPlan
from voiceloop.reply.playout import Chunk, Pacer
from voiceloop.reply.speech import ReplySpeech
from voiceloop.reply.steps import MAX_ROUNDS, ReplyRound, Rounds
from voiceloop.reply.tool_answers import ToolAnswers, as_results
from voiceloop.telemetry import TurnTimeline

Outcome = Literal["completed", "incomplete", "failed", "cancelled"]

GENERATE_DEADLINE_S = 30.0  # prompt to last token
RETRACT_S = 0.3  # from release to the caller's next sound


class Reply:
    """Answers once. `start`, then `cancel` at any time; `done` when nothing more comes."""

    def __init__(
        self,
        context: ReplyContext,
        plan: ReplyPlan,
        timeline: TurnTimeline,
        *,
        fixed_text: str | None = None,
        failure: VoiceLoopError | None = None,
        not_before_s: float = 0.0,
        drafting: Drafting | None = None,
        speaks_ahead: bool = True,
    ) -> None:
        self.plan = plan
        self.timeline = timeline
        self.answers: UserTurn | None = None  # the caller's turn this is the answer to
        self.outcome: Outcome | None = None
        self.failure: VoiceLoopError | None = None
        self.wasted_audio_ms = 0.0
        self.released_s: float | None = None
        self.on_done: Callable[[Reply], None] | None = None
        self._rounds = Rounds(failure)
        self._context = context
        self._fixed_text = fixed_text
        self._drafting = drafting
        self._held = drafting.live if drafting is not None else None
        self._speaks_ahead = speaks_ahead
        self._task: asyncio.Task[None] | None = None
        self._response: ResponseHandle | None = None
        self._released = asyncio.Event()
        self._deadline: asyncio.Timeout | None = None
        self._tools = ToolAnswers(context.agent, plan.tools)
        self.keeps_draft = False  # what was held is the beginning of the reply
        self._new_utterance(not_before_s)

    def _new_utterance(self, not_before_s: float) -> None:
        context, audio_format = self._context, self.plan.output_format
        self._encoding = audio_format.encoding
        self.speech = ReplySpeech(
            context.voice,
            VoiceOptions(self.plan.voice, self.plan.speed),
            context.new_stream_id,
            Pacer(audio_format.rate, context.lead_ms, not_before_s),
            self._emit,
            context.clock,
            on_first_audio=self._mark_audio,
            speaks_ahead=self._speaks_ahead or self._response is not None,
        )
        self._playout = self.speech.playout
        if self._response is not None:
            self.speech.let_go()

    # --- from outside ---

    def start(self, tasks: asyncio.TaskGroup, on_done: Callable[[Reply], None]) -> Reply:
        self.on_done = on_done
        self._task = tasks.create_task(self._run(), name="turn")
        # A task cancelled before its first step never enters `_run`.
        self._task.add_done_callback(lambda task: self._finish())
        return self

    def redraft(self, plan: ReplyPlan, number: int) -> None:
        """The caller said something else: another draft is on its way, on the same branch."""
        assert self._drafting is not None
        self.plan, self._drafting.number = plan, number
        self.speech.reread()

    def release(
        self,
        response: ResponseHandle,
        timeline: TurnTimeline | None = None,
        plan: ReplyPlan | None = None,
    ) -> Reply:
        """This is the response it answers: what is held leaves now, the rest as it comes.

        plan: what is asked for where the turn was held. Unless the branch promises that its reply
        begins with what is held, each clause of that waits until the reply has said the same.
        """
        self._answer_in(response)
        self.released_s = self._context.clock()
        if timeline is not None:
            for name, at_s in self.timeline.marks.items():
                timeline.mark(name, at_s)
            self.timeline = timeline
        self.timeline.turn_id = response.id
        self._released.set()
        if self._drafting is not None and plan is not None:
            self.keeps_draft = self._commit_draft(self._drafting.live, plan)
            if not self.keeps_draft:
                self.speech.let_agreed_go()
                return self
        self.speech.let_go()
        return self

    def _commit_draft(self, live: LiveBranch, plan: ReplyPlan) -> bool:
        """Ask for the reply; whether it is promised to begin with what is held."""
        self._drafting, self.plan = None, plan
        is_newest = self.speech.is_agreed  # nothing is left of a draft before the newest
        self.speech.reread()
        is_kept = live.commit_now(plan.prompt[len(live.context.messages) :], plan.params)
        if self._deadline is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + GENERATE_DEADLINE_S)
        return is_kept and is_newest

    def _answer_in(self, response: ResponseHandle) -> None:
        """The response of this round; whoever closes it asks the round what was used."""
        self._response = response
        response.usage_so_far = self._rounds.latest.take_usage

    @property
    def _params(self) -> GenerateParams:
        return self._rounds.params(self.plan.params)

    @property
    def response(self) -> ResponseHandle:
        """The response being answered (of this round); only after `release`."""
        if self._response is None:
            raise RuntimeError("expected a released turn, found one that is held")
        return self._response

    def cancel(self) -> None:
        """Silence now, for good; idempotent. The response itself is closed by who cancels."""
        if self.outcome is None:
            self.outcome = "cancelled"
        self.speech.stop()
        if self._task is not None:
            self._task.cancel()

    def is_fresh(self, onset_s: float) -> bool:
        """Whether it answers a turn that the caller went on with, from `onset_s`, at once."""
        age_s = onset_s - self.released_s if self.released_s is not None else 0.0
        return self.answers is not None and age_s <= RETRACT_S

    def duck(self) -> None:
        """Play more quietly until `resume`."""
        self._playout.duck()

    def reduce_lead(self) -> None:
        """Send less far ahead until `resume`: somebody may be about to speak."""
        self._playout.reduce_lead()

    def pause(self) -> None:
        """Fade out and send nothing until `resume`; no sample is lost."""
        self._playout.pause()

    def resume(self) -> None:
        """Undo `duck`, `reduce_lead` and `pause`."""
        self._playout.resume()

    def interrupt(self, heard_text: str, heard_ms: float) -> None:
        """Pause a reply whose response has ended after these words and this much sound of its item.

        `resume_in` or `cancel` follows. Until then no tool is called either.
        """
        self.pause()
        self._released.clear()
        self.speech.cut_short(heard_text, heard_ms)

    def resume_in(self, response: ResponseHandle) -> None:
        """After a false interruption: say in this response what was not heard of the last one."""
        self._answer_in(response)
        self._released.set()
        self.speech.go_on()

    # --- what is known of it ---

    @property
    def is_audible(self) -> bool:
        return self._playout.pacer.is_audible(self._context.clock())

    @property
    def has_failed(self) -> bool:
        return self.failure is not None

    @property
    def heard_ms(self) -> float:
        """Audio of the reply that the caller has heard, over all of its items in this round."""
        return self._playout.heard_ms()

    @property
    def item_heard_ms(self) -> float:
        """Audio that the caller has heard of the present response's item."""
        return self.speech.item_heard_ms

    @property
    def remaining_ms(self) -> float | None:
        """Audio the caller has still to hear; None while more may come."""
        return self._playout.pacer.remaining_ms(self._context.clock())

    @property
    def buffered_ms(self) -> float:
        """Audio that is made and not sent."""
        return self._playout.pacer.buffered_ms

    @property
    def play_end_s(self) -> float:
        """When the client will have played all that was sent."""
        return self._playout.pacer.play_end_s

    @property
    def said_lately(self) -> str:
        """The end of what was said: its echo may be heard now."""
        return self.speech.text.said_lately

    def resumable_from_ms(self, heard_ms: float) -> float:
        """Where in the item `resume_in` can go on if this much of it was heard."""
        return self.speech.reachable_ms(heard_ms)

    @property
    def usage(self) -> Usage:
        """Tokens of all rounds so far; those of text that nobody heard are counted apart."""
        return self._rounds.usage(self.speech.unheard)

    # --- the turn's own task ---

    async def _run(self) -> None:
        live: LiveBranch | None = None
        try:
            tail = self.plan.prompt
            if self._held is not None:
                live = self._held
            elif self._fixed_text is None:
                anticipation = self._context.anticipation
                # What the caller is saying is staged for the reply to it, not for one beside it.
                begin = anticipation.begin if self.response.is_out_of_band else anticipation.adopt
                live, tail = begin(tail, self.plan.tools)
            await self._answer(live, tail)
            await self._playout.played_out()
        except asyncio.CancelledError:
            self._close("cancelled")
            raise
        except (Exception, BaseExceptionGroup) as error:  # a bug costs a turn, not the call
            self.speech.stop()
            self._close("failed", error_of(error))
        finally:
            if live is not None and self._drafting is None:
                live.close()
            self._finish()

    def _finish(self) -> None:
        """Tell that nothing more comes, once."""
        on_done, self.on_done = self.on_done, None
        if on_done is not None:
            self.wasted_audio_ms += self.speech.wasted_ms
            self.timeline.mark("turn_end", self._context.clock())
            on_done(self)

    def _close(self, outcome: Outcome, error: VoiceLoopError | None = None) -> None:
        """End the response on the wire, unless whoever cancelled has done so."""
        self.outcome, self.failure = self.outcome or outcome, error or self.failure
        if self._response is None:
            return
        reason: CloseReason | None = "max_output_tokens" if outcome == "incomplete" else None
        self._response.close(outcome, reason, error)
        self._context.on_output()

    async def _answer(self, live: LiveBranch | None, tail: tuple[ChatMessage, ...]) -> None:
        for n_more in reversed(range(MAX_ROUNDS)):
            done = await self._one_round(live, tail)
            if done.failure is not None:
                self._close("failed", done.failure)
                return
            results = self._tools.of(done.calls)
            self._close("incomplete" if done.finish_reason == "length" else "completed")
            if results is None or not n_more:
                return
            tail = self._continue_with(results)

    async def _one_round(
        self, live: LiveBranch | None, tail: tuple[ChatMessage, ...]
    ) -> ReplyRound:
        done = self._rounds.latest
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._generate(live, tail, done))
            if self.plan.speaks:
                tasks.create_task(self.speech.run())
        await self._released.wait()
        if self.plan.speaks:
            self.response.transcript_delta(self.speech.text.take_rest())
        return done

    # --- generate ---

    async def _generate(
        self, live: LiveBranch | None, tail: tuple[ChatMessage, ...], done: ReplyRound
    ) -> None:
        """The model has the word; where it says nothing or fails, the fallback is said.

        Raises: what failed a reply that is held: nobody waits for it.
        """
        try:
            if live is None:
                await self._write(self._fixed_text or "")
            else:
                await self._ask(live, tail, done)
        except Exception as error:  # a bug costs a turn, not the call
            if self._response is None:
                raise
            done.failure = error_of(error)
        is_mute = live is not None and not done.calls and not self.speech.has_words
        if self.plan.speaks and (is_mute or done.failure is not None):
            self.speech.say_last(self._context.agent.fallback)
        self.speech.finish()
        self.speech.let_go()

    async def _ask(self, live: LiveBranch, tail: tuple[ChatMessage, ...], done: ReplyRound) -> None:
        limit_s = None if self._drafting is not None else GENERATE_DEADLINE_S
        is_held, self._held = self._held is not None, None
        try:
            async with asyncio.timeout(limit_s) as self._deadline:
                if not is_held:  # else `release` asks
                    await live.commit(tail, self._params)
                self.timeline.mark("prompt_committed", self._context.clock())
                await self._reply(live, done)
        except TimeoutError:
            raise BackendTimeout(f"expected a reply in {GENERATE_DEADLINE_S:.0f} s") from None

    async def _reply(self, live: LiveBranch, done: ReplyRound) -> None:
        async for event in live.events():
            match event:
                case PreemptiveDelta() | PreemptiveCall() | PreemptiveDone():
                    await self._read_draft(event, done)
                case TextDelta(text=text):
                    done.n_deltas += 1
                    await self._write(text)
                case ToolCall():
                    await self._announce(event, done)
                case Generated(finish_reason=reason):
                    done.finish_reason, done.reported = reason, event.usage
                    if reason == "cancelled":
                        raise BackendError("expected a reply, found it cancelled by the model")
                    return

    async def _read_draft(
        self, event: PreemptiveDelta | PreemptiveCall | PreemptiveDone, done: ReplyRound
    ) -> None:
        if self._drafting is None or event.attempt != self._drafting.number:
            return  # of a draft that was replaced, or of a turn that is committed by now
        match event:
            case PreemptiveDelta(text=text):
                done.n_draft_deltas += 1
                if self.plan.speaks:
                    await self._write(text)
            case PreemptiveCall():
                self._tools.call_ahead(event)
            case PreemptiveDone(finish_reason=reason):
                if reason not in ("cancelled", "lost"):
                    self.speech.finish(is_draft=True)

    async def _write(self, text: str) -> None:
        """The next text of the reply: what was drafted the same way is there already."""
        self.timeline.mark("first_token", self._context.clock())
        if not self.plan.speaks:
            await self._released.wait()
            self.response.text_delta(text)
            self._context.on_output()
            return
        self.speech.say(text)

    # --- out ---

    def _mark_audio(self, written_s: float) -> None:
        self.timeline.mark("first_clause", written_s)
        self.timeline.mark("first_audio_frame", self._context.clock())

    def _emit(self, chunk: Chunk) -> None:
        """One chunk to the wire; its words' text goes just before the sound."""
        if chunk.words:
            self.response.transcript_delta(self.speech.text.take(chunk.words[-1].text_end))
            self.response.add_words(self.speech.in_item(chunk.words))
        data = encode(chunk.samples, self._encoding)
        self.response.audio_delta(data, chunk.duration_ms, is_fade=chunk.is_fade)
        self.timeline.mark("first_audio_queued", self._context.clock())
        self.timeline.facts.setdefault("held_ms", round(self.speech.held_ms, 1))
        self._context.on_output()

    # --- tools ---

    async def _announce(self, call: ToolCall, done: ReplyRound) -> None:
        if not self._tools.admits(call, self._params.tool_choice):
            return  # without a word beside it, the fallback is said
        await self._released.wait()
        if done.calls and not self.response.calls_at_once:
            return  # the client asked for one at a time
        done.calls.append(call)
        self.response.function_call(call.call_id, call.name)
        self.response.arguments_done(call.call_id, call.arguments)
        self._context.on_output()

    def _continue_with(self, results: list[tuple[ToolCall, str]]) -> tuple[ChatMessage, ...]:
        """The next response of this turn, and what it adds to the prompt."""
        protocol = self._context.protocol
        tail = as_results(results, None if self.response.is_out_of_band else protocol)
        self._rounds.begin()
        self._answer_in(protocol.open_response(self.response.request))
        self.outcome = None
        self.wasted_audio_ms += self.speech.wasted_ms
        self._new_utterance(self.play_end_s)
        self._context.on_output()
        return tail
