"""The thread that writes the calls of a process, and looks after the folder when it has time.

Owns the files of all calls that are kept at this moment. A call whose file cannot be written is
given up, with a line in the log; the others go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import soundfile

from voiceloop.operation import RecordingSettings
from voiceloop.recording.call_file import CallFile, CannotWrite
from voiceloop.recording.hidden import without_figures, without_words
from voiceloop.recording.messages import (
    Begin,
    Cut,
    End,
    Forget,
    Heard,
    Hide,
    Inbox,
    Message,
    Said,
    Told,
)
from voiceloop.recording.shelf import PART, Shelf

log = logging.getLogger(__name__)

SWEEP_S = 3600.0
WAIT_S = 1.0  # between two looks at what is due
SLICE_S = 1.0  # of sound, encoded at once: 25 ms of a core

Outcome = Literal["kept", "degraded", "failed", "deleted"]


class Writer:
    """head: told of every call; observe: how each ended."""

    def __init__(
        self,
        shelf: Shelf,
        inbox: Inbox,
        settings: RecordingSettings,
        head: dict[str, Any],
        observe: Callable[[Outcome], None],
    ) -> None:
        self._shelf, self._inbox, self._settings = shelf, inbox, settings
        self._head, self._observe = head, observe
        self._calls: dict[str, CallFile] = {}
        self._encoding: dict[Path, Iterator[None]] = {}  # by slices; a call's path has no ending
        self._next_slice_s = self._next_sweep_s = 0.0
        self._thread = threading.Thread(target=self._run, name="recordings", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, within_s: float) -> None:
        """Write what waits, and end; what takes longer is left as it is."""
        self._inbox.close()
        self._thread.join(within_s)

    def _run(self) -> None:
        self._recover()
        while not self._inbox.is_over:
            found = self._inbox.take(0.0 if self._encoding and not self._calls else WAIT_S)
            if found is not None:
                self._obey(*found)
            try:
                self._look_after()
            except (OSError, RuntimeError) as error:
                log.error("recordings: the folder could not be looked after: %s", error)
        for file in self._calls.values():
            file.leave()

    # --- calls ---

    def _obey(self, call_id: str, message: Message) -> None:
        try:
            if isinstance(message, Begin):
                self._calls[call_id] = CallFile(self._shelf, message, self._head, self._shaped)
            elif (file := self._calls.get(call_id)) is not None:
                self._write(file, message)
            elif isinstance(message, Forget):
                self._encoding.pop(self._shelf.path(call_id, message.tenant, ""), None)
                self._shelf.delete(call_id, message.tenant)
        except CannotWrite as error:
            log.error("call %s is not recorded any more: %s", call_id, error)
            self._give_up(call_id, str(error))
        except Exception:  # a bug in one call's messages: the thread is all calls'
            log.exception("call %s is not recorded any more", call_id)
            self._give_up(call_id, "a message of the call could not be written")

    def _write(self, file: CallFile, message: Message) -> None:
        match message:
            case Heard():
                file.hear(message)
            case Said():
                file.say(message)
            case Told():
                file.tell(message)
            case Cut():
                file.cut(message)
            case Hide():
                file.hide(message)
            case End():
                file.end(message)
                self._keep(file, message)
            case Forget():
                self._calls.pop(file.call.call_id).leave()
                self._shelf.delete(file.call.call_id, file.call.tenant)
                self._observe("deleted")

    def _keep(self, file: CallFile, end: End) -> None:
        del self._calls[file.call.call_id]
        sound = file.part(".flac")
        try:
            self._shelf.close(file.part(".json"))
            is_encoded = self._settings.format == "opus"
            if not is_encoded or not self._settings.age_key:
                sound = self._shelf.close(sound)
            if is_encoded:
                named = self._shelf.path(file.call.call_id, file.call.tenant, "")
                self._encoding[named] = self._encoded(sound)
        except OSError as error:
            raise CannotWrite(str(error)) from error
        self._observe("degraded" if end.n_lost else "kept")

    def _give_up(self, call_id: str, trouble: str) -> None:
        """Close what there is of it, if even that can be written; else it stays a part."""
        self._observe("failed")
        if (file := self._calls.pop(call_id, None)) is None:
            return
        try:
            file.end(End(0.0, 0, "", {}, 0), trouble=trouble)
            for ending in (".json", ".flac"):
                self._shelf.close(file.part(ending))
        except (CannotWrite, OSError):
            file.leave()

    def _shaped(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return what of an entry is kept, as the settings have it."""
        match self._settings.words:
            case "none":
                return without_words(entry)  # type: ignore[no-any-return]
            case "without_figures":
                return without_figures(entry)  # type: ignore[no-any-return]
        return entry

    # --- the folder ---

    def _recover(self) -> None:
        """Once: later a part may be ours, and waiting to be encoded."""
        try:
            self._shelf.recover()
        except OSError as error:
            log.error("recordings: what a process left could not be closed: %s", error)

    def _look_after(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + SWEEP_S
            self._shelf.sweep()
        # Beside calls as fast as one of them is spoken: a fortieth of a core.
        if self._encoding and (not self._calls or now_s >= self._next_slice_s):
            self._next_slice_s = now_s + SLICE_S
            named, slices = next(iter(self._encoding.items()))
            if next(slices, named) is named:
                del self._encoding[named]

    def _encoded(self, sound: Path) -> Iterator[None]:
        """Opus in FLAC's place, a slice at a step."""
        if not sound.exists():  # it is being deleted
            return
        call_id, tenant = sound.name.partition(".")[0].split("~")
        file = self._shelf.open_part(call_id, tenant, ".opus")
        part = self._shelf.path(call_id, tenant, ".opus" + PART)
        try:
            with file, soundfile.SoundFile(sound) as flac:
                opus = soundfile.SoundFile(
                    file.fileno(), "w", flac.samplerate, 2, "OPUS", format="OGG", closefd=False
                )
                with opus:
                    for block in flac.blocks(round(SLICE_S * flac.samplerate), dtype="int16"):
                        opus.write(block)
                        yield None
            self._shelf.close(part)
        finally:
            part.unlink(missing_ok=True)  # of a call that was deleted, or cannot be read
        sound.unlink()
