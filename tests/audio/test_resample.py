"""Resampling: the chunking cannot be heard, lengths add up, little is withheld."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.errors import AudioError
from audio.resample import Resampler
from tests.tables import each_row

RATES = (8_000, 16_000, 24_000, 48_000)
PAIRS = [(a, b) for a in RATES for b in RATES] + [(22_050, 24_000), (44_100, 16_000)]


def convert(resampler, samples):
    return np.concatenate([resampler.push(samples), resampler.flush()])


@settings(max_examples=60)
@given(
    pair=st.sampled_from(PAIRS),
    sizes=st.lists(st.integers(0, 700), min_size=1, max_size=12),
    seed=st.integers(0, 99),
)
def test_any_chunking_gives_the_samples_of_the_whole(pair, sizes, seed):
    samples = np.random.default_rng(seed).integers(-32768, 32768, sum(sizes)).astype(np.int16)
    whole = convert(Resampler(*pair), samples)
    chunked = Resampler(*pair)
    parts = [chunked.push(part) for part in np.split(samples, np.cumsum(sizes)[:-1])]
    parts.append(chunked.flush())
    assert np.concatenate(parts).tolist() == whole.tolist()
    assert len(whole) == -(-len(samples) * pair[1] // pair[0])


@each_row(("in_hz", "out_hz"), PAIRS)
def test_withheld_audio_stays_within_the_stated_delay(in_hz, out_hz):
    resampler = Resampler(in_hz, out_hz)
    n_out = sum(len(resampler.push(np.zeros(in_hz // 50, np.int16))) for _ in range(10))
    withheld_ms = 1000 * (10 * (in_hz // 50) / in_hz - n_out / out_hz)
    assert withheld_ms <= resampler.delay_ms + 1000 / out_hz
    assert resampler.delay_ms <= 2.1


def test_integer_ratios_and_24_to_16_khz_withhold_at_most_2_ms():
    delays = {pair: Resampler(*pair).delay_ms for pair in PAIRS[:16]}
    assert max(delays.values()) <= 2.0
    assert delays[24_000, 16_000] == 1.0


@each_row(("in_hz", "out_hz"), PAIRS)
def test_a_tone_keeps_its_level_and_its_place_in_time(in_hz, out_hz):
    def tone(rate_hz):
        return 10_000 * np.sin(2 * np.pi * 440 * np.arange(rate_hz // 5) / rate_hz)

    converted = convert(Resampler(in_hz, out_hz), np.rint(tone(in_hz)).astype(np.int16))
    middle = slice(out_hz // 50, -out_hz // 50)
    assert np.abs(converted[middle] - tone(out_hz)[: len(converted)][middle]).max() < 15


def test_what_would_alias_into_speech_is_suppressed():
    above = 10_000 * np.sin(2 * np.pi * 10_000 * np.arange(4_800) / 24_000)
    converted = convert(Resampler(24_000, 16_000), above.astype(np.int16))
    assert np.abs(converted[200:-200]).max() < 40  # -48 dB


def test_a_constant_and_full_scale_stay_exact():
    for level in (1000, 32767, -32768):
        converted = convert(Resampler(16_000, 24_000), np.full(1_600, level, np.int16))
        assert set(converted[100:-100].tolist()) == {level}


def test_flush_starts_a_new_stream():
    resampler = Resampler(48_000, 16_000)
    samples = np.random.default_rng(1).integers(-9_000, 9_000, 999).astype(np.int16)
    assert convert(resampler, samples).tolist() == convert(resampler, samples).tolist()


@pytest.mark.parametrize("pair", [(0, 16_000), (16_000, -1), (16_000, 10**6), (16_000, 15_999)])
def test_impossible_rates_are_refused(pair):
    with pytest.raises(AudioError, match="expected"):
        Resampler(*pair)
