"""Make the bundled caller's audio: ``python -m clients.call.make_call`` (needs Debian's flite).

Every utterance of ``call.toml`` is spoken by each of its voices with flite's cluster-free CMU
voices, which share nothing with the agent's espeak-ng. A hesitation is cut into the sentence where
the speaker really passes from one word to the next, at the segment boundary flite reports, so the
words before it keep the open intonation of a sentence that goes on. Nothing else is added: room
noise comes in only when the call is played.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.signal import butter, sosfiltfilt

from clients.call.script import CALL_FOLDER, CallScript, load_call
from clients.command import run
from clients.errors import CallScriptError
from clients.outputs import prepare_folder
from clients.recording import Recording, Samples, read_wav, to_int16, write_flac
from clients.report.waveform import FULL_SCALE, speech_end, speech_start

SPEECH_DBFS = -23.0  # a caller at arm's length from a headset
PADDING_MS = 60  # silence kept around the speech: flite's own 200 ms would slow the call down
HIGH_PASS_HZ = 50
FADE_MS = 8  # at a cut inside speech: long enough to be free of clicks, shorter than a sound
STRETCH = {"slt": 1.0, "rms": 1.0, "awb": 1.05}  # awb rushes


def speak(text: str, voice: str, out: Path) -> list[tuple[str, float]]:
    """Write ``text`` to ``out`` and return its segments as (phone, end in seconds).

    Raises:
        CallScriptError: flite is not installed or failed.
    """
    command = ["flite", "-voice", voice, "--setf", f"duration_stretch={STRETCH[voice]}", "-psdur"]
    try:
        result = subprocess.run(
            [*command, "-t", text, "-o", str(out)], capture_output=True, text=True, check=True
        )
    except FileNotFoundError as error:
        raise CallScriptError("expected flite, found none: apt-get install flite") from error
    except subprocess.CalledProcessError as error:
        raise CallScriptError(f"flite failed on {text!r}: {error.stderr.strip()}") from error
    return [(phone, float(end)) for phone, end in re.findall(r"(\S+):([\d.]+)", result.stdout)]


def phones_of(text: str, voice: str, folder: Path) -> list[str]:
    segments = speak(text, voice, folder / "phones.wav")
    return [phone for phone, _ in segments if phone != "pau"]


def boundary_s(text: str, voice: str, segments: list[tuple[str, float]], folder: Path) -> float:
    """Seconds at which the words before "|" end: the last phone that is theirs."""
    n_before = len(phones_of(text.split("|")[0].strip(), voice, folder))
    spoken = [end for phone, end in segments if phone != "pau"]
    return spoken[n_before - 1]


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
    # A filter, not the mean: these voices' waveforms are lopsided, and subtracting their mean
    # would lift the silent stretches into an offset that looks like sound.
    rumble = butter(2, HIGH_PASS_HZ, "high", fs=recording.rate_hz, output="sos")
    centred = sosfiltfilt(rumble, recording.samples.astype(np.float64))
    rms = float(np.sqrt(np.mean(np.square(centred[start:end]))))
    gain = FULL_SCALE * 10.0 ** (SPEECH_DBFS / 20.0) / rms
    kept = centred[max(0, start - n_padding) : end + n_padding] * gain
    n_edge = recording.rate_hz * FADE_MS // 1000  # flite's floor must not begin with a step
    kept[:n_edge] *= np.linspace(0.0, 1.0, n_edge)
    kept[-n_edge:] *= np.linspace(1.0, 0.0, n_edge)
    return Recording(to_int16(kept), recording.rate_hz)


def make_utterance(text: str, pause_ms: float, voice: str, folder: Path) -> Recording:
    """Speak one turn; where the text has a "|", hesitate there for ``pause_ms``."""
    wav = folder / "utterance.wav"
    segments = speak(text.replace("|", " "), voice, wav)
    recording = read_wav(wav)
    if "|" in text:
        cut = int(boundary_s(text, voice, segments, folder) * recording.rate_hz)
        before = fade(recording.samples[:cut], recording.rate_hz, at_end=True)
        after = fade(recording.samples[cut:], recording.rate_hz, at_end=False)
        silence = np.zeros(int(recording.rate_hz * pause_ms / 1000), dtype=np.int16)
        recording = Recording(np.concatenate([before, silence, after]), recording.rate_hz)
    return level(recording)


def make_call(script: CallScript, folder: Path) -> list[Path]:
    written = []
    with tempfile.TemporaryDirectory() as scratch:
        for voice in script.voices:
            (folder / voice).mkdir(parents=True, exist_ok=True)
            for turn in script.turns:
                recording = make_utterance(turn.text, turn.pause_ms, voice, Path(scratch))
                write_flac(folder / voice / turn.file, recording)
                written.append(folder / voice / turn.file)
    return written


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m clients.call.make_call",
        description="Make the bundled caller's audio with flite (apt-get install flite).",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", default=CALL_FOLDER,
        help="where the folder of each voice goes (default: the package's own)",
    )  # fmt: skip
    arguments = parser.parse_args()
    prepare_folder(arguments.out)
    written = make_call(load_call(), arguments.out)
    size_kb = sum(path.stat().st_size for path in written) / 1024
    print(f"wrote {len(written)} utterances, {size_kb:.0f} KiB, to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(run(main, loss="utterances that were made already stand in their folders"))
