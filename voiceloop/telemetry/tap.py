"""The feed of a call for whoever keeps it: its sound on one clock, what happened, what was said.

Owns such a tap, as it is where nothing is kept. A call tells its tap and asks it for one thing, the
consent that a recording needs. No method waits or raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from voiceloop.backends import SpokenWord, ToolCall
from voiceloop.telemetry.record import TurnRecord

Encoding = Literal["pcm16", "pcmu", "pcma"]  # as of `audio.codec`


@dataclass(frozen=True, slots=True)
class KeptCall:
    """A call's owner and beginning. began_s: on the session's clock. hello: of its client."""

    call_id: str
    tenant: str
    began_s: float
    agent: str
    greeting: str
    language: str
    hello: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Sounded:
    """A piece of the agent's sound [n] int16 as it left playout.

    play_end_s: when a client without a buffer has played it. words: that begin in it, in times of
    their item.
    """

    samples: NDArray[np.int16]
    rate_hz: int
    play_end_s: float
    item_id: str
    words: tuple[SpokenWord, ...]


class Consent:
    """The notice or question about a recording, and the callers' answers; here nothing."""

    @property
    def first_words(self) -> str:
        """Said before all else; empty: nothing is."""
        return ""

    def answer(self, said: str) -> str | None:
        """Return what is said to these words of the caller where they answer the question. Pure."""
        return None

    def observe(self, said: str) -> None:
        """The caller's turn of these words is over."""


NO_CONSENT = Consent()


class CallTap:
    """One call's; this one keeps nothing, and need not be told."""

    keeps = False

    def __init__(self, consent: Consent = NO_CONSENT) -> None:
        self.consent = consent

    def hear(self, samples: bytes, rate_hz: int, encoding: Encoding, seconds: float) -> None:
        """The caller's next sound, as it is given to the listener."""

    def say(self, sounded: Sounded) -> None: ...

    def cut(self, item_id: str, heard_ms: float) -> None:
        """Only so much of this item was heard."""

    def client(self, frame: str | bytes) -> None:
        """Take in what the client asked for, sound apart."""

    def observe_line(self, frame: object) -> None:
        """Take in what came over a line that carries sound: sound, or a key of a telephone."""

    def observe(self, actions: Sequence[object]) -> None:
        """Take in what turn-taking does next."""

    def call(self, call: ToolCall) -> None: ...

    def result(self, call_id: str, output: str) -> None: ...

    def turn(self, record: TurnRecord, *, is_private: bool) -> None:
        """A reply is over; is_private: what follows is not to be kept, neither sound nor words."""

    def end(self, code: int, why: str, slots: dict[str, str]) -> None: ...


class Recordings:
    """One server's; these are where nothing is kept."""

    def begin(self, call: KeptCall) -> CallTap:
        return CallTap()
