"""The embedded voice: espeak-ng in process, a clause in a few milliseconds.

The library is one instance a process, so streams take turns inside `step`: one clause of one
stream at a time.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..chunker import PAUSE_MS
from ..espeak_library import Timbre, WordMark, load_espeak
from ..frames import duration_ms, samples_in
from ..phonemes import as_espeak
from ..stream import Event
from .reply import LEAD_MS, Fragment, FragmentWord, Reply, Waveform, WordSpan
from .reply_voice import ReplyVoice

RATE_WPM = 170  # conversational American English is 150-180 words a minute
MIN_WPM, MAX_WPM = 80, 450  # espeak's own limits: speeds beyond 0.47 and 2.6 sound like these
EVENT_MS = 200.0  # audio in one Speech event: what playout holds ahead


_TIMBRES = {  # the first is the default
    "ava": Timbre("en-us+Annie", 48, 55),
    "en-us": Timbre("en-us", 45, 55),
    "en-us-f": Timbre("en-us+f3", 50, 55),
    "en-gb": Timbre("en-gb-x-rp", 45, 55),
    "en-gb-f": Timbre("en-gb-x-rp+f2", 50, 55),
}
# The voices of the Realtime API, so that an unchanged client is heard in some voice.
_TIMBRES |= dict.fromkeys(("alloy", "coral", "marin", "nova", "sage", "shimmer"), _TIMBRES["ava"])
_TIMBRES |= dict.fromkeys(("ash", "ballad", "cedar", "echo", "onyx", "verse"), _TIMBRES["en-us"])
_TIMBRES["fable"] = _TIMBRES["en-gb"]
_TIMBRES["default"] = _TIMBRES["ava"]
# Other languages by espeak's codes: those of its list that are written in words with spaces.
LANGUAGES = tuple(
    "af ar bg bn bs ca cs cy da de el es es-419 et eu fa fi fr fr-be fr-ch ga gu he hi hr hu hy id"
    " is it ka kk kn ko lt lv mk ml mr ms mt nb nl pa pl pt pt-br ro ru sk sl sq sr sv sw ta te tr"
    " uk ur uz vi".split()
)
_TIMBRES |= {code: Timbre(code, 50, 50) for code in LANGUAGES}  # espeak's own pitch and range


class EspeakVoice(ReplyVoice):
    """`VoiceModel` over espeak-ng. Raises: MissingExtra if the package is absent."""

    voices = tuple(_TIMBRES)
    speeds = (0.25, 4.0)  # what the OpenAI speech interfaces allow
    quiet = 33.5 / 32767  # -60 dBFS of int16: what espeak gives below this is silence

    def __init__(self) -> None:
        self._espeak = load_espeak()
        super().__init__(self.voices, self._espeak.rate_hz)
        self._pauses_ms: dict[str, float] = {}  # owed before a stream's next clause

    def close(self, stream_id: str) -> None:
        super().close(stream_id)
        self._pauses_ms.pop(stream_id, None)

    _phonemes = staticmethod(as_espeak)

    def _speaks_english(self, voice: str) -> bool:
        return voice not in LANGUAGES

    def _begin(self, fragment: Fragment, reply: Reply) -> list[Event]:
        rate_wpm = min(MAX_WPM, max(MIN_WPM, round(RATE_WPM * reply.speed)))
        text = fragment.text
        if fragment.ending not in PAUSE_MS and (reply.has_fragment or not reply.is_finished):
            text += ","  # a cut without a mark: the voice stays up, more comes
        samples, marks = self._espeak.synthesize(text, _TIMBRES[reply.voice], rate_wpm)
        wave: Waveform = samples.astype(np.float32) / np.float32(32767)
        audible = np.flatnonzero(np.abs(wave) > self.quiet)
        if len(audible):
            first = max(0, int(audible[0]) - samples_in(LEAD_MS, self._model_hz))
            wave = wave[first : int(audible[-1]) + 1]
        else:
            first, wave = 0, wave[:0]
        pause = np.zeros(samples_in(self._pauses_ms.get(reply.stream_id, 0.0), self._model_hz))
        # espeak's own pauses come after the last word, where they would only delay the end of the
        # reply. A pause is as fast as the speech around it.
        self._pauses_ms[reply.stream_id] = PAUSE_MS.get(fragment.ending, 0.0) * RATE_WPM / rate_wpm
        wave = np.concatenate((pause.astype(np.float32), wave))
        marks = _of_whole_figures(marks, fragment.text)
        spans = self._spans(marks, fragment, len(pause) - first, len(wave))
        events: list[Event] = []
        size = samples_in(EVENT_MS, self._model_hz)
        for start in range(0, len(wave), size):
            events += reply.say(wave[start : start + size], spans)
            spans = []
        return events

    def _spans(
        self, marks: Sequence[WordMark], fragment: Fragment, offset: int, n_samples: int
    ) -> list[WordSpan]:
        """The marked words; offset: of espeak's samples in the n_samples that are spoken."""
        text = fragment.text
        # A word ends where the next one starts, the last one with the fragment.
        edges = [min(max(0, mark.sample + offset), n_samples) for mark in marks] + [n_samples]
        edges_ms = [duration_ms(edge, self._model_hz) for edge in edges]
        ends = [mark.end for mark in marks[:-1]] + [len(text)]
        return [
            WordSpan(FragmentWord(text[mark.start : mark.end], fragment.text_end(end)), *times)
            for mark, end, *times in zip(marks, ends, edges_ms, edges_ms[1:], strict=False)
        ]


def _of_whole_figures(marks: Sequence[WordMark], text: str) -> list[WordMark]:
    """marks with one for a figure, which espeak marks anew at each word that it reads it as.

    The mark of a word that is given by its sounds is that of its brackets.
    """
    whole: list[WordMark] = []
    for mark in marks:
        opens = text.rfind("[[", 0, mark.end)
        closes = text.find("]]", opens)
        if 0 <= opens and mark.start < closes:
            mark = replace(mark, start=opens, end=closes + 2)
        before = text[whole[-1].start : mark.start] if whole else ""
        if any(map(str.isdigit, before)) and not any(map(str.isspace, before)):
            end = mark.start + len(text[mark.start : mark.end].rstrip())
            whole[-1] = replace(whole[-1], end=max(whole[-1].end, end))
        else:
            whole.append(mark)
    return whole
