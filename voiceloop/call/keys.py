"""The keys that a caller presses: together a turn, as words are.

Owns the turn that is being pressed: when it is over, and its words. Time is the event loop's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from voiceloop.call.events import KeysEntered, KeysPressed
from voiceloop.listening.events import UserTurn
from voiceloop.telemetry.record import Endpoint, Mark, TurnRecord

BETWEEN_KEYS_S = 2.0  # who enters a number reads it off meanwhile
MAX_KEYS = 64
ENTER = "#"
NAMES = {"*": "star", "#": "hash"}
# "Press 1 for orders": one key answers it.
MENU = re.compile(r"\bpress (?:\d|one|two|three|four|five|six|seven|eight|nine|zero|star)\b", re.I)


class KeysTurn:
    """The turn of keys of one call. deliver: tells turn-taking. clock: of the session, in
    seconds.
    """

    def __init__(
        self, deliver: Callable[[KeysPressed | KeysEntered], None], clock: Callable[[], float]
    ) -> None:
        self._deliver = deliver
        self._clock = clock
        self._keys = ""
        self._onset_ms = self._now_ms = 0.0
        self._n_wanted: int | None = None
        self._hide: Callable[[str], str] = str
        self._segment = 0  # of turns that were spoken are 0 and more: these are less
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return bool(self._keys)

    def begin(self, n_wanted: int | None, hide: Callable[[str], str]) -> None:
        """The next key begins a turn. n_wanted: how many the question asks for; None: not known.
        hide: makes of the words of the turn what everybody may know.
        """
        self._n_wanted, self._hide = n_wanted, hide

    def press(self, key: str, now_ms: float) -> None:
        self.cancel()
        self._now_ms = now_ms
        if not self._keys:
            self._onset_ms = now_ms
            self._deliver(KeysPressed(now_ms))
        is_entered = key == ENTER and bool(self._keys)
        if not is_entered:
            self._keys += key
        is_whole = len(self._keys) in (self._n_wanted, MAX_KEYS)
        if is_entered or is_whole or key == ENTER:
            self._end()
        else:
            self._timer = asyncio.get_running_loop().call_later(BETWEEN_KEYS_S, self._end)

    def cancel(self) -> None:
        """Stop the timer; the keys stay."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self.cancel()
        keys, self._keys = self._keys, ""
        said = " ".join(NAMES.get(key, key) for key in keys)
        self._segment -= 1
        now_s = self._clock()
        record = TurnRecord("", self._now_ms)
        record.mark(Mark.SPEECH_END, now_s)
        record.mark(Mark.ENDPOINT_DECISION, now_s)
        record.mark(Mark.TRANSCRIPT_FINAL, now_s)
        record.facts.endpoint = Endpoint("keys")
        words = tuple(self._hide(said).split())
        self._deliver(
            KeysEntered(
                UserTurn(self._segment, words, self._onset_ms, self._now_ms, now_s, now_s, record)
            )
        )


def n_keys_of_menu(question: str) -> int | None:
    """How many keys answer a question that offers them; None where it offers none."""
    return 1 if MENU.search(question) else None
