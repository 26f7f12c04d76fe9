"""Kokoro-82M through its own package, where that is installed: quality before first audio.

Apache-2.0 weights; its text-to-phoneme package falls back to espeak-ng (GPL). It speaks whole
clauses, so the first sound waits for the first clause. Nothing is downloaded here: the package
would fetch weights, voices and a spaCy model by itself, so all of them are looked for first.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint import torch_device
from ..errors import AudioError
from ..frames import VOICE_HZ, duration_ms
from ..stream import Event
from .clause_audio import KEPT_MB, ClauseAudio
from .reply import Fragment, Reply, Waveform, WordSpan, proportional_spans
from .reply_voice import ReplyVoice

REPOSITORY = "hexgrad/Kokoro-82M"
WEIGHTS = "kokoro-v1_0.pth"
SPACY_MODEL = "en_core_web_sm"  # what misaki's English reads words with
ENGLISH = ("a", "b")  # American, British: the package's own letters


class KokoroVoice(ReplyVoice[None]):
    """A folder of Kokoro-82M: config.json, kokoro-v1_0.pth and voices/*.pt.

    language: the package's letter for it ("a" American, "b" British English, "e" Spanish ...);
    device: "cpu", "cuda" or "auto". kept_mb: of clauses that it has spoken.

    Raises: AudioError if the package, a file or the device is absent; it names the remedy.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        language: str = "a",
        device: str = "auto",
        kept_mb: int = KEPT_MB,
    ) -> None:
        folder = Path(folder)
        voices = {path.stem: path for path in sorted((folder / "voices").glob("*.pt"))}
        _check(folder, voices, language)
        torch, on = torch_device(device, "Kokoro")
        from kokoro import KModel, KPipeline

        try:
            model = KModel(
                repo_id=REPOSITORY,
                config=str(folder / "config.json"),
                model=str(folder / WEIGHTS),
            )
            self._pipeline = KPipeline(
                lang_code=language, repo_id=REPOSITORY, model=model.to(on).eval()
            )
        except (OSError, RuntimeError, ValueError, KeyError, AssertionError) as error:
            raise AudioError(f"expected Kokoro-82M in {folder}, found: {error!r}") from error
        self._torch = torch
        self._is_english = language in ENGLISH
        self._files = voices
        # A clause is read by itself: what was said before is not in its sound.
        self._spoken: ClauseAudio[list[tuple[float, float]]] = ClauseAudio(kept_mb * 2**20)
        super().__init__(tuple(voices), VOICE_HZ)

    def _speaks_english(self, voice: str) -> bool:
        return self._is_english

    def _begin(self, fragment: Fragment, reply: Reply) -> list[Event]:
        return reply.say(*self._speak(fragment, reply))

    def _speak(self, fragment: Fragment, reply: Reply) -> tuple[Waveform, list[WordSpan]]:
        """Samples float32 [n] at 24 kHz and when each word is spoken."""
        key = (reply.voice, reply.speed, fragment.text)
        kept = self._spoken.get(key)
        wave, timed = (kept.wave.copy(), kept.times) if kept else self._synthesize(*key)
        if kept is None:
            self._spoken.put(key, wave, timed)
        if len(timed) != len(fragment.words):
            return wave, proportional_spans(fragment.words, duration_ms(len(wave), VOICE_HZ))
        return wave, [
            WordSpan(word, *span) for word, span in zip(fragment.words, timed, strict=True)
        ]

    def _synthesize(
        self, voice: str, speed: float, text: str
    ) -> tuple[Waveform, list[tuple[float, float]]]:
        """The same, with the times that the package tells: of each word where it tells all."""
        waves: list[Waveform] = []
        timed: list[tuple[float, float]] = []
        with self._torch.inference_mode():
            for result in self._pipeline(text, voice=str(self._files[voice]), speed=speed):
                start_ms = duration_ms(sum(len(wave) for wave in waves), VOICE_HZ)
                if result.audio is None:
                    continue
                waves.append(np.asarray(result.audio.float().cpu().numpy(), np.float32))
                timed += _word_times(result.tokens or (), start_ms)
        return np.concatenate(waves) if waves else np.zeros(0, np.float32), timed


def _word_times(tokens: Sequence[Any], start_ms: float) -> list[tuple[float, float]]:
    """(start, end) of each run of tokens without white space that has a sound."""
    times: list[tuple[float, float]] = []
    run: list[Any] = []
    for token in tokens:
        run.append(token)
        if token.whitespace or token is tokens[-1]:
            heard = [t for t in run if t.start_ts is not None and t.end_ts is not None]
            if heard and any(character.isalnum() for t in run for character in t.text):
                first, last = heard[0].start_ts, heard[-1].end_ts
                times.append((start_ms + 1000.0 * first, start_ms + 1000.0 * last))
            run = []
    return times


def _check(folder: Path, voices: dict[str, Path], language: str) -> None:
    """Raises: AudioError naming the first thing that is missing, before anything is fetched."""
    if find_spec("kokoro") is None:
        raise AudioError(
            "expected the package 'kokoro' for this voice, found none; "
            "remedy: pip install 'voiceloop[kokoro]'"
        )
    if language in ENGLISH and find_spec(SPACY_MODEL) is None:
        raise AudioError(
            f"expected the spaCy model {SPACY_MODEL} for Kokoro's English, found none; "
            f"remedy: python -m spacy download {SPACY_MODEL}"
        )
    missing = [n for n in ("config.json", WEIGHTS) if not (folder / n).is_file()]
    if missing or not voices:
        wanted = missing[0] if missing else "voices/*.pt"
        raise AudioError(
            f"expected {wanted} in {str(folder)!r}, found none; "
            f"remedy: voiceloop models pull {REPOSITORY}"
        )
