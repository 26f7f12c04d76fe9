"""One call as it is written: its sound in FLAC, its entries in lines of JSON.

Owns both files while they are parts, and the seconds of sound that can still change. Raises what
the disk does (`CannotWrite`); whoever writes many calls goes on with the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import soundfile

from audio.codec import decode
from audio.resample import Resampler
from voiceloop.recording import notes
from voiceloop.recording.hidden import without_words
from voiceloop.recording.messages import Begin, Cut, End, Heard, Hide, Said, Told
from voiceloop.recording.shelf import PART, Shelf
from voiceloop.recording.timeline import LEFT, RATE_HZ, RIGHT, Samples, SessionClock, Sheet
from voiceloop.telemetry.tap import KeptCall

# A client tells what it has played of a reply within its round trip; a slot that is private is
# known to be when its question was heard, by when an eager caller has begun to answer.
HOLD_S, HIDDEN_BEFORE_S = 3.0, 2.0
WRITE_S = 0.5  # of sound at once
FAR_S = 60.0  # of silence, written at once where a client sent none
ON_S = 0.002  # sound that follows sound within that follows it without a hole
# Of FLAC's header: rate, channels and bits, then how many samples there are, 36 bits.
# Source: RFC 9639, 8.2.
STREAMINFO_AT, N_BLOCK = 18, 4096


class CannotWrite(Exception):
    """The disk is full, or gone."""


@dataclass(slots=True)
class _Item:
    """The pieces of an item with their places: (sample of the item, sample of the recording, how
    many).
    """

    n_samples: int = 0
    pieces: list[tuple[int, int, int]] = field(default_factory=list)
    heard_ms: float | None = None  # None: all of it


class _Run:
    """Sound of the agent's without a hole in it. at: where the next of it lies."""

    def __init__(self, rate_hz: int, at: int) -> None:
        self.rate_hz, self.at = rate_hz, at
        self.play_end_s = 0.0
        self.resampler = Resampler(rate_hz, RATE_HZ)


class CallFile:
    """shape: what of an entry may be kept. Raises: CannotWrite, as every method."""

    def __init__(
        self,
        shelf: Shelf,
        begin: Begin,
        head: dict[str, Any],
        shape: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> None:
        self.call: KeptCall = begin.call
        self._shelf, self._shape = shelf, shape
        self._clock = SessionClock(begin.at_s)
        self._sheet = Sheet()
        self._next_audio_s = begin.from_audio_s
        self._waiting: list[Samples] = []  # of the caller's, that has no place yet
        self._left_at, self._left_end_s = 0, 0.0
        self._input: tuple[int, str, Resampler] | None = None
        self._run: _Run | None = None
        self._items: dict[str, _Item] = {}
        self._hidden: list[tuple[int, int | None]] = []  # stretches; the last may go on
        self._n_written = 0
        try:
            named = self.call.call_id, self.call.tenant
            self._notes = shelf.open_part(*named, ".json")
            self._file = shelf.open_part(*named, ".flac")
            self._sound = soundfile.SoundFile(
                self._file.fileno(), "w", RATE_HZ, 2, "PCM_16", format="FLAC", closefd=False
            )
        except (OSError, RuntimeError) as error:
            raise CannotWrite(str(error)) from error
        began = datetime.now(UTC).isoformat(timespec="milliseconds")
        told = {"call_id": self.call.call_id, "began_at": began, "rate_hz": RATE_HZ}
        call = {"agent": self.call.agent, "hello": dict(self.call.hello)}
        self._note("head", told | call | {"consent": begin.consent} | head)

    # --- sound ---

    def hear(self, heard: Heard) -> None:
        if (lost_s := heard.audio_s - self._next_audio_s) > 1e-6:
            self._place(self._clock.settle())
            self._clock.skip(lost_s)
            self._left_at += round(lost_s * RATE_HZ)
            self._left_end_s = self._clock.end_s
        self._next_audio_s = heard.audio_s + heard.seconds
        if self._input is None or self._input[:2] != (heard.rate_hz, heard.encoding):
            self._input = heard.rate_hz, heard.encoding, Resampler(heard.rate_hz, RATE_HZ)
        self._waiting.append(self._input[2].push(decode(heard.samples, heard.encoding)))
        if (begins_s := self._clock.advance(heard.seconds, heard.at_s)) is not None:
            self._place(begins_s)
        self._settle(self._at(heard.at_s - HOLD_S))

    def _place(self, begins_s: float) -> None:
        """All of the caller's sound that waits begins there, behind silence where that is later."""
        self._left_at += round((begins_s - self._left_end_s) * RATE_HZ)
        self._left_end_s = self._clock.end_s
        while self._left_at - self._sheet.end > FAR_S * RATE_HZ:
            self._write(self._sheet.take(self._sheet.end + round(FAR_S * RATE_HZ)))
        for samples in self._waiting:
            self._sheet.put(LEFT, self._left_at, samples)
            self._left_at += len(samples)
        self._waiting.clear()

    def say(self, said: Said) -> None:
        one, run = said.sounded, self._run
        begins_s = one.play_end_s - len(one.samples) / one.rate_hz
        follows = run is not None and abs(begins_s - run.play_end_s) < ON_S
        if run is None or not follows or run.rate_hz != one.rate_hz:
            run = self._run = _Run(one.rate_hz, max(0, self._at(begins_s)))
        samples = run.resampler.push(one.samples)
        if said.is_private:
            samples = np.zeros_like(samples)
        at = self._sheet.put(RIGHT, run.at, samples)
        run.at, run.play_end_s = at + len(samples), one.play_end_s
        item = self._items.setdefault(one.item_id, _Item())
        words = [
            {"text": word.text, "at_ms": self._ms(from_at), "end_ms": self._ms(to_at)}
            for word in one.words
            for from_at in (at + round(word.start_ms * RATE_HZ / 1000) - item.n_samples,)
            for to_at in (from_at + round((word.end_ms - word.start_ms) * RATE_HZ / 1000),)
        ]
        item.pieces.append((item.n_samples, at, len(samples)))
        item.n_samples += len(samples)
        if words:
            hidden = without_words(words) if said.is_private else words
            self._note("said", {"item_id": one.item_id, "heard_words": hidden})

    def cut(self, cut: Cut) -> None:
        if (item := self._items.get(cut.item_id)) is None:
            return
        item.heard_ms = cut.heard_ms
        at = self._place_in(item, cut.heard_ms)
        if at is not None:
            told = {"item_id": cut.item_id, "heard_ms": cut.heard_ms, "at_ms": self._ms(at)}
            self._note("cuts", told)

    @staticmethod
    def _place_in(item: _Item, heard_ms: float) -> int | None:
        n_heard = round(heard_ms * RATE_HZ / 1000.0)
        for begin, at, n_samples in reversed(item.pieces):
            if n_heard >= begin:
                return at + min(n_heard - begin, n_samples)
        return None

    def hide(self, hide: Hide) -> None:
        at = self._at(hide.at_s)
        if hide.is_on:
            self._hidden.append((max(0, at - round(HIDDEN_BEFORE_S * RATE_HZ)), None))
        elif self._hidden:
            self._hidden[-1] = self._hidden[-1][0], at

    def _settle(self, until: int, *, is_last: bool = False) -> None:
        """Write what lies before; nothing of it can change any more."""
        if until - self._sheet.start < (0 if is_last else WRITE_S * RATE_HZ):
            return
        for item in self._items.values():
            if item.heard_ms is not None:
                n_heard = round(item.heard_ms * RATE_HZ / 1000.0)
                for begin, at, n_samples in item.pieces:
                    self._sheet.silence(RIGHT, at + max(0, n_heard - begin), at + n_samples)
        for hidden_at, hidden_end in self._hidden:
            self._sheet.silence(
                LEFT, hidden_at, self._sheet.end if hidden_end is None else hidden_end
            )
        self._hidden = [one for one in self._hidden if one[1] is None or one[1] > until]
        self._write(self._sheet.take(until))
        self._items = {
            name: item for name, item in self._items.items()
            if not item.pieces or item.pieces[-1][1] + item.pieces[-1][2] > until
        }  # fmt: skip

    def _write(self, samples: Samples) -> None:
        try:
            self._sound.write(samples)
        except (OSError, RuntimeError, AssertionError) as error:  # libsndfile's, and its binding's
            raise CannotWrite(str(error) or "the disk took less than it was given") from error
        self._n_written += len(samples)
        n_whole = max(0, self._n_written // N_BLOCK - 1) * N_BLOCK  # as blocks leave the encoder
        shape = RATE_HZ << 44 | 1 << 41 | 15 << 36
        # So that what a killed process leaves is a file that every program opens.
        os.pwrite(self._file.fileno(), (shape | n_whole).to_bytes(8, "big"), STREAMINFO_AT)

    # --- notes ---

    def tell(self, told: Told) -> None:
        entry = {"at_ms": self._ms(self._at(told.at_s)), **told.entry}
        if "marks" in entry:
            marks = entry["marks"].items()
            entry["marks_ms"] = {name: self._ms(self._at(at_s)) for name, at_s in marks}
            del entry["marks"]
        self._note(told.section, entry)

    def _note(self, section: str, entry: dict[str, Any]) -> None:
        data = notes.line(section, self._shape(entry) if section != "head" else entry)
        try:
            if self._notes.write(data) != len(data):
                raise OSError("the disk took less than it was given")
        except OSError as error:
            raise CannotWrite(str(error)) from error

    def end(self, end: End, *, trouble: str = "") -> None:
        """Close both files, which get their names. trouble: why there is no more in them."""
        if not trouble:
            self._place(self._clock.settle())
            self._settle(self._sheet.end, is_last=True)
        seconds = max(self._n_written / RATE_HZ, 0.0)
        told = {"seconds": round(seconds, 3), "close_code": end.code, "ended": end.why}
        told |= {"slots": end.slots, "is_degraded": bool(end.n_lost or trouble)}
        self._note("end", told | {"n_lost": end.n_lost, "trouble": trouble})
        try:
            self._sound.close()
            self._notes.seek(0)
            closed = notes.closed(self._notes.read())
            self._notes.seek(0)
            self._notes.write(closed)
            self._notes.truncate()
        except (OSError, RuntimeError) as error:
            raise CannotWrite(str(error)) from error
        finally:
            self.leave()

    def leave(self) -> None:
        """Let go of the files as they are; idempotent."""
        for file in (self._notes, self._file):
            file.close()

    def part(self, ending: str) -> Any:
        return self._shelf.path(self.call.call_id, self.call.tenant, ending + PART)

    def _at(self, now_s: float) -> int:
        return round(self._clock.at(now_s) * RATE_HZ)

    @staticmethod
    def _ms(at: int) -> float:
        return round(1000.0 * at / RATE_HZ, 1)
