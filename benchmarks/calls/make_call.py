"""Make the bundled caller's audio: ``python -m benchmarks.calls.make_call``.

Every utterance of ``clients/call/call.toml`` is spoken by each voice of its casts. ``hibari`` is
one neural voice in three pitches and paces, told apart by resampling, which moves its formants with
its pitch; ``flite`` three CMU voices of Debian's flite. A hesitation is cut into the sentence where
the speaker really passes from one word to the next, at the boundary the synthesizer reports, so the
words before it keep the open intonation of a sentence that goes on. Nothing else is added: room
noise comes in only when the call is played.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from scipy.signal import butter, sosfiltfilt

from audio.tts.hibari_model import MODEL_HZ, HibariModel
from clients.call.script import CALL_FOLDER, DEFAULT_CAST, CallScript, load_call
from clients.command import run
from clients.errors import CallScriptError
from clients.outputs import prepare_folder
from clients.recording import Recording, Samples, read_wav, to_int16, write_flac
from clients.report.waveform import FULL_SCALE, speech_end, speech_start

SPEECH_DBFS = -23.0  # a caller at arm's length from a headset
PADDING_MS = 60  # silence kept around the speech: a voice's own 200 ms would slow the call down
HIGH_PASS_HZ = 50
FADE_MS = 8  # at a cut inside speech: long enough to be free of clicks, shorter than a sound
RATE_HZ = 16_000  # of the recordings: all that the recognizers hear


Speech: TypeAlias = tuple[Recording, float]  # and where in it, in s, the words before "|" end


@dataclass(frozen=True, slots=True)
class HibariCaller:
    """pitch: times that of the voice; speed: what its network is asked for, before resampling."""

    pitch: float
    speed: float

    def speak(self, text: str, folder: Path) -> Speech:
        model = _hibari()
        phonemes = model.phonemes(text.replace("|", " "))
        samples, times_ms = model.speak(phonemes, self.speed)
        n_before = len(text.split("|")[0].split())
        # Played faster by its pitch, and from there at the one rate of the recordings.
        played_hz = round(MODEL_HZ * self.pitch)
        peak = float(np.abs(samples).max())
        recording = Recording(to_int16(samples / peak * FULL_SCALE / 2), played_hz).at_rate(RATE_HZ)
        return recording, times_ms[n_before - 1][1] / 1000.0 / self.pitch


@dataclass(frozen=True, slots=True)
class FliteCaller:
    """One of flite's cluster-free CMU voices; stretch: of its durations."""

    voice: str
    stretch: float = 1.0

    def speak(self, text: str, folder: Path) -> Speech:
        wav = folder / "utterance.wav"
        segments = self._segments(text.replace("|", " "), wav)
        before = self._segments(text.split("|")[0].strip(), folder / "before.wav")
        n_before = sum(phone != "pau" for phone, _ in before)
        spoken = [end_s for phone, end_s in segments if phone != "pau"]
        return read_wav(wav), spoken[n_before - 1]

    def _segments(self, text: str, out: Path) -> list[tuple[str, float]]:
        """Write ``text`` to ``out`` and return its segments as (phone, end in seconds).

        Raises:
            CallScriptError: flite is not installed or failed.
        """
        stretch = f"duration_stretch={self.stretch}"
        command = ["flite", "-voice", self.voice, "--setf", stretch, "-psdur"]
        try:
            result = subprocess.run(
                [*command, "-t", text, "-o", str(out)], capture_output=True, text=True, check=True
            )
        except FileNotFoundError as error:
            raise CallScriptError("expected flite, found none: apt-get install flite") from error
        except subprocess.CalledProcessError as error:
            raise CallScriptError(f"flite failed on {text!r}: {error.stderr.strip()}") from error
        return [(phone, float(end)) for phone, end in re.findall(r"(\S+):([\d.]+)", result.stdout)]


@cache
def _hibari() -> HibariModel:
    return HibariModel()


# Of hibari the pitches of a woman, a man and a girl, at 96 to 106 % of its own pace. A pitch of
# 0.75 or less sounds like a slowed tape.
CALLERS: dict[str, HibariCaller | FliteCaller] = {
    "heart": HibariCaller(1.0, 1.0),
    "deep": HibariCaller(0.80, 1.2),
    "bright": HibariCaller(1.12, 0.95),
    "slt": FliteCaller("slt"),
    "rms": FliteCaller("rms"),
    "awb": FliteCaller("awb", 1.05),  # it rushes
}


def fade(samples: Samples, rate_hz: int, *, at_end: bool) -> Samples:
    n_fade = rate_hz * FADE_MS // 1000
    ramp = np.ones(len(samples))
    if at_end:
        ramp[-n_fade:] = np.linspace(1.0, 0.0, n_fade)
    else:
        ramp[:n_fade] = np.linspace(0.0, 1.0, n_fade)
    return to_int16(samples * ramp)


def level(recording: Recording) -> Recording:
    """Remove rumble and bring the speech to -23 dBFS; keep 60 ms of silence around it."""
    start = speech_start(recording.samples, recording.rate_hz) or 0
    end = speech_end(recording.samples, recording.rate_hz) or len(recording.samples)
    n_padding = recording.rate_hz * PADDING_MS // 1000
    # A filter, not the mean: flite's waveforms are lopsided, and subtracting their mean
    # would lift the silent stretches into an offset that looks like sound.
    rumble = butter(2, HIGH_PASS_HZ, "high", fs=recording.rate_hz, output="sos")
    centred = sosfiltfilt(rumble, recording.samples.astype(np.float64))
    rms = float(np.sqrt(np.mean(np.square(centred[start:end]))))
    gain = FULL_SCALE * 10.0 ** (SPEECH_DBFS / 20.0) / rms
    kept = centred[max(0, start - n_padding) : end + n_padding] * gain
    n_edge = recording.rate_hz * FADE_MS // 1000  # a voice's floor must not begin with a step
    kept[:n_edge] *= np.linspace(0.0, 1.0, n_edge)
    kept[-n_edge:] *= np.linspace(1.0, 0.0, n_edge)
    return Recording(to_int16(kept), recording.rate_hz)


def make_utterance(text: str, pause_ms: float, voice: str, folder: Path) -> Recording:
    """Speak one turn; where the text has a "|", hesitate there for ``pause_ms``.

    Raises:
        AudioError: hibari's wheel is absent.
        CallScriptError: flite is.
    """
    recording, boundary_s = CALLERS[voice].speak(text, folder)
    if "|" in text:
        cut = int(boundary_s * recording.rate_hz)
        before = fade(recording.samples[:cut], recording.rate_hz, at_end=True)
        after = fade(recording.samples[cut:], recording.rate_hz, at_end=False)
        silence = np.zeros(int(recording.rate_hz * pause_ms / 1000), dtype=np.int16)
        recording = Recording(np.concatenate([before, silence, after]), recording.rate_hz)
    return level(recording)


def make_call(script: CallScript, cast: str, folder: Path) -> list[Path]:
    written = []
    with tempfile.TemporaryDirectory() as scratch:
        for voice in script.casts[cast]:
            (folder / voice).mkdir(parents=True, exist_ok=True)
            for turn in script.turns:
                recording = make_utterance(turn.text, turn.pause_ms, voice, Path(scratch))
                write_flac(folder / voice / turn.file, recording)
                written.append(folder / voice / turn.file)
    return written


def main() -> int:
    script = load_call()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calls.make_call",
        description="Make the bundled caller's audio.",
    )
    parser.add_argument(
        "--cast", choices=script.casts, default=DEFAULT_CAST,
        help="which voices; flite needs Debian's flite (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="DIR", default=CALL_FOLDER,
        help="where the folder of each voice goes (default: the package's own)",
    )  # fmt: skip
    arguments = parser.parse_args()
    prepare_folder(arguments.out)
    written = make_call(script, arguments.cast, arguments.out)
    size_kb = sum(path.stat().st_size for path in written) / 1024
    print(f"wrote {len(written)} utterances, {size_kb:.0f} KiB, to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(run(main, loss="utterances that were made already stand in their folders"))
