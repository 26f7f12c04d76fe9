"""A sound heard over the agent: judged, and acted on where it is not yet a turn of the caller.

Owns the judge and what its verdicts do to the reply: a reduced lead, duck or pause at the first
loud window, then duck, pause or resume. Stopping the agent for good is the floor's to do.
"""

from __future__ import annotations

from collections.abc import Callable

from voiceloop.agent import BargeIn
from voiceloop.call.barge_in import Action, BargeInJudge
from voiceloop.listening.events import Activity
from voiceloop.reply.reply import Reply
from voiceloop.telemetry import Metrics

REPLY_ENDS_SOON_MS = 600.0  # a "yeah" this close to the end answers the agent's question


class Interruption:
    """One stretch of sound at a time."""

    def __init__(self, options: BargeIn, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._judge = BargeInJudge(options)
        self._metrics = metrics
        self._clock = clock

    def reset(self) -> None:
        """Whose sound it was is settled, or it is over."""
        self._judge.reset()

    def suspect(self, turn: Reply, lasting_ms: float | None) -> None:
        """One loud window, too short to judge: send no further ahead than must be.

        Where its sound has lasted long enough by itself, it is heard by now that it is noticed.
        """
        if not self._judge.options.enabled:
            return
        if lasting_ms is None:
            turn.resume()  # no stretch is open: nothing else holds the agent
            return
        match self._judge.suspect(lasting_ms):
            case "hold":
                _hold(turn)
            case "duck":
                turn.duck()
            case _:
                turn.reduce_lead()

    def observe_words(self, words: tuple[str, ...]) -> None:
        self._judge.observe_words(words)

    def judge(self, activity: Activity, turn: Reply) -> Action | None:
        """What the sound comes to now; all but a "stop" is done already."""
        self._judge.observe_agent(turn.said_lately)
        action = self._judge.judge(
            activity.speech_ms,
            activity.silence_ms,
            reply_ends_soon=_ends_soon(turn),
            voice=activity.voice,
            led_in_ms=activity.led_in_ms,
        )
        if action is None:
            if self._judge.state == "idle" and (activity.silence_ms or self._judge.hears_itself):
                turn.resume()  # nothing will come of it that is worth a short lead
            return None
        self._metrics.observe_barge_in(action, self._clock() - activity.onset_arrival_s)
        match action:
            case "duck":
                turn.duck()
            case "hold":
                _hold(turn)
            case "resume" | "go_on":
                turn.resume()
        return action

    def takes_back(self, activity: Activity, turn: Reply) -> bool:
        """The caller had not finished: the answer, held in its first moment, is not wanted yet."""
        is_fresh = turn.is_fresh(activity.onset_arrival_s)
        return is_fresh and self._judge.is_held_by_voice(activity.speech_ms)

    @property
    def is_in_words(self) -> bool:
        """The sound took the floor by what it said, not by how long it went on."""
        return self._judge.by_words

    def takes_floor(self, words: tuple[str, ...], activity: Activity, turn: Reply) -> bool:
        """The sound is over before the judge was sure: its words decide."""
        self._judge.observe_words(words)
        if not words or not self._judge.options.enabled:
            return False
        return self._judge.takes_floor(
            activity.speech_ms, reply_ends_soon=_ends_soon(turn), voice=activity.voice
        )


def _hold(turn: Reply) -> None:
    turn.duck()  # where it was not ducked before, the fade is as quick
    turn.pause()


def _ends_soon(turn: Reply) -> bool:
    return turn.remaining_ms is not None and turn.remaining_ms < REPLY_ENDS_SOON_MS
