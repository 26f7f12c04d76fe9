"""Whether a sound over the agent's speech is an interruption: a pure state machine.

Owns the judgement duck -> hold -> stop, or back to full loudness. "mm-hm" and a cough give the
agent its floor back; a word that is none of the listed backchannels, or speech that goes on, takes
it. Every state is left by speech (towards stop) or by silence (towards resume): none is dead.
Times are milliseconds of speech or silence on the audio clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from voiceloop.agent import BargeIn
from voiceloop.endpointing import normalize

Action = Literal["duck", "hold", "stop", "resume"]

RESUME_SILENCE_MS = 220.0  # between the syllables of "mm-hm" lie up to 150 ms
LONGEST_BACKCHANNEL_MS = 900.0  # speech that still sounds like one beyond this is a turn


@dataclass(slots=True)
class BargeInJudge:
    """Judges one stretch of speech over the agent; `reset` when it is over."""

    options: BargeIn
    state: Literal["idle", "ducked", "held", "stopped"] = "idle"
    words: tuple[str, ...] = ()

    def reset(self) -> None:
        self.state, self.words = "idle", ()

    def observe_words(self, words: tuple[str, ...]) -> None:
        self.words = tuple(filter(None, (normalize(word) for word in words)))

    def judge(self, speech_ms: float, silence_ms: float, *, reply_ends_soon: bool) -> Action | None:
        """What to do now, or None.

        speech_ms: speech of this stretch so far; silence_ms: since its last sound (0 while it
        lasts). reply_ends_soon: the agent has nearly finished, so a "yeah" is an answer to it.
        """
        if self.state == "stopped" or not self.options.enabled:
            return None
        if self._takes_floor(speech_ms, reply_ends_soon):
            self.state = "stopped"
            return "stop"
        if silence_ms >= RESUME_SILENCE_MS:
            was, self.state = self.state, "idle"
            self.words = ()
            return "resume" if was != "idle" else None
        if self.state == "ducked" and speech_ms >= self.options.hold_ms:
            self.state = "held"
            return "hold"
        if self.state == "idle" and silence_ms == 0 and speech_ms >= self.options.duck_ms:
            self.state = "ducked"
            return "duck"
        return None

    def _takes_floor(self, speech_ms: float, reply_ends_soon: bool) -> bool:
        if self.words:
            if not self.is_backchannel() or reply_ends_soon:
                return True
            return speech_ms >= LONGEST_BACKCHANNEL_MS
        return speech_ms >= self.options.stop_ms

    def is_backchannel(self) -> bool:
        """All words so far make a backchannel, or the beginning of one ("uh" of "uh huh")."""
        said = " ".join(self.words).replace("-", " ")
        rest = said
        listed = sorted((b.replace("-", " ") for b in self.options.backchannels), key=len)
        while rest:
            whole = next((b for b in reversed(listed) if (rest + " ").startswith(b + " ")), None)
            if whole is None:
                return any((b + " ").startswith(rest + " ") for b in listed)
            rest = rest[len(whole) :].strip()
        return bool(said)
