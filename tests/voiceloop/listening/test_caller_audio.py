"""What the models are given of the caller's bytes, whatever the session asks for on the way."""

from __future__ import annotations

import numpy as np
import pytest

from audio.codec import encode
from audio.frames import rms_dbfs
from audio.noise_reduction import is_available
from tests.fakes import quiet, tone
from voiceloop.listening.caller_audio import CallerAudio
from voiceloop.realtime.settings import AudioFormat, NoiseField

PCM24, PCM16, PCMU = AudioFormat(), AudioFormat(rate=16_000), AudioFormat("audio/pcmu", 8000)
needs_noise_reduction = pytest.mark.skipif(
    not is_available(), reason="webrtc-noise-gain is not installed"
)


def test_every_format_comes_to_sixteen_thousand_samples_a_second() -> None:
    for audio_format, encoding in ((PCM24, "pcm16"), (PCM16, "pcm16"), (PCMU, "pcmu")):
        data = encode(tone(1000, audio_format.rate), encoding)  # type: ignore[arg-type]
        n_heard = len(CallerAudio(audio_format, None).push(data))
        assert 16_000 - 64 <= n_heard <= 16_000  # what the resampler's filter still waits for


@needs_noise_reduction
def test_noise_goes_from_the_moment_that_it_is_asked_for_and_no_sample_with_it() -> None:
    noise = np.random.default_rng(0).normal(0, 300, 99_999).astype("<i2")
    asked: tuple[NoiseField | None, ...] = (None, "near_field", "far_field", None)
    audio = CallerAudio(PCM16, None)
    levels, n_heard = [], 0
    for field, said in zip(asked, np.array_split(noise, len(asked)), strict=True):
        audio.configure(PCM16, field)
        heard = np.concatenate([audio.push(part.tobytes()) for part in np.array_split(said, 77)])
        n_heard += len(heard)
        levels.append(rms_dbfs(heard[len(heard) // 2 :]))
    assert levels[0] - levels[1] > 8 and levels[0] - levels[2] > 11
    assert abs(levels[3] - levels[0]) < 0.5
    assert n_heard == len(noise)


@needs_noise_reduction
def test_the_same_settings_again_forget_nothing() -> None:
    steady = (quiet(3000, 16_000) * 40).astype("<i2")
    once, again = CallerAudio(PCM16, "near_field"), CallerAudio(PCM16, "near_field")
    for part in np.array_split(steady, 150):
        again.configure(PCM16, "near_field")
        assert np.array_equal(once.push(part.tobytes()), again.push(part.tobytes()))
