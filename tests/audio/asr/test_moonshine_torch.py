"""The Moonshine that does not stream, in torch, on a tiny random checkpoint of its architecture."""

import json

import numpy as np
import pytest

from audio.asr.moonshine.decoder import EDGE, MoonshineDecoder
from audio.asr.moonshine.torch_network import MoonshineTorchRecognizer, TorchNetwork
from audio.asr.moonshine.vocabulary import START
from audio.asr.window_decoder import DecodeRequest
from audio.errors import AudioError
from audio.stream import RecognizerOptions, Transcript
from voiceloop.models.resolve import loader_of
from voiceloop.workers.roles.speech import RECOGNIZERS

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def decoder(tiny_whole_moonshine_dir):
    network = TorchNetwork(tiny_whole_moonshine_dir, "cpu")
    return MoonshineDecoder(network, tiny_whole_moonshine_dir)


def request(samples, prefix=(), guess=()):
    return DecodeRequest(samples, "en", (), tuple(prefix), True, guess=tuple(guess))


def tokens_of(words):
    return [token for word in words for token in word.tokens]


@pytest.fixture
def said(decoder, monkeypatch):
    """decode(samples, prefix, guess) -> the tokens, however unlikely random weights find them."""
    monkeypatch.setattr("audio.asr.moonshine.decoder.UNLIKELY_LOG_PROBABILITY", -1e9)
    return lambda *given: decoder.decode([request(*given)])[0].tail


def test_a_window_decodes_as_the_whole_model_does_without_a_cache(said, decoder, noisy_speech):
    for seconds in (0.53, 1.0):  # of any length: nothing is filled with silence
        samples = noisy_speech(seconds, 2)
        found = tokens_of(said(samples))
        wave = torch.from_numpy(np.pad(samples.astype(np.float32) / 32768.0, EDGE))[None]
        model, vocabulary = decoder._network._model, decoder._vocabulary
        tokens = [START]
        for n_said in range(len(found)):
            with torch.inference_mode():
                ids = torch.tensor([tokens])
                logits = model(input_values=wave, decoder_input_ids=ids, use_cache=False).logits
            barred = vocabulary.penalties if n_said else vocabulary.penalties_of_beginning
            tokens.append(int((logits[0, -1].numpy() - barred).argmax()))
        assert found == tokens[1:]
        assert len(set(found)) >= 3, "the checkpoint must not repeat itself"


def test_the_tail_continues_the_forced_prefix(said, noisy_speech):
    samples = noisy_speech(1.0, 2)
    whole = said(samples)
    assert said(samples, whole[:2])[: len(whole) - 2] == whole[2:]


def test_a_guess_that_goes_wrong_changes_nothing(said, noisy_speech):
    samples = noisy_speech(1.0, 2)
    whole = said(samples)
    tokens = tokens_of(whole)
    assert said(samples, (), tokens) == whole
    assert said(samples, (), [*tokens[:2], tokens[0], tokens[0]]) == whole


def test_it_streams_and_its_folder_is_known_by_its_architecture(
    tiny_whole_moonshine_dir, noisy_speech
):
    loader = loader_of("recognizer", tiny_whole_moonshine_dir)
    assert RECOGNIZERS[loader].endswith(":MoonshineTorchRecognizer")
    recognizer = MoonshineTorchRecognizer(tiny_whole_moonshine_dir, device="cpu")
    recognizer.open("a", RecognizerOptions())
    recognizer.feed("a", noisy_speech(1.0))
    recognizer.finalize("a")
    events = []
    while recognizer.has_work():
        events += recognizer.step()
    assert isinstance(events[-1], Transcript)


def test_another_vocabulary_or_no_folder_is_refused(tiny_whole_moonshine_dir, tmp_path):
    with pytest.raises(AudioError, match="expected a model folder"):
        MoonshineTorchRecognizer(tmp_path / "none")
    for file in tiny_whole_moonshine_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"<pad>": 0}}}))
    with pytest.raises(AudioError, match="expected Moonshine's tokenizer"):
        MoonshineTorchRecognizer(tmp_path, device="cpu")
