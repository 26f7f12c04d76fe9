"""The espeak-ng library in process: text to samples with word marks, words to phonemes.

espeak-ng (GPL-3) is a separate library, loaded at run time from the espeakng-loader package. It
has global state, so there is one `Espeak` a process, used by one thread.
"""

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .errors import AudioError, MissingExtra
from .frames import Samples

_SYNCHRONOUS = 2  # AUDIO_OUTPUT_SYNCHRONOUS: samples come by callback before espeak_Synth returns
_DONT_EXIT = 0x8000  # espeakINITIALIZE_DONT_EXIT: report a missing data folder, do not exit()
_UTF8 = 1  # espeakCHARS_UTF8
_PHONEMES = 0x100  # espeakPHONEMES: what stands between [[ and ]] are its mnemonics
_BY_CHARACTER = 1  # POS_CHARACTER
_RATE, _PITCH, _RANGE = 1, 3, 4  # espeak_PARAMETER
_WORD = 1  # espeakEVENT_WORD


@dataclass(frozen=True, slots=True)
class Timbre:
    name: str  # espeak's voice+variant
    pitch: int  # 0-100, espeak's default is 50
    range: int  # of intonation, 0-100


class _EspeakEvent(ctypes.Structure):
    """espeak_EVENT of speak_lib.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),  # characters, from 1
        ("length", ctypes.c_int),
        ("audio_position_ms", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_EspeakEvent)
)


@dataclass(frozen=True, slots=True)
class WordMark:
    sample: int  # where the word starts in the clause's audio
    start: int  # its characters in the text given to espeak
    end: int


class Espeak:
    """The library: one a process. `synthesize` is called from one thread."""

    def __init__(self) -> None:
        try:
            import espeakng_loader
        except ImportError:
            raise MissingExtra("espeakng-loader", "the voice espeak-ng") from None
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = espeakng_loader.get_data_path().encode()
        self.rate_hz = int(self._library.espeak_Initialize(_SYNCHRONOUS, 0, data, _DONT_EXIT))
        if self.rate_hz <= 0:
            raise AudioError(f"expected espeak-ng's data in {data.decode()}, found none usable")
        self._callback = _Callback(self._receive)  # kept: ctypes holds no reference
        self._library.espeak_SetSynthCallback(self._callback)
        self._settings: tuple[Timbre, int] | None = None
        self._blocks: list[Samples] = []
        self._marks: list[WordMark] = []

    def synthesize(
        self, text: str, timbre: Timbre, rate_wpm: int
    ) -> tuple[Samples, list[WordMark]]:
        """Samples [n] int16 at rate_hz, and the marks of the words in them.

        Raises: AudioError if espeak refuses the voice or the text.
        """
        if self._settings != (timbre, rate_wpm):
            self._set_voice(timbre.name)
            for parameter, value in (
                (_RATE, rate_wpm), (_PITCH, timbre.pitch), (_RANGE, timbre.range)
            ):  # fmt: skip
                self._library.espeak_SetParameter(parameter, value, 0)
            self._settings = (timbre, rate_wpm)
        self._blocks, self._marks = [], []
        data = text.encode()
        status = self._library.espeak_Synth(
            data, len(data) + 1, 0, _BY_CHARACTER, 0, _UTF8 | _PHONEMES, None, None
        )
        if status != 0:
            raise AudioError(f"expected espeak-ng to speak the clause, found status {status}")
        samples = np.concatenate(self._blocks) if self._blocks else np.zeros(0, np.int16)
        return samples, self._marks

    def _set_voice(self, name: str) -> None:
        if self._library.espeak_SetVoiceByName(name.encode()) != 0:
            raise AudioError(f"expected a voice that espeak-ng has, found {name!r}")

    def _receive(self, wave: Any, n_samples: int, events: Any) -> int:
        if n_samples > 0:
            self._blocks.append(np.ctypeslib.as_array(wave, (n_samples,)).copy())
        index = 0
        while events[index].type:
            event = events[index]
            if event.type == _WORD:
                start = event.text_position - 1
                self._marks.append(WordMark(event.sample, start, start + event.length))
            index += 1
        return 0


@lru_cache(maxsize=1)
def load_espeak() -> Espeak:
    return Espeak()
