"""Turn-taking: a pure state machine, events in and actions out.

Owns every change of speaker in one call: the caller begins, is judged while the agent speaks, ends,
is answered. It stores the state of both, and says which pairs of states are legal. It holds no
reply, no socket and no clock: each event comes with a `CallStatus`, what is measured of the rest of
the call at that moment, and whoever asked performs the actions it returns, in order. What follows
from that (words that came of a request, a reply that is heard or ended) are new events.

The agent's state changes in two places: `_decided` (what an action of its own makes of the agent)
and `_report` (what a reply says of itself: heard, started early, ended).

One rule keeps the call alive: an answer that is owed is given as soon as nobody speaks and nothing
is being answered (`_settle`, at the end of every transition that may lead there). So no state is
kept for ever: each is left by speech, by silence, or by time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

from voiceloop.agent import BargeIn
from voiceloop.call import actions as do
from voiceloop.call import events as told
from voiceloop.call.actions import PLAYOUT_FOR, Step, name_of
from voiceloop.call.barge_in import LEAST_TURN_MS, RESUME_SILENCE_MS, BargeInJudge, CallerLevel
from voiceloop.listening import events as heard
from voiceloop.listening.events import Activity, UserTurn
from voiceloop.listening.release import TAKEN_BACK_MS
from voiceloop.realtime import commands as asked
from voiceloop.realtime.response import ResponseHandle
from voiceloop.realtime.settings import ServerVad, SessionSettings

log = logging.getLogger(__name__)

Actions = Iterator[do.Action]

# A "yeah" this close to the end answers the agent's question: one clause, or the time that people
# let pass between turns and the word itself.
REPLY_ENDS_SOON_MS = 600.0
# Who asked the agent to wait is asked back after so long a silence, once: as long as people leave
# somebody on hold before they look whether they are there. From issue 35.
ASKS_BACK_MS = 20_000
# From the release of a reply to the caller's next sound: the caller had not finished.
RETRACT_S = TAKEN_BACK_MS / 1000.0


class Caller(Enum):
    """The caller's state, as far as the call knows."""

    SILENT = "silent"
    OVERLAPPING = "overlapping"  # sounds over the agent, and is judged: the wire knows nothing yet
    SPEAKING = "speaking"  # has the floor, and the wire knows
    PAUSED = "paused"  # has the floor, and is quiet at the moment
    KEYING = "keying"  # has the floor, and presses keys: what sounds meanwhile is no speech
    TRANSCRIBING = "transcribing"  # has finished; the words are still to come


class Agent(Enum):
    """The agent's state in the conversation (replies out of band are nobody's turn)."""

    IDLE = "idle"
    PREPARING = "preparing"  # a reply is on its way, and nothing of it can be heard
    EARLY = "early"  # has begun before the turn was over, and is taken back where that goes on
    REPLYING = "replying"  # can be heard
    PAUSED = "paused"  # went silent at a sound that is being judged
    INTERRUPTED = "interrupted"  # its response has ended; it resumes after a false interruption

    @property
    def says_nothing(self) -> bool:
        """Whether nothing of it is heard, or is about to be."""
        return self in (Agent.IDLE, Agent.INTERRUPTED)


HAS_FLOOR = (Caller.SPEAKING, Caller.PAUSED, Caller.KEYING)
# Beside whom the agent can be in these states. Only a sound that is being judged pauses the agent;
# who interrupts it has the floor; and it starts early in a pause, until the words are final.
LEGAL_BESIDE = {
    Agent.PAUSED: (Caller.OVERLAPPING,),
    Agent.INTERRUPTED: (Caller.SILENT, Caller.SPEAKING, Caller.PAUSED, Caller.TRANSCRIBING),
    Agent.EARLY: (Caller.PAUSED, Caller.TRANSCRIBING),
}


def is_legal(caller: Caller, agent: Agent) -> bool:
    return caller in LEGAL_BESIDE.get(agent, Caller)


@dataclass(frozen=True, slots=True)
class ReplyStatus:
    """The agent's reply in the conversation at one moment.

    is_open: its response has not ended on the wire. is_spoken: it has sound. heard_ms: of the whole
    reply; item_heard_ms: of its present item. remaining_ms: to be heard still, None while more may
    come. is_calling: it waits for tools that the server calls for it. said_lately: the text whose
    echo may be heard now. answers: the caller's turn it is for. released_s: when its first sound
    was let go. asks_to_wait: it is a line that is said until an answer is there.
    """

    response_id: str
    is_open: bool = True
    is_audible: bool = False
    is_spoken: bool = True
    heard_ms: float = 0.0
    item_heard_ms: float = 0.0
    remaining_ms: float | None = None
    is_calling: bool = False
    said_lately: str = ""
    answers: UserTurn | None = None
    released_s: float | None = None
    asks_to_wait: bool = False

    @property
    def ends_soon(self) -> bool:
        return self.remaining_ms is not None and self.remaining_ms < REPLY_ENDS_SOON_MS

    def is_fresh(self, onset_s: float) -> bool:
        """Whether the caller went on with the turn it answers, from `onset_s`, at once."""
        age_s = onset_s - self.released_s if self.released_s is not None else 0.0
        return self.answers is not None and age_s <= RETRACT_S

    @property
    def has_just_begun(self) -> bool:
        """Whether so little of it is heard that who speaks now had not finished."""
        return self.answers is not None and self.heard_ms <= TAKEN_BACK_MS

    def yields_to_voice(self, onset_s: float) -> bool:
        """Whether it gives way to a voice since `onset_s` before any word of it is known: what is
        said over a line belongs to the turn that it bridges, and words come no sooner than its.
        """
        return self.asks_to_wait or self.is_fresh(onset_s)


@dataclass(frozen=True, slots=True)
class CallStatus:
    """The facts that turn-taking does not own, measured at the moment of an event.

    reply: in the conversation, if there is one. is_answering: a response of the conversation is
    open on the wire, other than that of a reply that has started early. held_words: what the caller
    has said to which a reply is held whose first sound is there. agent_said: in its latest reply.
    """

    settings: SessionSettings
    reply: ReplyStatus | None = None
    is_answering: bool = False
    held_words: tuple[str, ...] | None = None
    agent_said: str = ""

    @property
    def answers_turns(self) -> bool:
        return self.creates_responses and self.settings.type == "realtime"

    @property
    def idle_timeout_ms(self) -> int | None:
        """Return the silence of both after which the client wants another turn."""
        detection = self.settings.turn_detection
        return detection.idle_timeout_ms if isinstance(detection, ServerVad) else None

    @property
    def allows_interruption(self) -> bool:
        detection = self.settings.turn_detection
        return detection is not None and detection.interrupt_response

    @property
    def creates_responses(self) -> bool:
        detection = self.settings.turn_detection
        return detection is not None and detection.create_response

    @property
    def asks_to_wait(self) -> bool:
        """Whether what is said at the moment is no answer."""
        return self.reply is not None and self.reply.asks_to_wait

    @property
    def may_ask_to_wait(self) -> bool:
        """Whether a line may be said: it is for who hears nothing, and would read none."""
        return self.settings.speaks and not self.is_answering

    @property
    def has_answer(self) -> bool:
        """Whether an answer is given at the moment, or a reply that takes its place."""
        return self.is_answering and not self.asks_to_wait

    @property
    def agent_has_floor(self) -> bool:
        """The agent speaks or is about to, and the caller may take that from it."""
        reply = self.reply
        return (
            reply is not None and self.allows_interruption and (reply.is_open or reply.is_audible)
        )


@dataclass(frozen=True, slots=True)
class PendingTranscript:
    """A turn whose words are to come; has_item: it stands in the conversation already.

    is_answered_anyway: even where it holds no words, for it was ended for its length, or its caller
    was asked to wait.
    """

    has_item: bool
    is_to_be_answered: bool
    is_answered_anyway: bool = False


class TurnTaking:
    """One call's turns. `on` takes an event and returns what is to be done, in order.

    is_strict: an illegal pair of states raises (in tests); else it is logged.
    """

    is_strict: ClassVar[bool] = False

    def __init__(self, options: BargeIn, language: str = "en") -> None:
        self.caller = Caller.SILENT
        self.agent = Agent.IDLE
        self.interrupted_id: str | None = None  # the response of the reply that may resume
        self._transition: tuple[Caller, Agent, told.CallEvent, list[do.Action]] | None = None
        self._judge = BargeInJudge(options, language)
        self._level = CallerLevel()
        self._activity: Activity | None = None  # of the open segment, the latest
        self._pending: dict[int, PendingTranscript] = {}  # by segment
        self._deferred: list[ResponseHandle] = []  # asked for before the caller's words were known
        self._owed: UserTurn | None = None  # to be answered when nobody speaks
        self._behind_line: do.FailReply | Step | None = None  # follows the line that is being said
        self.waits = False  # the caller asked for it, and is to speak first
        self._has_news = False  # to be answered when nobody speaks: of tools, of a call resumed
        self.is_over = False  # the session ends: nothing is answered any more

    def take(self, options: BargeIn, language: str) -> None:
        """Another agent goes on with the call, by these manners."""
        self._judge = BargeInJudge(options, language)

    @property
    def is_idle(self) -> bool:
        is_quiet = self.caller is Caller.SILENT and self._owed is None
        return is_quiet and self.agent is Agent.IDLE

    def on(self, event: told.CallEvent, status: CallStatus) -> list[do.Action]:
        """Return what to do about this event; one that is out of date asks nothing.

        Raises: RuntimeError, where it is strict: caller and agent cannot both be in these states.
        """
        if self.is_over:
            return []
        caller, agent = self.caller, self.agent
        actions = []
        for action in self._answer(event, status):
            self.agent = self._decided(action, status)
            actions.append(action)
        if (self.caller, self.agent) != (caller, agent):
            self._transition = caller, agent, event, actions
        if not is_legal(self.caller, self.agent):
            pair = f"{self.caller.value} and {self.agent.value} after {type(event).__name__}"
            if self.is_strict:
                raise RuntimeError(f"expected caller and agent in a legal pair, found {pair}")
            log.error("expected caller and agent in a legal pair, found %s", pair)
        return actions

    def take_transition(self) -> str:
        """The last change of a state, for a log: states, event and actions; once."""
        if self._transition is None:
            return ""
        (caller, agent, event, actions), self._transition = self._transition, None
        done = ", ".join(map(name_of, actions)) or "nothing to do"
        states = f"caller {caller.value} -> {self.caller.value}, agent {agent.value} -> "
        return f"{states}{self.agent.value}, at {type(event).__name__}: {done}"

    # --- the agent's state ---

    def _decided(self, action: do.Action, status: CallStatus) -> Agent:
        """Return what the agent does after this decision."""
        reply, agent = status.reply, self.agent
        match action:
            case do.AnswerTurn() | do.AskToWait() | do.SpeakFirst() | do.FailReply(is_told=True):
                return Agent.PREPARING
            case Step.ASK_AGAIN | Step.ACKNOWLEDGE | Step.RESUME_INTERRUPTED:
                return Agent.PREPARING
            case do.BeginReply(response=response) if not response.is_out_of_band:
                return Agent.PREPARING
            case do.InterruptReply(may_resume=may_resume) if reply is not None:
                self.interrupted_id = reply.response_id if may_resume else None
                return Agent.INTERRUPTED if may_resume else Agent.IDLE
            case do.CancelReply(response_id=id_) if reply is not None and reply.response_id == id_:
                return Agent.IDLE
            case Step.DROP_INTERRUPTED if agent is Agent.INTERRUPTED:
                return Agent.IDLE
            case do.TakeBack() if agent is Agent.EARLY:
                return Agent.IDLE
            case Step.DROP_PREEMPTIVE | Step.ABANDON_PREPARATION | Step.LEAVE_UNANSWERED if (
                agent is Agent.EARLY
            ):
                return Agent.IDLE
            case do.CountBargeIn(verdict="hold"):
                return Agent.PAUSED
            case Step.RESUME if agent is Agent.PAUSED and reply is not None:
                return Agent.REPLYING if reply.is_audible else Agent.PREPARING
        return agent

    def _report(self, event: told.CallEvent) -> None:
        match event:
            case told.ReplyAudible() if self.agent is Agent.PREPARING:
                self.agent = Agent.REPLYING
            case told.StartedEarly():
                self.agent = Agent.EARLY
            case told.ReplyEnded(had_floor=True):
                self.agent = Agent.IDLE

    def _answer(self, event: told.CallEvent, status: CallStatus) -> Actions:
        match event:
            case told.KeysPressed(onset_ms=onset_ms):
                yield from self._press_keys(onset_ms, status)
            case told.KeysEntered(turn=turn):
                yield from self._enter_keys(turn, status)
            case heard.ListenEvent() if self._is_beside_keys(event):
                if isinstance(event, heard.EndOfTurn):
                    yield Step.DISCARD_SEGMENT
            case heard.SoundHeard():
                yield from self._suspect(event, status)
            case heard.SoundLost() if self.agent is Agent.EARLY:
                yield Step.RESUME
            case heard.SoundLost():
                if status.agent_has_floor and self._judge.options.is_allowed:
                    yield Step.RESUME
            case heard.SpeechStarted(activity=activity) | heard.SpeechWindow(activity=activity):
                if isinstance(event, heard.SpeechStarted):
                    self._judge.reset()
                yield from self._observe(activity, status)
            case heard.WordsHeard():
                yield from self._read(event, status)
            case heard.PauseWeighed():
                is_asked_for = self.caller in HAS_FLOOR and status.creates_responses
                waits = self._leaves_alone(event.words, status)
                if is_asked_for and self.agent.says_nothing and not waits:
                    yield do.ConsiderPreemptiveReply(event)
            case heard.GroupHeard():
                is_beside = self.caller is Caller.PAUSED and status.reply is None
                if is_beside and self.agent.says_nothing and status.may_ask_to_wait:
                    yield Step.ACKNOWLEDGE
            case heard.EndIsLikely():
                yield from self._start_early(event, status)
            case heard.EndOfTurn():
                yield from self._end_turn(event, status)
            case heard.TurnTranscribed(turn=turn):
                yield from self._take_words(turn, status)
            case heard.WordsLate(turn=turn) if self._awaits(turn.segment, status):
                pending = self._pending[turn.segment]
                self._pending[turn.segment] = replace(pending, is_answered_anyway=True)
                yield do.AskToWait(turn)
            case heard.TranscriptionFailed():
                yield from self._do_without_words(event, status)
            case told.SegmentCommitted(segment=segment):  # the client will ask for the answer
                yield Step.DROP_INTERRUPTED
                yield from self._let_agent_go_on(status)
                self._pending[segment] = PendingTranscript(True, is_to_be_answered=False)
                self._caller_stops()
            case told.ReplyAudible() | told.StartedEarly():
                self._report(event)
            case told.ReplyEnded(line_said=line_said, act=act):
                self._report(event)
                if act is not None and self.caller not in HAS_FLOOR:
                    yield do.ActOnCall(act)
                if line_said is not None:
                    yield from self._follow_line(line_said)
                yield from self._settle(status)
            case told.GreetingDue(text=text):
                is_free = status.reply is None and not status.is_answering
                if is_free and self.caller not in HAS_FLOOR:
                    yield from self._begin(do.SpeakFirst(text))
            case told.CallerIdle() if self.waits and self.caller is Caller.SILENT:
                self.waits = False
                yield Step.ASK_BACK
            case told.CallerIdle(since_ms=since_ms):
                if self.caller is Caller.SILENT and not status.is_answering:
                    yield from self._begin(do.SpeakFirst(idle_since_ms=since_ms))
            case told.AnswerOwed() if status.creates_responses:
                self._has_news = True
                yield from self._settle(status)
            case told.CallEnding():
                self.is_over = True
                yield do.WatchIdleness(is_idle=False)
            case _:
                yield from self._obey(event, status)

    # --- the caller is heard ---

    def _suspect(self, sound: heard.SoundHeard, status: CallStatus) -> Actions:
        """The beginning of a sound, too short to judge: send no further ahead than must be.

        Where its sound has lasted long enough by itself, it is acted on now that it is noticed.
        """
        is_allowed = status.agent_has_floor and self._judge.options.is_allowed
        reply, goes_on = status.reply, sound.sign == "back"
        is_fresh = reply is not None and reply.has_just_begun and (goes_on or reply.heard_ms > 0.0)
        if self.agent is Agent.EARLY or (is_allowed and is_fresh and not self._judge.hears_itself):
            yield Step.PAUSE  # the caller may go on
            return
        if not is_allowed or goes_on:
            return
        verdict = self._judge.suspect(sound.lasting_ms, sound.sign)
        yield from PLAYOUT_FOR[verdict] if verdict is not None else (Step.REDUCE_LEAD,)

    def _observe(self, activity: Activity, status: CallStatus) -> Actions:
        """The open segment goes on: a turn of the caller, or a sound over the agent."""
        self._activity = activity
        if self.caller in HAS_FLOOR:
            had_paused = self.caller is Caller.PAUSED
            self.caller = Caller.PAUSED if activity.silence_ms else Caller.SPEAKING
            if self.caller is Caller.SPEAKING:
                if self.agent is Agent.EARLY:
                    yield from (Step.PAUSE, do.OpenUserTurn(activity.goes_on_ms), do.TakeBack(True))
                elif had_paused and not status.is_answering:
                    yield do.OpenUserTurn(activity.goes_on_ms)  # it may have been closed
                yield Step.REST_PREEMPTIVE
        elif status.agent_has_floor:
            self.caller = Caller.OVERLAPPING
            yield from self._judge_overlap(activity, status)
        elif not self._is_elsewhere(activity, status):
            yield from self._caller_begins(activity, status)
        elif activity.silence_ms >= RESUME_SILENCE_MS:
            yield from self._leave_out(activity, activity.onset_ms + activity.speech_ms, status)

    def _is_elsewhere(self, activity: Activity, status: CallStatus) -> bool:
        """Whether a sound that is over the agent no more is somebody else's: one that was judged
        there and outlasts it, or one that began in silence and has lasted for as long as it takes.
        """
        if self.caller is not Caller.OVERLAPPING:
            was_judged = self._judge.state != "idle"  # it took the floor
            is_short = activity.speech_ms < LEAST_TURN_MS
            if was_judged or is_short or not status.answers_turns:
                return False
        self._observe_level(activity)
        return self._judge.is_elsewhere

    def _observe_level(self, activity: Activity) -> None:
        self._judge.observe_level(self._level.log_odds(activity.level_db, activity.onset_ms))

    def _leaves_alone(self, words: tuple[str, ...], status: CallStatus) -> bool:
        """Whether the open turn is not to be answered if it ends here: the agent is to wait, or
        somebody else is spoken to, or speaks."""
        if self._judge.asks_to_wait(words, status.agent_said):
            return True
        return self._activity is not None and self._is_elsewhere(self._activity, status)

    def _leave_out(self, activity: Activity, end_ms: float, status: CallStatus) -> Actions:
        """Leave out what was said over the agent, or in its silence: it was not the caller's turn.

        In silence the wire has heard that somebody speaks; it hears as of a noise that it is over.
        """
        in_silence = not status.agent_has_floor
        if in_silence or self._judge.is_kept_out_by_level:
            self._level.keep_out(end_ms, in_silence=in_silence)
            yield do.CountBargeIn("kept_out", activity.onset_arrival_s)
        if self.caller in HAS_FLOOR:
            yield do.CloseUserTurn(end_ms)
            yield from (Step.DROP_USER_ITEM, Step.ABANDON_PREPARATION)
        yield from self._let_agent_go_on(status)
        self._caller_stops()
        yield Step.DISCARD_SEGMENT
        if in_silence:  # else its end settles what is due
            yield from self._settle(status)

    def _judge_overlap(self, activity: Activity, status: CallStatus) -> Actions:
        reply, judge = status.reply, self._judge
        assert reply is not None  # the agent has the floor
        judge.observe_agent(reply.said_lately)
        self._observe_level(activity)
        is_kept_out = judge.is_kept_out_by_level
        verdict = judge.judge(
            activity.speech_ms, activity.silence_ms, reply_ends_soon=reply.ends_soon,
            voice=activity.voice, led_in_ms=activity.led_in_ms,
        )  # fmt: skip
        if verdict is not None:
            yield do.CountBargeIn(verdict, activity.onset_arrival_s)
            yield from PLAYOUT_FOR[verdict]
        elif judge.state == "idle" and (activity.silence_ms or judge.hears_itself):
            yield Step.RESUME  # nothing will come of it that is worth a short lead
        yields = reply.yields_to_voice(activity.onset_arrival_s)
        if verdict == "stop" or (yields and judge.is_paused_by_voice(activity.speech_ms)):
            yield from self._caller_begins(activity, status, interrupts=True)
        elif verdict == "hold":
            yield Step.REQUEST_WORDS
        elif verdict == "resume":
            if is_kept_out:
                self._level.keep_out(activity.onset_ms + activity.speech_ms, in_silence=False)
                yield do.CountBargeIn("kept_out", activity.onset_arrival_s)
            self._caller_stops()
            yield Step.DISCARD_SEGMENT

    def _caller_begins(
        self, activity: Activity, status: CallStatus, *, interrupts: bool = False
    ) -> Actions:
        """The caller has the floor. The wire hears of it before anything else.

        Where the caller had not finished, what was said of the answer counts as never said, whether
        it is the voice that goes on or its words.
        """
        reply = status.reply if interrupts else None
        if reply is not None:
            yield Step.PAUSE
        self.caller = Caller.PAUSED if activity.silence_ms else Caller.SPEAKING
        yield do.OpenUserTurn(activity.onset_ms)
        if reply is not None:
            retracts = reply.is_fresh(activity.onset_arrival_s)
            is_unbegun = reply.heard_ms == 0.0 and not reply.is_calling
            if self._owed is None and (retracts or is_unbegun):
                self._owed = reply.answers  # nothing came of it: it is owed still
            is_speech = self._judge.by_words or not reply.is_spoken
            may_resume = not is_speech and self._owed is None
            heard_ms = None if retracts else reply.item_heard_ms
            yield do.InterruptReply(heard_ms, may_resume, activity.onset_ms)
        if not interrupts:
            self._judge.reset()  # where the reply ended under the sound, too
        yield Step.DROP_PREEMPTIVE
        yield do.WatchIdleness(is_idle=False)
        yield Step.PREFILL

    def _read(self, words: heard.WordsHeard, status: CallStatus) -> Actions:
        has_floor = self.caller in HAS_FLOOR
        self._judge.observe_sound(words.for_agent)
        if has_floor or status.settings.turn_detection is None:
            is_other = words.stable + words.unstable != status.held_words
            if self.agent is Agent.EARLY and is_other and self._activity is not None:
                at_ms = self._activity.goes_on_ms  # nobody speaks, but the client is to flush
                yield from (Step.PAUSE, do.OpenUserTurn(at_ms), do.TakeBack(is_cut=False))
                yield do.CloseUserTurn(at_ms)
            yield do.StageWords(words.stable, words.unstable, words.is_full)
            if has_floor and words.stable:
                yield Step.DROP_INTERRUPTED
            if has_floor and (words.stable or words.unstable or words.is_full):
                yield do.SendPartial(words.stable, words.unstable)
        elif self.caller is Caller.OVERLAPPING and self._activity is not None:
            self._judge.observe_words(words.stable + words.unstable)
            yield from self._observe(self._activity, status)

    # --- keys ---

    def _press_keys(self, onset_ms: float, status: CallStatus) -> Actions:
        """The first key of a turn: it is meant for the agent, whatever sounds at the same time.

        What was being said beside it is left out: a tone is heard as words, too.
        """
        reply, self._activity = status.reply, None
        self._judge.reset()
        self.caller = Caller.KEYING
        if self.agent is Agent.EARLY:
            yield from (Step.PAUSE, do.TakeBack(is_cut=True), Step.DROP_USER_ITEM)
        yield Step.IGNORE_TONE
        interrupts = status.agent_has_floor and reply is not None
        if interrupts:
            yield Step.PAUSE
        yield do.OpenUserTurn(onset_ms)
        if reply is not None and interrupts:
            yield do.InterruptReply(reply.item_heard_ms, may_resume=False, onset_ms=onset_ms)
        yield from (Step.DROP_INTERRUPTED, Step.DROP_PREEMPTIVE)
        yield from (do.WatchIdleness(is_idle=False), Step.PREFILL)

    def _enter_keys(self, turn: UserTurn, status: CallStatus) -> Actions:
        if self.caller is not Caller.KEYING:
            return  # turn detection was switched off meanwhile
        yield Step.IGNORE_TONE
        yield do.CloseUserTurn(turn.end_ms)
        yield do.CommitUserItem(turn.segment)
        self._pending[turn.segment] = PendingTranscript(True, status.answers_turns)
        self._caller_stops()
        yield from self._take_words(turn, status)

    def _is_beside_keys(self, event: heard.ListenEvent) -> bool:
        """Whether this is of sound while keys are pressed, and not of a turn before."""
        of_before = (heard.TurnTranscribed, heard.TranscriptionFailed, heard.WordsLate)
        return self.caller is Caller.KEYING and not isinstance(event, of_before)

    # --- the caller's turn ends ---

    def _start_early(self, end: heard.EndIsLikely, status: CallStatus) -> Actions:
        is_free = self.agent.says_nothing and not self._judge.hears_itself
        is_alone = self.caller is Caller.PAUSED and not self._pending and not self._deferred
        waits = self._leaves_alone(end.hypothesis, status)
        is_held = status.settings.takes_answers_back and end.hypothesis == status.held_words
        if is_free and is_alone and not waits and is_held:
            yield do.CloseUserTurn(end.end_ms)
            yield do.CommitUserItem(end.segment, stays_open=True)
            yield Step.DROP_INTERRUPTED
            yield do.StartEarly(end.unsure_ms)

    def _end_turn(self, end: heard.EndOfTurn, status: CallStatus) -> Actions:
        activity = self._activity
        is_open = self.caller in (Caller.OVERLAPPING, *HAS_FLOOR)
        if activity is None or not is_open:
            yield Step.DISCARD_SEGMENT
            return
        if self.caller is Caller.OVERLAPPING:
            interrupts = status.agent_has_floor
            ends_soon = status.reply is not None and status.reply.ends_soon
            if interrupts:
                is_turn = self._judge.takes_floor_late(
                    end.hypothesis, activity.speech_ms,
                    reply_ends_soon=ends_soon, voice=activity.voice,
                )  # fmt: skip
            else:
                is_turn = not self._is_elsewhere(activity, status)
            if not is_turn:
                yield from self._leave_out(activity, end.end_ms, status)
                return
            yield from self._caller_begins(activity, status, interrupts=interrupts)
        elif self.agent is not Agent.EARLY and self._is_elsewhere(activity, status):
            yield from self._leave_out(activity, end.end_ms, status)
            return
        if self.agent is Agent.EARLY:
            yield Step.RESUME  # a sound may have paused it, of which nothing came
        yield Step.END_SEGMENT
        yield do.CloseUserTurn(end.end_ms)
        has_item = bool(end.hypothesis)
        if has_item:
            if self._level.take(activity.level_db, activity.speech_ms, activity.onset_ms):
                yield do.CountBargeIn("second_try", activity.onset_arrival_s)
            yield do.CommitUserItem(end.segment)
            yield Step.DROP_INTERRUPTED
        is_answered = self.agent is Agent.EARLY or status.answers_turns
        self._pending[end.segment] = PendingTranscript(has_item, is_answered, end.is_overlong)
        self._caller_stops()

    def _caller_stops(self) -> None:
        self._activity = None
        self.caller = Caller.TRANSCRIBING if self._pending else Caller.SILENT

    def _pop_pending(self, segment: int) -> PendingTranscript | None:
        pending = self._pending.pop(segment, None)
        if self.caller is Caller.TRANSCRIBING and not self._pending:
            self.caller = Caller.SILENT
        return pending

    def _awaits(self, segment: int, status: CallStatus) -> bool:
        """Whether an answer waits for nothing but the words of this segment."""
        if self.caller is not Caller.TRANSCRIBING or not status.may_ask_to_wait:
            return False
        pending = self._pending.get(segment)
        return pending is not None and pending.is_to_be_answered

    def _take_words(self, turn: UserTurn, status: CallStatus) -> Actions:
        if (pending := self._pop_pending(turn.segment)) is None:
            return
        has_item = pending.has_item or bool(turn.words)
        if has_item and not pending.has_item:
            yield from self._commit_late(turn.segment)
        if has_item or not pending.is_to_be_answered:
            yield Step.DROP_INTERRUPTED
        if has_item:
            yield do.SendTranscript(turn)
            is_wait = self._judge.asks_to_wait(turn.words, status.agent_said)
            self.waits = pending.is_to_be_answered and is_wait
            if self.waits:
                self._owed = None  # what was owed before waits as well
                yield Step.LEAVE_UNANSWERED
            elif pending.is_to_be_answered:
                self._owed = turn
        elif self.caller not in HAS_FLOOR:
            yield from (Step.DROP_USER_ITEM, Step.ABANDON_PREPARATION)
        is_due = pending.is_to_be_answered and self._owed is None  # else there are words to answer
        asks = pending.is_answered_anyway and is_due and not has_item
        if asks and not status.has_answer and self.caller not in HAS_FLOOR:
            self._has_news = False
            yield from self._do_without_answer(Step.ASK_AGAIN, status)
        yield from self._settle(status)

    def _do_without_words(self, failed: heard.TranscriptionFailed, status: CallStatus) -> Actions:
        """Whether the sound held words nobody can tell: the client hears of it either way."""
        turn = failed.turn
        if (pending := self._pop_pending(turn.segment)) is None:
            return
        if not pending.has_item:
            yield from self._commit_late(turn.segment)
        yield Step.DROP_INTERRUPTED
        has_floor = self.caller in HAS_FLOOR
        if not has_floor:
            yield Step.ABANDON_PREPARATION
        yield do.SendTranscript(turn, failed.error)
        if pending.is_to_be_answered and not status.has_answer:
            # Who has begun again is not spoken over.
            failing = do.FailReply(turn, failed.error, is_told=not has_floor)
            yield from self._do_without_answer(failing, status)
        yield from self._settle(status)

    def _do_without_answer(self, action: do.FailReply | Step, status: CallStatus) -> Actions:
        """Say why there is none: behind the line, where one is being said."""
        if status.asks_to_wait:
            self._behind_line = action
        else:
            yield action

    def _follow_line(self, is_whole: bool) -> Actions:
        """The line is over. Who broke it off is not told why nothing follows."""
        action, self._behind_line = self._behind_line, None
        if action is not None and is_whole:
            yield action
        elif isinstance(action, do.FailReply):
            yield do.FailReply(action.turn, action.error, is_told=False)

    def _commit_late(self, segment: int) -> Actions:
        """Words came where none were expected; the caller may be speaking again already."""
        yield do.CommitUserItem(segment)
        if self.caller in HAS_FLOOR and self._activity is not None:
            yield do.OpenUserTurn(self._activity.onset_ms)

    # --- the agent's turn ---

    def _settle(self, status: CallStatus) -> Actions:
        """Give what is due, where nothing stands in the way."""
        is_free = self.caller not in HAS_FLOOR and not self._pending
        if is_free:
            deferred, self._deferred = self._deferred, []
            for response in deferred:
                if not response.closed:
                    yield from self._begin(do.BeginReply(response), response)
        is_under_way = status.is_answering or self.agent is Agent.PREPARING
        if is_free and not is_under_way and not status.asks_to_wait:
            if self._owed is not None:
                owed, self._owed, self._has_news = self._owed, None, False
                yield do.AnswerTurn(owed)
            elif self.agent is Agent.INTERRUPTED:  # what interrupted it was no word
                yield Step.RESUME_INTERRUPTED
            elif self._has_news and status.creates_responses:
                self._has_news = False
                yield do.SpeakFirst()
        timeout_ms = ASKS_BACK_MS if self.waits else status.idle_timeout_ms
        yield do.WatchIdleness(self.is_idle, timeout_ms)

    def _begin(self, action: do.Action, response: ResponseHandle | None = None) -> Actions:
        """A reply that answers no turn by itself; in the conversation it is the answer owed."""
        yield action
        if response is None or not response.is_out_of_band:
            self._owed, self._behind_line, self._has_news = None, None, False
            self.waits = False
            yield do.WatchIdleness(is_idle=False)

    def _let_agent_go_on(self, status: CallStatus) -> Actions:
        """The sound that ducked or paused the agent is nobody's: no silence will end it."""
        self._judge.reset()
        if status.reply is not None:
            yield Step.RESUME

    # --- the client's commands ---

    def _obey(self, command: told.CallEvent, status: CallStatus) -> Actions:
        match command:
            case asked.ClearAudio():
                self._caller_stops()
                yield Step.DROP_INTERRUPTED
                yield from self._let_agent_go_on(status)
                yield Step.DISCARD_SEGMENT
                yield Step.ABANDON_PREPARATION
                yield from self._settle(status)
            case asked.CreateResponse(response=response):
                is_early = self._pending or (
                    self.caller in HAS_FLOOR and not response.is_out_of_band
                )
                if is_early and response.request.input is None:
                    self._deferred.append(response)  # its prompt lacks the caller's words so far
                else:
                    yield from self._begin(do.BeginReply(response), response)
            case asked.CancelResponse(response_id=response_id):
                yield from self._cancel(response_id, status)
            case asked.SettingsChanged():
                yield from self._adopt_settings(status)

    def _cancel(self, response_id: str | None, status: CallStatus) -> Actions:
        """The client wants no more of this response; None: of the reply that may resume."""
        if self.agent is Agent.INTERRUPTED and response_id in (None, self.interrupted_id):
            yield Step.DROP_INTERRUPTED
            yield from self._settle(status)
        elif response_id is not None:
            if status.reply is not None and status.reply.response_id == response_id:
                self._judge.reset()
            yield do.CancelReply(response_id)

    def _adopt_settings(self, status: CallStatus) -> Actions:
        if not status.allows_interruption:
            yield from self._let_agent_go_on(status)
        if status.settings.turn_detection is not None:
            return
        yield Step.DROP_INTERRUPTED
        had_floor = self.caller in HAS_FLOOR
        is_open = had_floor or self.caller is Caller.OVERLAPPING
        if is_open:
            self._caller_stops()
        if had_floor:
            yield from (Step.DROP_USER_ITEM, Step.ABANDON_PREPARATION)
        if is_open:
            yield from self._settle(status)
