"""Doing what turn-taking decides.

Owns the one place where decisions meet the protocol, the listener and the replies of a call: each
action is done at once, without waiting. What it brings about by itself is returned as events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from voiceloop.call import actions as do
from voiceloop.call.events import CallEvent, ReplyEnded, SegmentCommitted
from voiceloop.call.idleness import Idleness
from voiceloop.call.replies import Replies
from voiceloop.call.status import CallStatus
from voiceloop.listening.events import UserTurn
from voiceloop.listening.listener import Listener
from voiceloop.realtime.protocol import Protocol
from voiceloop.reply.anticipation import Anticipation
from voiceloop.telemetry import Metrics


class Performer:
    """The hands of one call. reads_p_end: whether P(end of turn) counts as evidence."""

    def __init__(
        self,
        protocol: Protocol,
        listener: Listener,
        anticipation: Anticipation,
        replies: Replies,
        idleness: Idleness,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        reads_p_end: bool,
    ) -> None:
        self._protocol = protocol
        self._listener = listener
        self._anticipation = anticipation
        self._replies = replies
        self._idleness = idleness
        self._metrics = metrics
        self._clock = clock
        self._reads_p_end = reads_p_end
        self._open_item_id = ""  # the user's, while the caller has the floor
        self._item_ids: dict[int, str] = {}  # by segment: whose words are still to come

    def status(self) -> CallStatus:
        """What turn-taking must know of the call at this moment."""
        return CallStatus(
            self._protocol.settings,
            self._replies.status(),
            self._replies.interrupted_id,
            self._protocol.active_response is not None,
        )

    def perform(self, action: do.Action) -> Sequence[CallEvent]:
        """Do it now; returns what it brought about. Raises nothing that a client can cause."""
        match action:
            case do.OpenUserTurn(onset_ms=onset_ms):
                self._open_item_id = self._protocol.speech_started(onset_ms)
            case do.CloseUserTurn(end_ms=end_ms):
                self._protocol.speech_stopped(end_ms)
            case do.CommitUserItem(segment=segment):
                self._item_ids[segment] = self._protocol.commit_input()
            case do.DropUserItem():
                self._protocol.drop_input()
            case do.SendPartial(stable=stable, unstable=unstable):
                self._protocol.partial(self._open_item_id, " ".join(stable), " ".join(unstable))
            case do.SendTranscript(turn=turn):
                self._send_transcript(turn)
            case do.SendTranscriptionFailure(turn=turn, error=error):
                self._protocol.transcription_failed(self._item_ids.pop(turn.segment), error.message)
            case do.EndSegment():
                return self._listener.end_turn()
            case do.CommitSegment(item_id=item_id):
                segment = self._listener.commit()
                self._item_ids[segment] = item_id
                return (SegmentCommitted(segment),)
            case do.DiscardSegment():
                self._listener.discard()
            case do.RequestWords():
                self._listener.request_words()
            case do.Prefill():
                self.prefill()
            case do.StageWords(stable=stable, unstable=unstable, is_full=is_full):
                known = self._anticipation.observe_words(stable, unstable, full=is_full)
                return self.weigh(*known) if known is not None else ()
            case do.WatchIdleness(is_idle=is_idle, timeout_ms=timeout_ms):
                now_ms = self._listener.now_ms
                self._idleness.observe(is_idle, timeout_ms=timeout_ms, now_ms=now_ms)
            case do.CountBargeIn(verdict=verdict, onset_arrival_s=onset_s):
                self._metrics.observe_barge_in(verdict, self._clock() - onset_s)
            case do.PromptIdleCaller(since_ms=since_ms):
                self._protocol.idle_timeout(since_ms, self._listener.now_ms)
                self._replies.speak_first()
            case do.ResumeInterrupted():
                return () if self._replies.resume_interrupted() else (ReplyEnded(),)
            case _:
                self._replies.perform(action)
        return ()

    def prefill(self) -> None:
        """Bring the conversation so far into the language model's cache."""
        settings = self._protocol.settings
        history = self._protocol.conversation.messages(settings.instructions)
        self._listener.observe_history(history)
        self._anticipation.open(history, settings.tools)

    def weigh(self, words: tuple[str, ...], p_end: float | None) -> Sequence[CallEvent]:
        """P(end of turn) after these words of the open turn is known: evidence for the listener."""
        return self._listener.observe_p_end(words, p_end, is_evidence=self._reads_p_end)

    def _send_transcript(self, turn: UserTurn) -> None:
        seconds = (turn.end_ms - turn.onset_ms) / 1000.0
        item_id = self._item_ids.pop(turn.segment)
        self._protocol.transcription_completed(item_id, turn.text, seconds)
