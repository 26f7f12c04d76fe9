"""Whether a sound over the agent's speech is an interruption: a pure state machine.

Owns the judgement duck -> pause -> stop, or back to full loudness. The pause comes fast and costs
nothing: the wire is silent from there, and a resume goes on at the very next sample. The stop is
for good, so it waits for evidence: several words that are no backchannel, a word that asks for the
floor, or a plain voice that goes on. "mm-hm", a cough and the agent's own echo give the floor back.
Every state is left by speech (towards stop) or by silence (towards resume), and none keeps a paused
agent waiting: a sound that after LONGEST_PAUSED_MS is neither words nor plainly a voice is talked
over, until it turns out to be one of them.
How loud this caller speaks tells a bystander and an echo from the caller: `CallerLevel` owns the
levels of the caller's latest turns, in dB of the loud parts of a sound.
Times are milliseconds of speech or silence on the audio clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from voiceloop.agent import BargeIn
from voiceloop.backends import normalize
from voiceloop.call.addressed import (
    Wording,
    asks_to_wait,
    is_aside,
    offers_to_wait,
    wording_of,
)
from voiceloop.listening.events import Sign
from voiceloop.slots.numbers import FILLERS

Verdict = Literal["duck", "hold", "stop", "go_on", "resume"]

# After so much of a voice, its lead-in counted ("st" in "stop"), the agent gets quieter, and falls
# silent. A plain voice that lasts for STOP_MS takes the floor, whatever the words. The
# caller hears nothing sooner at 250 ms, where 35 % of backchannels and noises end the reply; at
# 1000 ms 4.9 % do (benchmarks/LOG.md, 2026-11-21, "when a sound over the agent is for good").
DUCK_MS, HOLD_MS, STOP_MS = 60.0, 128.0, 1000.0
RESUME_SILENCE_MS = 220.0  # between the syllables of "mm-hm" lie up to 150 ms
# How much longer the speech of a listed backchannel, and words of a voice the detector doubts, may
# go on.
BACKCHANNEL_PATIENCE = 1.6
DOUBT_PATIENCE = 2.0
LONGEST_PAUSED_MS = 2000.0  # nobody waits longer for an agent that went silent at a noise
SURE_VOICE = 0.8  # mean probability of its windows: voices mostly above, babble and dishes below
# Log-odds that a sound is words for the agent (`audio.for_agent`): below the first its words wait
# until it is over or has lasted STOP_MS, below the second twice as long, and nothing but words
# takes the floor; from the third on it is plainly a caller, who takes it after SOONER of STOP_MS.
# Chosen on people whom the head had not heard, of whose readings 20, 7 and 42 % lie below
# (benchmarks/LOG.md, 2026-11-23, "a caller by the sound").
UNSURE_LOG_ODDS, AGAINST_LOG_ODDS, CALLER_LOG_ODDS = 0.0, -1.5, 1.5
SOONER = 0.6
DOUBTFUL_LOG_ODDS = UNSURE_LOG_ODDS - 0.01  # the most that a soft voice has
# Several words take at least so long to say: a shorter sound that is heard as some is none. Chosen.
SEVERAL_WORDS_MS = 450.0
# Below the second a voice is soft by its level, some 5 dB softer than the caller's turns: its words
# wait until it is over, as those of a doubtful sound do. Where sound and level together lie below
# the first it is somebody's elsewhere, or said aside, and its words do not count; by the level
# alone, where nobody reads the sound, below the third. Chosen (LOG.md, 2026-11-28, "asides by the
# level, the sound and the words").
ELSEWHERE_LOG_ODDS, SOFT_LOG_ODDS, FAR_LOG_ODDS = -1.5, -1.0, -3.5
# Before so much of a sound its level may be that of a soft beginning: the agent stays silent.
ELSEWHERE_AFTER_MS = 480.0
ECHO_SHARE = 0.6  # so many of the words are the agent's own: it hears itself


@dataclass(slots=True)
class BargeInJudge:
    """Judges one segment of speech over the agent; `reset` when it is over."""

    options: BargeIn
    language: str = "en"  # of the caller
    state: Literal["idle", "ducked", "paused", "talking_over", "stopped"] = "idle"
    words: tuple[str, ...] = ()
    for_agent: float | None = None  # by the sound of it; None: nobody can tell
    by_level: float = 0.0  # log-odds that it is the caller's, by its level: 0 or less
    by_words: bool = False  # it took the floor by what was said
    _agent_words: tuple[str, ...] = ()
    hears_itself: bool = False  # what it hears is the agent: only words may duck that
    _backchannel_words: frozenset[str] = field(init=False)
    _stop_words: tuple[str, ...] = field(init=False)
    _hold_words: tuple[str, ...] = field(init=False)
    _wording: Wording | None = field(init=False)

    def __post_init__(self) -> None:
        """A file may write them as its language does ("Einen Moment")."""
        options, usual, wording = self.options, BargeIn(), wording_of(self.language)
        self._wording = wording
        backchannels, stop, hold = options.backchannels, options.stop_words, options.hold_words
        if wording is not None:  # a list that the file leaves as it is is English
            if backchannels == usual.backchannels:
                backchannels += tuple(wording.backchannels)
            if stop == usual.stop_words:
                stop += wording.stop
            if hold == usual.hold_words:
                hold += wording.hold
        self._backchannel_words = frozenset(_normalized(backchannels)) | FILLERS
        self._stop_words, self._hold_words = (
            tuple(filter(None, (" ".join(_normalized((phrase,))) for phrase in phrases)))
            for phrases in (stop, hold)
        )

    def reset(self) -> None:
        self.state, self.words, self.for_agent, self.by_level = "idle", (), None, 0.0

    def observe_words(self, words: Iterable[str]) -> None:
        self.words = _normalized(words)

    def observe_sound(self, for_agent: float | None) -> None:
        """The latest log-odds that this segment is words for the agent, by its sound."""
        self.for_agent = for_agent

    def observe_level(self, log_odds: float) -> None:
        """Take in the level of this segment, as `CallerLevel.log_odds`."""
        if self.options.speakers == "caller":
            self.by_level = log_odds

    def observe_agent(self, text: str) -> None:
        """Take in what the caller has just heard of the agent; an echo repeats it."""
        self._agent_words = tuple(normalize(word) for word in text.replace("-", " ").split())

    def suspect(self, lasting_ms: float, sign: Sign = "loud") -> Verdict | None:
        """Return what to do at the beginning of a sound that is not yet known to be speech: it
        changes no state, and is taken back where no speech comes of it.

        lasting_ms: so long the sound has lasted by its loudness. sign: why it may be speech; only
        the first loud window of the voice detector may silence the agent.
        """
        if not self.options.is_allowed or self.hears_itself or sign == "risen":
            return None
        if sign == "loud" and lasting_ms >= HOLD_MS:
            return "hold"
        return "duck" if lasting_ms >= DUCK_MS else None

    def judge(
        self,
        speech_ms: float,
        silence_ms: float,
        *,
        reply_ends_soon: bool,
        voice: float = 1.0,
        led_in_ms: float = 0.0,
    ) -> Verdict | None:
        """Return what to do now, or None.

        speech_ms: speech of this segment so far; silence_ms: since its last sound (0 while it
        lasts). reply_ends_soon: the agent has nearly finished, so a "yeah" is an answer to it.
        voice: mean probability of speech over the segment. led_in_ms: sound just before it that no
        detector calls a voice; the caller has been heard for so much longer, so duck and hold come
        so much sooner. "resume" gives the floor back when the sound is over, "go_on" takes it while
        the sound lasts.
        """
        if self.state == "stopped" or not self.options.is_allowed:
            return None
        is_over = silence_ms >= RESUME_SILENCE_MS
        if self.takes_floor(
            speech_ms, reply_ends_soon=reply_ends_soon, voice=voice, is_over=is_over
        ):
            self.state = "stopped"
            return "stop"
        if is_over:
            return self._give_back()
        is_endless = self.state == "paused" and speech_ms >= LONGEST_PAUSED_MS
        is_others = self.is_elsewhere and speech_ms >= ELSEWHERE_AFTER_MS
        if is_endless or (is_others and self.state in ("ducked", "paused")):
            self.state = "talking_over"
            return "go_on"
        if self.hears_itself and not self._content():
            return None
        heard_ms = led_in_ms + speech_ms
        is_begun = silence_ms == 0 and heard_ms >= DUCK_MS
        if self.state == "ducked" or (self.state == "idle" and is_begun):
            if heard_ms >= HOLD_MS:
                self.state = "paused"
                return "hold"
        if self.state == "idle" and is_begun:
            self.state = "ducked"
            return "duck"
        return None

    def is_paused_by_voice(self, speech_ms: float) -> bool:
        """The agent is paused, and by a voice that has lasted for HOLD_MS without its lead-in.

        A breath or a chair before a cough hastens the pause, which costs nothing. What cannot be
        undone waits for so much.
        """
        is_held = self.state == "paused" and speech_ms >= HOLD_MS
        return is_held and not self.is_elsewhere

    @property
    def is_elsewhere(self) -> bool:
        """Whether level and sound say that it is somebody else, or the loudspeaker."""
        if self.for_agent is None:
            return self.by_level <= FAR_LOG_ODDS
        return self.is_soft and self.for_agent + self.by_level <= ELSEWHERE_LOG_ODDS

    @property
    def is_soft(self) -> bool:
        """Whether it is plainly softer than the caller's turns."""
        return self.by_level <= SOFT_LOG_ODDS

    @property
    def _sounds_meant(self) -> float | None:
        """The log-odds of the sound; of a soft voice none are plain."""
        if self.for_agent is None or not self.is_soft:
            return self.for_agent
        return min(self.for_agent, DOUBTFUL_LOG_ODDS)

    @property
    def is_kept_out_by_level(self) -> bool:
        """Whether words of this sound would count, were it louder."""
        sounds_meant = self.for_agent is None or self.for_agent >= UNSURE_LOG_ODDS
        return self.is_elsewhere and sounds_meant and bool(self._content())

    def _is_for_others(self, content: tuple[str, ...], *, is_over: bool) -> bool:
        """Whether the words show that somebody else is spoken to, or may before they are over:
        behind "one moment" comes "please" or "honey", and the agent is silent by now.
        """
        if self._asks_for_floor(content) or not self._hold_words:
            return False
        waits_for = [words for words in self._hold_words if words not in self._stop_words]
        may_be = not is_over and asks_to_wait(self.words, waits_for, self._wording)
        return may_be or is_aside(self.words, over_agent=True, wording=self._wording)

    def asks_to_wait(self, words: Iterable[str], agent_said: str = "") -> bool:
        """Whether a turn of these words is left unanswered: the agent is to wait, or somebody else
        was spoken to. agent_said: before it, to which it may be the answer.
        """
        said = _normalized(words)
        is_asked = asks_to_wait(said, self._hold_words, self._wording)
        is_asked = is_asked and not offers_to_wait(agent_said, self._hold_words)
        is_aside_said = is_aside(said, over_agent=False, wording=self._wording)
        return is_asked or (bool(self._hold_words) and is_aside_said)

    def _give_back(self) -> Verdict | None:
        self.hears_itself = self.hears_itself or self.is_echo()
        was = self.state
        self.reset()
        return "resume" if was != "idle" else None

    def takes_floor(
        self,
        speech_ms: float,
        *,
        reply_ends_soon: bool = False,
        voice: float = 1.0,
        is_over: bool = False,
    ) -> bool:
        """Whether what was heard so far is enough to end the agent's turn. is_over: nothing more of
        it comes, so words that waited for it count now."""
        if self.is_echo():
            return False
        content = self._content()
        if self._is_for_others(content, is_over=is_over):
            self.by_words = False
            return False
        if self.is_elsewhere:
            self.by_words = self._asks_for_floor(content)
            return self.by_words
        self.by_words = self._speaks_up(content, speech_ms, is_over) or bool(
            reply_ends_soon and self.words
        )
        if self.by_words:
            return True
        is_plain, says_something = voice >= SURE_VOICE, bool(content) and not self._hums()
        if (for_agent := self._sounds_meant) is not None:
            is_caller = for_agent >= CALLER_LOG_ODDS
            is_plain = is_caller or (is_plain and for_agent > AGAINST_LOG_ODDS)
            if is_caller and (says_something or not self.words):
                return speech_ms >= SOONER * STOP_MS
        if not is_plain and not says_something:
            return False
        patience = 1.0 if is_plain else DOUBT_PATIENCE
        if self.words and not says_something:
            patience = BACKCHANNEL_PATIENCE
        return speech_ms >= patience * STOP_MS

    def takes_floor_late(
        self, words: tuple[str, ...], speech_ms: float, *, reply_ends_soon: bool, voice: float
    ) -> bool:
        """The sound is over before that was sure: its words, if there are any, decide."""
        self.observe_words(words)
        return bool(words and self.options.is_allowed) and self.takes_floor(
            speech_ms, reply_ends_soon=reply_ends_soon, voice=voice, is_over=True
        )

    def _speaks_up(self, content: tuple[str, ...], speech_ms: float, is_over: bool) -> bool:
        if self._asks_for_floor(content):
            return True
        n_words = len(content) if not self._hums() else 0
        least_ms = SEVERAL_WORDS_MS if self.options.least_words > 1 else 0.0
        if n_words < self.options.least_words or speech_ms < least_ms:
            return False
        for_agent = self._sounds_meant
        if for_agent is None or for_agent >= UNSURE_LOG_ODDS:
            return True
        # The agent is silent by now, so waiting costs little; and whatever it sounded like, a
        # caller's words count when the sound is over.
        patience = 1.0 if for_agent > AGAINST_LOG_ODDS else DOUBT_PATIENCE
        return is_over or speech_ms >= patience * STOP_MS

    def _content(self) -> tuple[str, ...]:
        """The words that no backchannel has; single letters are what a hum is heard as."""
        return tuple(
            word for word in self.words if len(word) > 1 and word not in self._backchannel_words
        )

    def _hums(self) -> bool:
        """A third of what was recognized is spelled: a hum has no better words."""
        n_letters = sum(len(word) == 1 and word not in "ai" for word in self.words)
        return 3 * n_letters >= len(self.words) > 0

    def _asks_for_floor(self, content: tuple[str, ...]) -> bool:
        said = f" {' '.join(content)} "
        return any(said.startswith(f" {phrase} ") for phrase in self._stop_words)

    def is_echo(self) -> bool:
        """Most of the words are what the agent has just said."""
        if len(self.words) < 2 or not self._agent_words:
            return False
        own = sum(word in self._agent_words for word in self.words)
        return own >= ECHO_SHARE * len(self.words)


def _normalized(words: Iterable[str]) -> tuple[str, ...]:
    split = (normalize(part) for word in words for part in word.replace("-", " ").split())
    return tuple(filter(None, split))


# A shorter turn ("yes") is often softer than the same person's sentences: of people on the
# telephone 8 % of the shorter ones lie 8 dB below their median, and 2 % of the others (LOG.md,
# 2026-11-24, "a caller by the level").
LEAST_TURN_MS = 900.0
ADOPTED_TURNS = 2  # of another caller, or device: the latest are all as soft
# Around the median of their earlier turns people's turns of that length lie by 2.2 dB (551 turns of
# 92 people, LOG.md as above), and here by a little more; two in a hundred are taken to lie
# anywhere, as after a step aside.
SPREAD_DB, OUTLIERS = 2.3, 0.02
# Somebody else, or the loudspeaker, is heard at any level below the caller's. Chosen: from the next
# chair to the next room.
ELSEWHERE_RANGE_DB = 23.0
KEPT_TURNS = 4
# A sound that was kept out and comes again may be a caller who has turned away: its level does not
# count. Over the agent that holds for who was kept out by the level alone. Chosen: who was not
# heard says it again within seconds. In silence a caller awaits the answer first, while a
# television or people in the room go on sooner; and some wait for as long as `ASKS_BACK_MS`.
SECOND_TRY_MS = 6000.0
ANSWER_AWAITED_MS, GIVES_UP_MS = 1200.0, 20_000.0


class CallerLevel:
    """`take` the turns; `log_odds` of a sound that may be somebody else's."""

    def __init__(self) -> None:
        self._levels: deque[float] = deque(maxlen=KEPT_TURNS)
        self._second_try_ms = 0.0, 0.0  # from when to when one may come

    def take(self, level_db: float | None, speech_ms: float, onset_ms: float) -> bool:
        """A turn of the caller's, and how long it lasted. Returns whether it is the second try of
        one that was kept out, and as soft: who speaks there is the caller from now on.
        """
        if level_db is None:
            return False
        is_soft = self._odds(level_db) <= SOFT_LOG_ODDS
        is_again = is_soft and self.is_second_try(onset_ms)
        if not is_soft:  # the caller has not turned away: who was kept out is somebody else
            self._second_try_ms = 0.0, 0.0
        if speech_ms < LEAST_TURN_MS:
            return False
        self._levels.extend([level_db] * (ADOPTED_TURNS if is_again else 1))
        return is_again

    def keep_out(self, end_ms: float, *, in_silence: bool) -> None:
        """Words that end there were not heeded because they were soft. in_silence: the agent's."""
        after_ms = (ANSWER_AWAITED_MS, GIVES_UP_MS) if in_silence else (0.0, SECOND_TRY_MS)
        self._second_try_ms = end_ms + after_ms[0], end_ms + after_ms[1]

    def is_second_try(self, onset_ms: float) -> bool:
        """Whether a sound that begins there comes soon after one that was kept out."""
        from_ms, until_ms = self._second_try_ms
        return from_ms <= onset_ms < until_ms

    def log_odds(self, level_db: float | None, onset_ms: float) -> float:
        """Return what a sound's level says of whether it is the caller's, and never for it: natural
        logarithm, 0 or less. 0 where the caller's level is not known yet, or the sound is the
        second try of one that was kept out. onset_ms: where it begins.
        """
        if level_db is None or self.is_second_try(onset_ms):
            return 0.0
        return self._odds(level_db)

    def _odds(self, level_db: float) -> float:
        if not self._levels:
            return 0.0
        # Who takes the telephone over, or another microphone, has said two turns as soft as this.
        known_db = min(median(self._levels), max(list(self._levels)[-ADOPTED_TURNS:]))
        # One turn alone lies as far from the caller's median as this one does.
        is_alone = len(self._levels) == 1
        return log_odds_of(known_db - level_db, SPREAD_DB * (math.sqrt(2.0) if is_alone else 1.0))


def log_odds_of(below_db: float, spread_db: float = SPREAD_DB) -> float:
    """Return the log odds of a sound that is so much softer than the caller, whose turns lie so far
    apart.
    """
    elsewhere = 1.0 / ELSEWHERE_RANGE_DB
    normal = math.exp(-0.5 * (below_db / spread_db) ** 2) / (spread_db * math.sqrt(2.0 * math.pi))
    callers = (1.0 - OUTLIERS) * normal + OUTLIERS * elsewhere
    return min(0.0, math.log(callers / elsewhere)) if below_db > 0.0 else 0.0
