"""Pocket TTS and phonon on tiny random checkpoints of the real architectures."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.errors import AudioError, UnknownStream
from audio.stream import VoiceOptions
from audio.tts.latent_codec import LatentCodec
from audio.tts.latent_voice import PhononVoice, PocketVoice
from tests.spoken import pieces, samples_of, speak

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CLASSES = {"pocket": PocketVoice, "phonon": PhononVoice}
MODELS = {
    "pocket": "PocketTTSForConditionalGeneration",
    "phonon": "GradiumPhononTTSForConditionalGeneration",
}
TEXTS = ("Hello there.", "One moment please, I will look.", "Thank you very much for calling us.")


@pytest.fixture(scope="module")
def voices(tiny_latent_dir):
    made = {}

    def make(kind):
        if kind not in made:
            made[kind] = CLASSES[kind](tiny_latent_dir(kind), device="cpu")
        return made[kind]

    return make


@pytest.fixture(scope="module")
def codec_model(tiny_latent_dir):
    folder = tiny_latent_dir("pocket") / "audio_tokenizer"
    return transformers.PocketTTSAudioTokenizerModel.from_pretrained(folder).eval()


def test_codec_by_frames_equals_the_whole_decode(codec_model):
    codec = LatentCodec(torch, codec_model)
    latents = torch.randn(2, 9, 8)
    with torch.inference_mode():
        whole = codec_model.decode(latents).audio_values[:, 0]
    states, pieces = [codec.initial] * 2, []
    for frame in range(9):
        states, waves = codec.decode(states, latents[:, frame])
        pieces.append(waves)
    streamed = torch.cat(pieces, dim=1)
    assert whole.abs().max() > 0.01
    assert (streamed - whole).abs().max() < 1e-4 * max(1.0, float(whole.abs().max()))


def test_codec_batches_streams_of_any_age(codec_model):
    codec = LatentCodec(torch, codec_model)
    latents = torch.randn(2, 6, 8)
    alone, old = [], codec.initial
    for frame in range(6):
        (old,), wave = codec.decode([old], latents[:1, frame])
        alone.append(wave[0])
    (aged,), _ = codec.decode([codec.initial], latents[1:, 0])
    states, together = [codec.initial, aged], []
    for frame in range(5):
        states, waves = codec.decode(states, torch.stack((latents[0, frame], latents[1, frame])))
        together.append(waves[0])
    assert max((a - b).abs().max() for a, b in zip(alone, together, strict=False)) < 1e-5


@pytest.mark.parametrize("kind", ["pocket", "phonon"])
def test_frames_equal_transformers_generate(voices, tiny_latent_dir, kind):
    """The same noise through `generate` and our loop gives the same latents and the same end."""
    voice, folder = voices(kind), tiny_latent_dir(kind)
    model = getattr(transformers, MODELS[kind]).from_pretrained(folder).eval()
    from safetensors.torch import load_file

    latents = load_file(folder / "voices" / "marius.safetensors")["latents"]
    text_ids = voice._text_ids("One moment please.")
    opening = [4] if kind == "pocket" else []
    ids = torch.tensor([[*opening, *([2] * len(latents)), *text_ids]])
    reply = voice._model.begin(voice._prompts.prefix("marius"), text_ids, 3, seed=9)
    noise = reply.noise / voice._model._noise_scale

    drawn = iter(noise)
    original = torch.randn
    torch.randn = lambda *shape, **_: next(drawn)[None]
    try:
        reference = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            audio_prompt_latents=latents[None],
            audio_prompt_latents_mask=torch.ones(1, len(latents), dtype=torch.long),
            frames_after_eos=torch.tensor([4]),
            return_dict_in_generate=True,
        ).audio_latents[0]
    finally:
        torch.randn = original
    frames, is_last = [], False
    while not is_last:
        frame, (is_last,) = voice._model.frame([reply])
        frames.append(frame[0])
    found = torch.stack(frames)
    assert len(found) < len(noise), "the end of speech must come before the frames run out"
    assert found.shape == reference.shape
    assert (found - reference).abs().max() < 1e-4 * max(1.0, float(reference.abs().max()))


@pytest.mark.parametrize("kind", CLASSES)
@settings(max_examples=3, deadline=None)
@given(cuts=st.lists(st.integers(1, 40), max_size=8))
def test_text_in_any_deltas_gives_the_same_samples(voices, kind, cuts):
    voice, text = voices(kind), " ".join(TEXTS[:2])
    whole = samples_of(speak(voice, [text]))
    assert len(whole) > 24_000
    assert np.array_equal(samples_of(speak(voice, pieces(text, cuts))), whole)


def test_batched_replies_equal_each_alone(voices):
    voice, n_streams = voices("pocket"), 8
    names = voice.voices
    texts = [TEXTS[i % 3] for i in range(n_streams)]
    alone = {
        (text, name): samples_of(speak(voice, [text], name)) for text in TEXTS for name in names
    }
    events = []
    for i, text in enumerate(texts):  # each starts a frame later: replies of every age
        voice.open(f"s{i}", VoiceOptions(voice=names[i % 2]))
        voice.feed(f"s{i}", text)
        voice.finish(f"s{i}")
        events += voice.step()
    while voice.has_work():
        events += voice.step()
    for i, text in enumerate(texts):
        together = samples_of(events, f"s{i}")
        expected = alone[text, names[i % 2]]
        assert len(together) == len(expected)
        assert np.abs(together - expected).max() <= 1 + 1e-4 * 32767


def test_speech_comes_in_frames_of_80_ms_before_the_text_has_ended(voices):
    voice = voices("pocket")
    voice.open("a", VoiceOptions())
    voice.feed("a", "One moment please, I will look ")
    speech = [e for _ in range(3) for e in voice.step()]
    voice.close("a")
    assert {len(event.samples) for event in speech[1:]} == {1920}


def test_stored_keys_speak_as_the_latents_they_came_from(voices, tiny_latent_dir, tmp_path):
    from safetensors.torch import save_file

    voice, folder = voices("pocket"), tiny_latent_dir("pocket")
    prefix = voice._prompts.prefix("alba")
    stored = {f"layers.{i}.keys": keys[None].contiguous() for i, keys in enumerate(prefix.keys)}
    stored |= {f"layers.{i}.values": v[None].contiguous() for i, v in enumerate(prefix.values)}
    save_file(stored, tmp_path / "kept.safetensors")
    other = PocketVoice(folder, voices_folder=tmp_path, device="cpu")
    assert other.voices == ("kept",)
    expected = samples_of(speak(voice, [TEXTS[0]], "alba"))
    assert np.array_equal(samples_of(speak(other, [TEXTS[0]])), expected)


def test_a_recording_becomes_a_voice(tiny_latent_dir, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    rng = np.random.default_rng(0)
    soundfile.write(tmp_path / "me.wav", rng.normal(0, 0.1, 16_000), 16_000)
    voice = PocketVoice(tiny_latent_dir("pocket"), voices_folder=tmp_path, device="cpu")
    assert speak(voice, ["Hello."])[-1].n_samples > 0


def test_errors_name_what_was_expected(voices, tiny_latent_dir, tmp_path):
    voice = voices("pocket")
    with pytest.raises(AudioError, match="expected a voice of alba, marius, found 'eve'"):
        voice.open("x", VoiceOptions(voice="eve"))
    with pytest.raises(AudioError, match="expected a speed of 1.0"):
        voice.open("x", VoiceOptions(speed=1.5))
    with pytest.raises(UnknownStream):
        voice.finish("x")
    with pytest.raises(AudioError, match="remedy: voiceloop models pull NAME"):
        PocketVoice(tmp_path / "none")
    with pytest.raises(AudioError, match="expected voices"):
        PocketVoice(tiny_latent_dir("pocket"), voices_folder=tmp_path, device="cpu")
    (tmp_path / "bad.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(AudioError, match="expected a safetensors file"):
        PocketVoice(tiny_latent_dir("pocket"), voices_folder=tmp_path, device="cpu")


def test_a_voice_of_another_model_is_refused(tiny_latent_dir):
    with pytest.raises(AudioError, match=r"expected voice latents \[n_frames, 12\], found"):
        PhononVoice(
            tiny_latent_dir("phonon"),
            voices_folder=tiny_latent_dir("pocket") / "voices",
            device="cpu",
        )


def test_seed_is_the_texts_own(voices):
    """Two streams that say the same say it the same way, whatever was said before."""
    voice = voices("pocket")
    first = samples_of(speak(voice, [TEXTS[0]]))
    speak(voice, [TEXTS[2]])
    assert np.array_equal(samples_of(speak(voice, [TEXTS[0]])), first)


def test_a_voice_beside_the_weights_is_found(tiny_latent_dir, tmp_path):
    folder = tmp_path / "phonon"
    shutil.copytree(tiny_latent_dir("phonon"), folder)
    one, *_ = sorted((folder / "voices").glob("*.safetensors"))
    one.rename(folder / "default-voice.safetensors")
    shutil.rmtree(folder / "voices")
    assert PhononVoice(folder, device="cpu").voices == ("default-voice",)
