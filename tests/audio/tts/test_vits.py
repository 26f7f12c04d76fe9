"""VITS on a tiny random checkpoint: chunked decoding equals the model's own."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.errors import AudioError
from audio.resample import Resampler
from audio.stream import Speech, VoiceOptions
from audio.tts.hifigan import HifiGanShape, chunk_bounds
from audio.tts.vits import VitsVoice
from tests.spoken import pieces, samples_of, speak

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MMS = HifiGanShape((8, 8, 2, 2), (16, 16, 4, 4), (3, 7, 11), ((1, 3, 5),) * 3)
PIPER_LOW = HifiGanShape((8, 8, 4), (16, 16, 8), (3, 5, 7), ((1, 2), (2, 6), (3, 12)))
TEXT = "Hello there, a table for four at seven. Would that suit you?"


def hifigan(shape):
    torch.manual_seed(1)
    config = transformers.VitsConfig(
        flow_size=4,
        upsample_initial_channel=16,
        upsample_rates=shape.upsample_rates,
        upsample_kernel_sizes=shape.upsample_kernel_sizes,
        resblock_kernel_sizes=shape.resblock_kernel_sizes,
        resblock_dilation_sizes=shape.resblock_dilation_sizes,
    )
    return transformers.models.vits.modeling_vits.VitsHifiGan(config).eval()


@pytest.fixture(scope="module")
def voice(tiny_vits_dir):
    return VitsVoice(tiny_vits_dir, device="cpu")


@pytest.mark.parametrize("shape", [MMS, PIPER_LOW])
def test_margins_are_exactly_the_frames_with_a_gradient(shape):
    """With weights above zero nothing cancels: the gradient shows what a sample depends on."""
    decoder = hifigan(shape).double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.rand_like(parameter) * (0.02 if parameter.ndim > 1 else 0.0))
    latents = torch.rand(1, 4, 40, dtype=torch.float64, requires_grad=True)
    for start, end in ((16, 17), (14, 22)):
        wave = decoder(latents)[0, 0, start * shape.hop : end * shape.hop]
        (gradient,) = torch.autograd.grad(wave.sum(), latents)
        frames = gradient[0].abs().sum(0).nonzero().flatten()
        assert (int(frames[0]), int(frames[-1]) + 1) == shape.frames_needed(start, end)


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_chunking_equals_the_whole_decode(data):
    decoder = hifigan(MMS)
    n_frames = data.draw(st.integers(1, 50))
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    latents = torch.randn(1, 4, n_frames)
    pieces = []
    with torch.inference_mode():
        whole = decoder(latents)[0, 0]
        for start, end in chunk_bounds(n_frames, sizes):
            low, high = MMS.frames_needed(start, end)
            low, high = max(0, low), min(n_frames, high)
            wave = decoder(latents[..., low:high])[0, 0]
            pieces.append(wave[(start - low) * 256 : (end - low) * 256])
    assert (torch.cat(pieces) - whole).abs().max() < 1e-4


def test_piper_geometry_needs_fewer_frames_than_mms():
    low, high = PIPER_LOW.frames_needed(100, 101)
    assert 0 < 100 - low < 13 and 0 < high - 101 < 12


def test_first_chunk_is_eight_frames_and_later_ones_grow():
    sizes = [end - start for start, end in chunk_bounds(500)]
    assert sizes[:4] == [8, 24, 64, 160] and sum(sizes) == 500


def test_streamed_speech_equals_the_models_own_forward(voice, tiny_vits_dir):
    text = "hello there this is a table"
    events = speak(voice, [text], voice_id="1")
    model = transformers.VitsModel.from_pretrained(tiny_vits_dir).eval()
    tokenizer = transformers.VitsTokenizer.from_pretrained(tiny_vits_dir)
    spoken = []
    # The chunker's first clause may be shorter than the text: speak what it gave.
    voice.open("b", VoiceOptions(voice="1"))
    voice.feed("b", text)
    voice.finish("b")
    reply = voice._replies["b"]
    while (fragment := reply.next_fragment()) is not None:
        torch.manual_seed(zlib.crc32(fragment.text.encode()))
        with torch.inference_mode():
            wave = model(**tokenizer(fragment.text, return_tensors="pt"), speaker_id=1).waveform
        spoken.append(wave[0].numpy())
    voice.close("b")
    whole = np.rint(np.concatenate(spoken) * 32767).astype(np.int16)
    resampler = Resampler(16_000, 24_000)
    expected = np.concatenate((resampler.push(whole), resampler.flush())).astype(int)
    found = samples_of(events).astype(int)
    # A random model speaks from its first sample on, so no silence was cut off its start.
    assert len(found) == len(expected)
    assert np.abs(found - expected).max() <= 1 + 1e-4 * 32767


@settings(max_examples=4, deadline=None)
@given(cuts=st.lists(st.integers(1, 40), max_size=8))
def test_text_in_any_deltas_gives_the_same_samples(voice, cuts):
    whole = samples_of(speak(voice, [TEXT]))
    assert np.array_equal(samples_of(speak(voice, pieces(TEXT, cuts))), whole)


def test_batched_replies_equal_each_alone(voice):
    texts = [TEXT, "Good morning to you all.", "One moment, I will look that up."]
    alone = [samples_of(speak(voice, [text])) for text in texts]
    for i, text in enumerate(texts * 2 + [TEXT, texts[1]]):
        voice.open(f"s{i}", VoiceOptions())
        voice.feed(f"s{i}", text)
        voice.finish(f"s{i}")
    events, widths = [], []
    handle = voice._decoder.register_forward_hook(
        lambda module, inputs, output: widths.append(len(output))
    )
    while voice.has_work():
        events += voice.step()
    handle.remove()
    assert max(widths) >= 2, "equal runs of frames must share a batch"
    for i in range(8):
        together = samples_of(events, f"s{i}").astype(int)
        assert len(together) == len(alone[i % 3])
        # A CPU may convolve a batch by another algorithm than one row; random weights amplify it.
        assert np.abs(together - alone[i % 3]).max() <= 1 + 5e-4 * 32767


def test_cancelling_one_reply_leaves_the_other_identical(voice):
    alone = samples_of(speak(voice, [TEXT]))
    voice.open("a", VoiceOptions())
    voice.open("b", VoiceOptions())
    for stream_id in "ab":
        voice.feed(stream_id, TEXT)
    voice.finish("a")
    events = voice.step()
    voice.close("b")
    while voice.has_work():
        events += voice.step()
    together = samples_of(events)
    assert np.abs(together.astype(int) - alone).max() <= 1 + 1e-4 * 32767
    assert all(e.stream_id == "a" for e in events[2:])


def test_each_word_comes_with_the_samples_it_starts_in(voice):
    given_ms = 0.0
    for event in speak(voice, [TEXT]):
        if isinstance(event, Speech):
            end_ms = given_ms + 1000.0 * len(event.samples) / 24_000
            assert all(given_ms - 5.0 <= word.start_ms <= end_ms for word in event.words)
            given_ms = end_ms


def test_missing_folder_and_foreign_checkpoint_are_one_sentence(tmp_path):
    with pytest.raises(AudioError, match="remedy: voiceloop models pull NAME"):
        VitsVoice(tmp_path / "none")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(AudioError, match="expected a VitsModel"):
        VitsVoice(tmp_path)


def test_a_stock_clients_voice_is_the_models_first_and_an_unknown_one_is_refused(voice):
    assert np.array_equal(
        samples_of(speak(voice, ["Hello."], voice_id="marin")), samples_of(speak(voice, ["Hello."]))
    )
    with pytest.raises(AudioError, match="expected a voice of 0, 1, found 'hal'"):
        voice.open("b", VoiceOptions(voice="hal"))
