"""The caller's audio that is not committed yet, as the protocol counts it.

Owns the id of the open user item, whether the caller is speaking, which words are stable, and how
much audio waits, on the line and inside items; the samples themselves go straight on. Pure.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable

from voiceloop.errors import InvalidRequest
from voiceloop.realtime.settings import AudioFormat

MIN_COMMIT_MS = 100.0  # OpenAI's own least; less holds no word


class InputBuffer:
    """Bookkeeping of ``input_audio_buffer.*``."""

    def __init__(self, new_id: Callable[[str], str], limit_ms: float) -> None:
        self._new_id = new_id
        self._limit_ms = limit_ms
        self._item_id: str | None = None
        self.is_out = False  # the open item stands in the conversation: an answer started early
        self._waiting_ms = self._unanswered_ms = 0.0
        self._item_ms: dict[str, float] = {}  # of audio inside items, until its words are known
        self._stable = ""
        self._speech_start_ms = 0.0
        self._speech_ms = 0.0
        self.is_speaking = False

    def begin_speech(self, start_ms: float) -> None:
        self.is_speaking, self._speech_start_ms = True, start_ms

    def end_speech(self, end_ms: float) -> None:
        self.is_speaking = False
        self._speech_ms += max(0.0, end_ms - self._speech_start_ms)

    @property
    def stable(self) -> str:
        """The words of the open item that will not change."""
        return self._stable

    def commit(self, *, stays_open: bool = False, is_answered: bool = False) -> str:
        """The open item is to stand in the conversation; returns its id.

        is_answered: by what has started early. The client's own commit is then another item; where
        that was taken back it ends the one that stands.
        """
        if self.is_out and is_answered:
            self.reset()
        item_id = self.item_id()
        self._unanswered_ms += self._speech_ms or self._waiting_ms
        self._close(stays_open)
        return item_id

    def keep(self, item_id: str, *, stays_open: bool) -> None:
        """The open item, if it is this one, which stands already, is over; or may go on still."""
        if self.is_out and self._item_id == item_id:
            self._unanswered_ms += self._speech_ms
            self._close(stays_open)

    def _close(self, stays_open: bool) -> None:
        self.is_out, self._speech_ms, self._waiting_ms = True, 0.0, 0.0
        if not stays_open:
            self.reset()

    def take_unanswered_ms(self) -> float:
        """Audio of the items committed since this was last called: their speech where that was
        detected, else all of it.
        """
        unanswered_ms, self._unanswered_ms = self._unanswered_ms, 0.0
        return unanswered_ms

    def item_id(self) -> str:
        """The id the caller's next item will have; made on first use."""
        if self._item_id is None:
            self._item_id = self._new_id("item")
        return self._item_id

    def check_item_id(self, item_id: str) -> None:
        """Raises InvalidRequest for the id that the caller's open item will have."""
        if item_id == self._item_id:
            raise InvalidRequest(
                f"expected an item id that is new, found {item_id!r}, the open user turn's",
                param="item.id",
                code="item_create_duplicate_item_id",
            )

    def append(self, audio: str, audio_format: AudioFormat, *, is_bounded: bool) -> bytes:
        """Decode a client's base64 audio and count it.

        ``is_bounded``: nobody but the client commits, so what waits has a limit.

        Raises:
            InvalidRequest: not base64, a sample cut in half, or more than may wait.
        """
        data = decode_audio(audio, audio_format, "audio")
        self.count(audio_format.duration_ms(len(data)), is_bounded=is_bounded)
        return data

    def count(self, duration_ms: float, *, is_bounded: bool) -> None:
        """Count that so much more audio waits. Raises InvalidRequest as `append`."""
        waiting_ms = self._waiting_ms + duration_ms
        if is_bounded and waiting_ms > self._limit_ms:
            raise InvalidRequest(
                f"audio: expected at most {self._limit_ms / 60_000:g} minutes uncommitted, "
                "found more",
                param="audio",
                code="input_audio_buffer_full",
            )
        self._waiting_ms = waiting_ms

    def check_item_audio(self, duration_ms: float) -> None:
        """Raises InvalidRequest (``input_audio_buffer_full``) when too much waits for its words."""
        if sum(self._item_ms.values()) + duration_ms > self._limit_ms:
            raise InvalidRequest(
                f"item: expected at most {self._limit_ms / 60_000:g} minutes of audio in items "
                "that wait for their words, found more",
                param="item",
                code="input_audio_buffer_full",
            )

    def hold_item_audio(self, item_id: str, duration_ms: float) -> None:
        """Count it until ``release_item_audio``."""
        self._item_ms[item_id] = duration_ms

    def release_item_audio(self, item_id: str) -> None:
        """Release an item's audio: its words are known, will never be, or nobody wants them; any
        other item is ignored.
        """
        self._item_ms.pop(item_id, None)

    def check_commit(self) -> None:
        """Raises InvalidRequest (``input_audio_buffer_commit_empty``) when too little waits."""
        if self._waiting_ms < MIN_COMMIT_MS:
            raise InvalidRequest(
                f"Error committing input audio buffer: expected at least {MIN_COMMIT_MS:.0f} ms "
                f"of audio, found {self._waiting_ms:.2f} ms",
                code="input_audio_buffer_commit_empty",
            )

    def grown(self, stable: str) -> str:
        """Return what the stable words of the open turn have gained since the last call."""
        if not stable.startswith(self._stable):
            return ""  # a new segment of the recognizer; the completed transcript settles it
        delta, self._stable = stable[len(self._stable) :], stable
        return delta

    def reset(self) -> None:
        """Committed, cleared or dropped."""
        self._item_id, self._waiting_ms = None, 0.0
        self.is_speaking = self.is_out = False
        self._stable, self._speech_ms = "", 0.0


def decode_audio(audio: str, audio_format: AudioFormat, where: str) -> bytes:
    """Raises InvalidRequest (``invalid_audio``): no base64, or a sample cut in half."""
    data = _decode_base64(audio, where)
    if len(data) % audio_format.n_sample_bytes:
        raise InvalidRequest(
            f"{where}: expected 16-bit samples (an even byte count), found {len(data)} bytes",
            param=where,
            code="invalid_audio",
        )
    return data


def _decode_base64(text: str, where: str) -> bytes:
    try:
        if text.endswith("==="):  # the standard library takes a quartet of padding alone
            raise binascii.Error("excess padding")
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (UnicodeEncodeError, binascii.Error):
        shown = text if len(text) <= 24 else text[:24] + "..."
        raise InvalidRequest(
            f"{where}: expected base64, found {shown!r}", param=where, code="invalid_audio"
        ) from None
