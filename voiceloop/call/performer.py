"""Doing what turn-taking decides.

Owns the one place where decisions meet the protocol, the listener and the replies of a call: each
action is done at once, without waiting. What it brings about by itself is returned as events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from voiceloop.call import actions as do
from voiceloop.call.actions import Step
from voiceloop.call.events import CallEvent, ReplyEnded, SegmentCommitted, StartedEarly
from voiceloop.call.idleness import Idleness
from voiceloop.call.open_tool_calls import fail_tool_calls
from voiceloop.call.replies import Replies
from voiceloop.call.status import CallStatus
from voiceloop.errors import BackendError
from voiceloop.knowledge.retrieval import Retrieval
from voiceloop.listening.events import UserTurn
from voiceloop.listening.listener import Listener
from voiceloop.realtime.protocol import Protocol
from voiceloop.reply.anticipation import Anticipation
from voiceloop.telemetry.metrics import Metrics


class Performer:
    """The hands of one call.

    reads_p_end: whether P(end of turn) counts as evidence. slides: the window, in silence.
    """

    def __init__(
        self,
        protocol: Protocol,
        listener: Listener,
        anticipation: Anticipation,
        retrieval: Retrieval | None,
        replies: Replies,
        idleness: Idleness,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        reads_p_end: bool,
        slides: bool = True,
    ) -> None:
        self._protocol = protocol
        self._listener = listener
        self._anticipation = anticipation
        self._retrieval = retrieval
        self._replies = replies
        self._idleness = idleness
        self._metrics = metrics
        self._clock = clock
        self._reads_p_end = reads_p_end
        self._slides = slides
        self._open_item_id = ""  # the user's, while the caller has the floor
        self._item_ids: dict[int, str] = {}  # by segment: whose words are still to come

    def status(self) -> CallStatus:
        """What turn-taking must know of the call at this moment."""
        preemptive, active = self._replies.preemptive, self._protocol.active_response
        early = preemptive.early
        return CallStatus(
            self._protocol.settings,
            self._replies.status(),
            active is not None and (early is None or active is not early.response),
            preemptive.held_words,
        )

    def perform(self, action: do.Action) -> Sequence[CallEvent]:
        """Do it now; returns what it brought about. Raises nothing that a client can cause."""
        return self._take_step(action) if isinstance(action, Step) else self._obey(action)

    def _take_step(self, step: Step) -> Sequence[CallEvent]:
        match step:
            case Step.DROP_USER_ITEM:
                self._protocol.drop_input()
            case Step.END_SEGMENT:
                return self._listener.end_turn()
            case Step.DISCARD_SEGMENT:
                self._listener.discard()
            case Step.REQUEST_WORDS:
                self._listener.request_words()
            case Step.PREFILL:
                self.prefill()
            case Step.REST_PREEMPTIVE:
                self._replies.preemptive.rest()
            case Step.DROP_PREEMPTIVE:
                self._replies.preemptive.reset()
            case Step.ABANDON_PREPARATION:
                self._replies.abandon_preparation()
            case Step.ASK_AGAIN:
                self._replies.ask_again()
            case Step.REDUCE_LEAD | Step.DUCK | Step.PAUSE | Step.RESUME:
                self._replies.control_playout(step)
            case Step.DROP_INTERRUPTED:
                self._replies.drop_interrupted()
            case Step.RESUME_INTERRUPTED:
                return () if self._replies.resume_interrupted() else (ReplyEnded(),)
        return ()

    def _obey(self, order: do.Order) -> Sequence[CallEvent]:
        protocol, replies = self._protocol, self._replies
        match order:
            case do.OpenUserTurn(onset_ms=onset_ms):
                replies.owed.end()
                self._open_item_id = protocol.speech_started(onset_ms)
            case do.CloseUserTurn(end_ms=end_ms):
                protocol.speech_stopped(end_ms)
            case do.CommitUserItem(segment=segment, stays_open=stays_open):
                if segment in self._item_ids:
                    protocol.keep_input(self._item_ids[segment], stays_open=stays_open)
                else:
                    self._item_ids[segment] = protocol.commit_input(stays_open=stays_open)
            case do.CommitSegment(item_id=item_id):
                segment = self._listener.commit()
                self._item_ids[segment] = item_id
                return (SegmentCommitted(segment),)
            case do.SendPartial(stable=stable, unstable=unstable):
                protocol.partial(self._open_item_id, " ".join(stable), " ".join(unstable))
            case do.SendTranscript(turn=turn, error=error):
                self._send_transcript(turn, error)
            case do.StageWords(stable=stable, unstable=unstable, is_full=is_full):
                if self._retrieval is not None:
                    self._retrieval.observe_words(stable, unstable, full=is_full)
                known = self._anticipation.observe_words(stable, unstable, full=is_full)
                return self.weigh(*known) if known is not None else ()
            case do.ConsiderPreemptiveReply(pause=pause):
                if self._retrieval is None:
                    replies.preemptive.consider(pause)
                else:
                    consider = partial(replies.preemptive.consider, pause)
                    self._retrieval.when_settled(pause.words, consider)
            case do.InterruptReply(heard_ms=heard_ms, may_resume=may_resume, onset_ms=onset_ms):
                replies.interrupt_current(heard_ms, onset_ms, may_resume=may_resume)
            case do.StartEarly(unsure_ms=unsure_ms):
                if (started := replies.preemptive.start_early(unsure_ms)) is not None:
                    started.record.facts.endpoint = self._listener.observe_early_start()
                    return (StartedEarly(),)
            case do.TakeBack(is_cut=is_cut):
                self._listener.observe_taken_back()
                replies.preemptive.take_back(is_cut=is_cut)
            case do.AnswerTurn(turn=turn):
                replies.answer(turn)
            case do.AskToWait(turn=turn):
                replies.ask_to_wait(turn)
            case do.BeginReply(response=response):
                replies.begin(response)
            case do.SpeakFirst(text=text, idle_since_ms=since_ms):
                if since_ms is not None:
                    protocol.idle_timeout(since_ms, self._listener.now_ms)
                replies.begin(protocol.open_response(), text)
            case do.FailToolCalls(calls=calls):
                fail_tool_calls(protocol, calls)
            case do.FailReply(turn=turn, error=error, is_told=is_told):
                replies.fail(turn, error, is_told=is_told)
            case do.CancelReply(response_id=response_id):
                replies.cancel(response_id)
            case do.TruncateReply(item_id=item_id, audio_end_ms=audio_end_ms):
                replies.truncate(item_id, audio_end_ms)
                self._follow_history()
            case do.WatchIdleness(is_idle=is_idle, timeout_ms=timeout_ms):
                now_ms = self._listener.now_ms
                self._idleness.observe(is_idle, timeout_ms=timeout_ms, now_ms=now_ms)
                if is_idle:
                    self._slide_window()
            case do.CountBargeIn(verdict=verdict, onset_arrival_s=onset_s):
                self._metrics.observe_barge_in(verdict, self._clock() - onset_s)
        return ()

    def prefill(self) -> None:
        """Bring the conversation so far into the language model's cache."""
        settings = self._protocol.settings
        history = self._protocol.shown.messages(settings.instructions)
        self._listener.observe_history(history)
        self._anticipation.open(history, settings.tools)
        if self._retrieval is not None:
            is_unanswered = bool(history) and history[-1].role == "user"
            self._retrieval.begin_turn(history[-1].content if is_unanswered else "")

    def _slide_window(self) -> None:
        """Move a window that is nearly full on while nobody speaks, and have the model read it."""
        if not self._slides or not self._anticipation.has_time:
            return
        settings, shown = self._protocol.settings, self._protocol.shown
        if shown.slide_ahead(settings.instructions):
            history = shown.messages(settings.instructions)
            self._anticipation.open(history, settings.tools)

    def _follow_history(self) -> None:
        """More or less of a reply was heard than was thought as the caller interrupted it."""
        if self._anticipation.live is None:
            return
        settings = self._protocol.settings
        history = self._protocol.shown.messages(settings.instructions)
        if self._anticipation.follow(history, settings.tools):
            self._replies.preemptive.drop()  # it was made on what is gone
            self._listener.observe_history(history)

    def weigh(self, words: tuple[str, ...], p_end: float | None) -> Sequence[CallEvent]:
        """P(end of turn) after these words of the open turn is known: evidence for the listener."""
        return self._listener.observe_p_end(words, p_end, is_evidence=self._reads_p_end)

    def _send_transcript(self, turn: UserTurn, error: BackendError | None) -> None:
        item_id = self._item_ids.pop(turn.segment)
        if error is not None:
            self._protocol.transcription_failed(item_id, error.message)
            return
        seconds = (turn.end_ms - turn.onset_ms) / 1000.0
        self._protocol.transcription_completed(item_id, turn.text, seconds)
