"""Moonshine streaming on a tiny random checkpoint of the real architecture."""

import numpy as np
import pytest

from audio.asr.local_agreement import HypothesisWord
from audio.asr.moonshine.streaming import MoonshineRecognizer, MoonshineStreamingDecoder
from audio.asr.window_decoder import DecodeRequest
from audio.errors import AudioError
from audio.stream import RecognizerOptions

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def decoder(tiny_moonshine_dir):
    return MoonshineStreamingDecoder(tiny_moonshine_dir, "cpu", "en")


def request(samples, prefix=(), with_times=False):
    return DecodeRequest(samples, "en", (), tuple(prefix), with_times)


def tokens_of(words):
    return [token for word in words for token in word.tokens]


def test_a_window_decodes_as_transformers_generate_does(decoder, tiny_moonshine_dir, noisy_speech):
    samples = noisy_speech(1.0, 2)
    found = tokens_of(decoder.decode([request(samples)])[0].tail)
    model, wave = decoder._model, torch.from_numpy(samples.astype(np.float32) / 32768)[None]
    reference = model.generate(
        wave, attention_mask=torch.ones(wave.shape, dtype=torch.long), max_new_tokens=len(found)
    )
    specials = decoder._specials
    expected = [t for t in reference[0].tolist()[1:] if t not in specials]
    assert found[: len(expected)] == expected
    assert len(set(expected)) >= 3, "the checkpoint must not repeat itself"


def test_batched_windows_give_what_each_gives_alone(decoder, noisy_speech):
    requests = [request(noisy_speech(0.5 + 0.2 * i, i), with_times=i == 1) for i in range(8)]
    alone = [decoder.decode([one])[0] for one in requests]
    assert decoder.decode(requests) == alone
    assert len({result.tail for result in alone}) > 1


def test_rows_encoded_in_pieces_equal_those_of_the_whole(tiny_moonshine_dir, noisy_speech):
    decoder = MoonshineStreamingDecoder(tiny_moonshine_dir, "cpu", "en")
    samples = noisy_speech(4.0, 5)
    encoded_rows = []
    encode = decoder._encode_waves
    decoder._encode_waves = lambda waves: (
        encoded_rows.append(waves.shape[1] // 320),
        encode(waves),
    )[1]
    for n_samples in (3_000, 9_000, 17_333, 26_000, 40_100, 52_000, 64_000):
        window = DecodeRequest(samples[:n_samples], "en", (), (), False, "a/0/0")
        with torch.inference_mode():
            (pieced,) = decoder._encode([window])
            (whole,) = decoder._encode([request(samples[:n_samples])])
        assert pieced.shape == whole.shape
        assert (pieced - whole).abs().max() < 1e-4
    pieces, wholes = encoded_rows[0::2], encoded_rows[1::2]
    assert pieces[-1] < wholes[-1] / 2, "the beginning must not be encoded again"


def test_tail_continues_the_forced_prefix(decoder, noisy_speech):
    samples = noisy_speech(1.0, 2)
    whole = decoder.decode([request(samples)])[0].tail
    assert len(whole) >= 3
    rest = decoder.decode([request(samples, prefix=whole[:2])])[0].tail
    assert rest[: len(whole) - 2] == whole[2:]


def test_times_cover_prefix_and_tail(decoder, noisy_speech):
    prefix = (HypothesisWord("a1", (1,)),)
    result = decoder.decode([request(noisy_speech(1.0), prefix, with_times=True)])[0]
    assert len(result.spans_ms) == 1 + len(result.tail)
    assert result.spans_ms[-1][1] == 1000.0


@pytest.mark.parametrize("n_streams", [2, 8])
def test_streams_together_say_what_each_says_alone_though_one_is_closed(
    tiny_moonshine_dir, noisy_speech, n_streams
):
    sounds = [noisy_speech(1.0, i) for i in range(n_streams)]

    def play(indices, closed=None):
        recognizer = MoonshineRecognizer(tiny_moonshine_dir, device="cpu", clock=lambda: 0.0)
        events = []
        for i in indices:
            recognizer.open(f"s{i}", RecognizerOptions())
        for at in range(0, 16_000, 4_000):
            if closed is not None and at == 8_000:
                recognizer.close(f"s{closed}")
            for i in indices:
                if i != closed or at < 8_000:
                    recognizer.feed(f"s{i}", sounds[i][at : at + 4_000])
            events += recognizer.step()
        for i in indices:
            if i != closed:
                recognizer.finalize(f"s{i}")
        while recognizer.has_work():
            events += recognizer.step()
        return events

    together = play(range(n_streams), closed=0)
    for i in {1, n_streams - 1}:
        assert [e for e in together if e.stream_id == f"s{i}"] == play([i])


def test_a_stream_id_that_comes_again_hears_its_own_sound(tiny_moonshine_dir, noisy_speech):
    recognizer = MoonshineRecognizer(tiny_moonshine_dir, device="cpu", clock=lambda: 0.0)

    def hear(seed, stream_id):
        recognizer.open(stream_id, RecognizerOptions())
        for i in range(0, 40_000, 4_000):
            recognizer.feed(stream_id, noisy_speech(2.5, seed)[i : i + 4_000])
            recognizer.step()
        recognizer.finalize(stream_id)
        words = recognizer.step()[-1].words
        recognizer.close(stream_id)
        return words

    hear(1, "a")
    assert hear(2, "a") == hear(2, "b")


def test_another_language_and_a_missing_folder_are_refused(tiny_moonshine_dir, tmp_path):
    recognizer = MoonshineRecognizer(tiny_moonshine_dir, device="cpu")
    with pytest.raises(AudioError, match="expected a language among en, found 'de'"):
        recognizer.open("a", RecognizerOptions(language="de"))
    with pytest.raises(AudioError, match="remedy: voiceloop models pull NAME"):
        MoonshineRecognizer(tmp_path / "none")
