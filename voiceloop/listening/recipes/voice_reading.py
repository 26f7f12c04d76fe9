"""The judgement of the recognizer's end-of-turn heads on the sound before a pause, offline.

Owns when the served recognizer asks the heads, by its own rules (at the voice's fall, and again
once the silence has lasted), and their answers: of the window that the recognizer holds by then, by
the heads that have not heard the speaker. What its encoder and its decoder made of a window is kept
on disk, so that other heads answer quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from audio.asr.moonshine.decoder import EDGE, MOST_READ, MoonshineDecoder
from audio.asr.moonshine.onnx_network import SHA256, OnnxNetwork, checked_folder
from audio.asr.speech_level import VoicedLevel
from audio.asr.window_decoder import DecodedWindow, DecodeRequest
from audio.asr.window_recognizer import WindowRecognizer
from audio.end_in_states import LAYER, N_TOKENS, EndInStates, States, joined
from audio.end_of_voice import EndOfVoice, Rows
from audio.frames import RECOGNIZER_HZ, Samples
from audio.stream import Partial, RecognizerOptions
from voiceloop.listening.recipes.disk_cache import cache_folder, cached, digest
from voiceloop.listening.recipes.endpointing_set import MS, CallerTurn
from voiceloop.listening.recipes.heard_turn import AFTER_END_MS, WINDOW, WINDOW_MS, pauses_of
from voiceloop.listening.recipes.recognizers import DEFAULT, OFFLINE, SELDOM_MS
from voiceloop.listening.segment import PRE_ROLL_MS

KEPT_ROWS = 64  # of the encoder, more than the head reads
# Of the sound that is written for the decoder's states: what the recognizer cuts sentences to.
MOST_WRITTEN = 6 * RECOGNIZER_HZ
STEP = WINDOW // 2  # samples that are heard at once: at most the 20 ms of a client
READINGS_VERSION = "1"  # of the records


@dataclass(frozen=True, slots=True)
class Reading:
    """The head is asked at asked_ms, by the sound up to heard_to_ms. The first of a pause is told
    with the words of its flush, another told_ms.
    """

    asked_ms: float
    heard_to_ms: float

    @property
    def told_ms(self) -> float:
        return self.asked_ms + OFFLINE[DEFAULT].lag_ms


class _Asked:
    """A window decoder that hears nothing and notes when a voice that fell silent is judged."""

    languages = ("en",)
    max_batch = 1

    def __init__(self) -> None:
        self.now_ms = self.heard_to_ms = 0.0

    def encode_text(self, text: str) -> tuple[int, ...]:
        return ()

    def forget(self, stream_id: str) -> None: ...

    def decode(self, requests: Sequence[DecodeRequest]) -> list[DecodedWindow]:
        is_paused = requests[0].is_paused
        if is_paused:
            self.heard_to_ms = self.now_ms
        return [DecodedWindow((), p_voice=0.0 if is_paused else None)]


def readings_of(turn: CallerTurn) -> tuple[Reading, ...]:
    """Return when the head is asked within a turn's pauses, in order of time."""
    key = digest(READINGS_VERSION, f"{_first_sample(turn)} {turn.end_ms}", turn.samples.tobytes())
    found = cached("readings", key, lambda: [asdict(reading) for reading in _readings(turn)])
    return tuple(Reading(**reading) for reading in found)


def _readings(turn: CallerTurn) -> list[Reading]:
    flush_at = {pause.detected_ms for pause in pauses_of(turn)}
    decoder, found = _Asked(), list[Reading]()
    model = WindowRecognizer(
        decoder, update_ms=SELDOM_MS, reads_falls=True, level=VoicedLevel, clock=lambda: 0.0
    )
    model.open(turn.name, RecognizerOptions())
    last = min(len(turn.samples), int((turn.end_ms + AFTER_END_MS) * MS))
    for start in range(_first_sample(turn), last - STEP + 1, STEP):
        decoder.now_ms = (start + STEP) / MS
        model.feed(turn.name, turn.samples[start : start + STEP])
        if decoder.now_ms in flush_at:
            model.flush(turn.name)
        while model.has_work():
            found += [
                Reading(decoder.now_ms, decoder.heard_to_ms)
                for event in model.step()
                if isinstance(event, Partial) and event.p_voice is not None
            ]
    return found


def _first_sample(turn: CallerTurn) -> int:
    """Return where the recognizer begins to hear the turn."""
    onset_ms = max(0.0, turn.words[0].start_ms if turn.words else 500.0)
    return int(max(0.0, onset_ms - PRE_ROLL_MS) / WINDOW_MS) * WINDOW


class _Kept(EndInStates):
    """Heads that say nothing, and keep what they were shown."""

    def __init__(self) -> None:
        self.states: States | None = None

    def log_odds(self, states: States) -> float:
        self.states = states
        return 0.0


class VoiceReading:
    """Asks the heads that ship. Raises: AudioError where one or the recognizer is absent.

    by_words False: the voice's alone.
    """

    def __init__(self, *, by_words: bool = True) -> None:
        self._head = EndOfVoice()
        self._by_words = EndInStates() if by_words else None
        self._network: OnnxNetwork | None = None

    def p_voice(self, turn: CallerTurn, reading: Reading, first: Reading) -> float:
        """Log-odds that the caller has finished, by this reading; first: of the pause, with which
        the words came.
        """
        heard = turn.samples[_first_sample(turn) : int(reading.heard_to_ms * MS)]
        voice = self._head.unheard_log_odds(self._rows(heard[-MOST_READ:]), turn.speaker)
        if self._by_words is None or (states := self.states(turn, first)) is None:
            return voice
        return joined(voice, self._by_words.unheard_log_odds(states, turn.speaker))

    def states(self, turn: CallerTurn, reading: Reading) -> States | None:
        """Return what the decoder made of the words up to there; None: it heard none."""
        heard = turn.samples[_first_sample(turn) : int(reading.heard_to_ms * MS)][-MOST_WRITTEN:]
        key = digest(f"{LAYER} {N_TOKENS}", SHA256["decoder_model_merged.ort"], heard.tobytes())
        path = cache_folder() / "decoder_states" / key[:2] / f"{key}.npy"
        if not path.is_file():
            kept = _Kept()
            decoder = MoonshineDecoder(
                self._encoder(), checked_folder(), self._head, end_in_states=kept
            )
            decoder.decode([DecodeRequest(heard, "en", (), (), with_times=False, is_paused=True)])
            path.parent.mkdir(parents=True, exist_ok=True)
            found = np.zeros(0, np.float32) if kept.states is None else kept.states
            np.save(path, found.astype(np.float16))
        states = np.asarray(np.load(path), np.float32)
        return states if states.size else None

    def _encoder(self) -> OnnxNetwork:
        if self._network is None:
            self._network = OnnxNetwork(checked_folder())
        return self._network

    def _rows(self, samples: Samples) -> Rows:
        key = digest("1", SHA256["encoder_model.ort"], samples.tobytes())
        path = cache_folder() / "encoder_rows" / key[:2] / f"{key}.npy"
        if not path.is_file():
            network = self._encoder()
            wave = np.pad(samples.astype(np.float32) / 32768.0, EDGE)
            rows = network.rows(network.encode(wave))[-KEPT_ROWS:]
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, rows.astype(np.float16))
        return np.asarray(np.load(path), np.float32)
