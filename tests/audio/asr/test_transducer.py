"""The streaming transducers on tiny random checkpoints of the real architectures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.asr.log_mel import LogMel, MelStream
from audio.asr.transducer import TransducerRecognizer
from audio.errors import AudioError, UnknownStream
from audio.stream import RecognizerOptions, Transcript
from tests.hand_clock import HandClock
from tests.stepping import drain

torch = pytest.importorskip("torch")

KINDS = ("nemotron_asr_streaming", "nemotron3_5_asr")
BLANK = 39


@pytest.fixture(scope="module")
def models(tiny_transducer_dir):
    """models(kind, n_lookahead) -> a recognizer; its model is loaded once."""
    made = {}

    def make(kind="nemotron3_5_asr", n_lookahead=1):
        key = (kind, n_lookahead)
        if key not in made:
            made[key] = TransducerRecognizer(
                tiny_transducer_dir(kind),
                device="cpu",
                n_lookahead=n_lookahead,
                clock=HandClock(0.0),
            )
        return made[key]

    return make


def play(recognizer, samples, sizes, *, flush_after=(), stream_id="a"):
    """Feeds samples in chunks of sizes (the last repeats), then finalizes; all events."""
    recognizer.open(stream_id, RecognizerOptions())
    events, at, i = [], 0, 0
    while at < len(samples):
        size = sizes[min(i, len(sizes) - 1)]
        recognizer.feed(stream_id, samples[at : at + size])
        at, i = at + size, i + 1
        events += drain(recognizer)
        if i in flush_after:
            recognizer.flush(stream_id)
            events += drain(recognizer)
    recognizer.finalize(stream_id)
    events += drain(recognizer)
    recognizer.close(stream_id)
    return events


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_lookahead", [0, 6])
def test_steps_over_chunks_say_what_transformers_says_offline(
    models, noisy_speech, kind, n_lookahead
):
    recognizer = models(kind, n_lookahead)
    model = recognizer._model
    n_mels = 1 + 8 * n_lookahead + 8 * (n_lookahead + 1) * (22 // (n_lookahead + 1))
    samples = noisy_speech(2.5, 3)
    wave = samples[: n_mels * 160].astype(np.float32) / 32768
    inputs = model.processor.feature_extractor(wave, sampling_rate=16_000, return_tensors="pt")
    features = inputs["input_features"][:, :n_mels]
    prompt = {"prompt_ids": torch.tensor([1])} if model.prompts else {}
    reference = model._model.generate(
        input_features=features, num_lookahead_tokens=n_lookahead, max_new_tokens=500, **prompt
    )
    expected = [token for token in reference.sequences[0].tolist() if token != BLANK]
    state, tokens, at = model.initial, [], 0
    while at < n_mels:
        n = model.n_mels(state)
        ((state, emitted),) = model.advance([state], [features[0, at : at + n]], [1])
        tokens += [token.token for token in emitted]
        at += n
    assert tokens == expected
    assert len(set(tokens)) >= 2, "the checkpoint must say something that depends on the sound"


def test_streamed_features_equal_those_of_the_whole(models, noisy_speech):
    extractor = models()._model.processor.feature_extractor
    samples = noisy_speech(1.0)
    whole = extractor(samples.astype(np.float32) / 32768, sampling_rate=16_000)["input_features"][0]
    stream = MelStream(LogMel(torch, extractor, "cpu"))
    pieces = []
    for i in range(0, len(samples), 777):
        stream.push(samples[i : i + 777])
        while stream.has(3):
            pieces.append(stream.take(3))
    features = torch.cat(pieces)
    assert len(features) >= 96
    assert (features - whole[: len(features)]).abs().max() < 1e-3


@settings(max_examples=5)
@given(sizes=st.lists(st.integers(1, 6_000), min_size=1, max_size=6), seed=st.integers(0, 3))
def test_any_chunking_gives_the_same_transcript(models, noisy_speech, sizes, seed):
    samples = noisy_speech(1.5, seed)
    sizes = [*sizes, 1_600]
    whole = play(models(), samples, [len(samples)])[-1]
    assert isinstance(whole, Transcript) and whole.words
    assert play(models(), samples, sizes)[-1] == Transcript("a", 0, whole.words)


def test_flush_says_the_words_to_their_end(models, noisy_speech):
    recognizer = models(n_lookahead=6)
    recognizer.open("a", RecognizerOptions())
    recognizer.feed("a", noisy_speech(1.0))
    before = drain(recognizer)
    recognizer.flush("a")
    flushed = drain(recognizer)[-1]
    recognizer.finalize("a")
    final = drain(recognizer)[-1]
    recognizer.close("a")
    said = (*flushed.stable_words, *flushed.unstable_words)
    assert flushed.flushed
    assert said == tuple(word.text for word in final.words)
    shown = (*before[-1].stable_words, *before[-1].unstable_words)
    assert len(said) > len(shown), "a lookahead of 480 ms still holds words back"


def test_final_after_a_flush_needs_no_step_of_the_model(models, noisy_speech, monkeypatch):
    recognizer = models()
    recognizer.open("a", RecognizerOptions())
    recognizer.feed("a", noisy_speech(1.0))
    recognizer.flush("a")
    drain(recognizer)
    monkeypatch.setattr(recognizer._model, "advance", None)
    recognizer.finalize("a")
    (final,) = recognizer.step()
    recognizer.close("a")
    assert isinstance(final, Transcript) and final.words


def test_word_times_follow_the_frames_and_the_segments(models, noisy_speech):
    recognizer = models()
    recognizer.open("a", RecognizerOptions())
    finals = []
    for _ in range(2):
        recognizer.feed("a", noisy_speech(1.0))
        recognizer.finalize("a")
        finals += [e for e in drain(recognizer) if isinstance(e, Transcript)]
    recognizer.close("a")
    first, second = finals
    assert (first.segment, second.segment) == (0, 1)
    starts = [word.start_ms for word in first.words]
    assert starts == sorted(starts) and all(w.end_ms > w.start_ms for w in first.words)
    # Each segment starts anew: the same sound gives the same words, a second later.
    assert [(w.text, w.start_ms - 1000.0) for w in second.words] == [
        (w.text, w.start_ms) for w in first.words
    ]


@pytest.mark.parametrize("n_streams", [2, 8])
def test_batched_streams_say_what_each_says_alone(models, noisy_speech, n_streams, monkeypatch):
    recognizer = models()
    sounds = [noisy_speech(1.0 + 0.13 * i, i) for i in range(n_streams)]
    alone = [play(recognizer, sound, [1_600])[-1].words for sound in sounds]
    widths = []
    advance = recognizer._model.advance
    monkeypatch.setattr(
        recognizer._model,
        "advance",
        lambda states, *rest: (widths.append(len(states)), advance(states, *rest))[1],
    )
    finals = {}
    for tick in range(40):
        for i, sound in enumerate(sounds):
            if tick == i:  # each comes a tick later: states of every age share a batch
                recognizer.open(f"s{i}", RecognizerOptions())
            piece = sound[(tick - i) * 1_600 : (tick - i + 1) * 1_600] if tick >= i else []
            if len(piece):
                recognizer.feed(f"s{i}", piece)
                if (tick - i + 1) * 1_600 >= len(sound):
                    recognizer.finalize(f"s{i}")
        recognizer._clock.now_s += 0.1
        for event in drain(recognizer):
            if isinstance(event, Transcript):
                finals[event.stream_id] = event.words
                recognizer.close(event.stream_id)
    assert [finals[f"s{i}"] for i in range(n_streams)] == alone
    assert max(widths) >= n_streams // 2


def test_streams_wait_for_the_tick_unless_all_are_due(models, noisy_speech):
    recognizer = models()
    for name in "ab":
        recognizer.open(name, RecognizerOptions())
    recognizer.feed("a", noisy_speech(0.1))
    recognizer.feed("b", noisy_speech(0.1))
    drain(recognizer)
    recognizer.feed("a", noisy_speech(0.2))
    recognizer.step()
    assert not recognizer.has_work(), "only one of two is due, 80 ms have not passed"
    recognizer._clock.now_s += 0.081
    assert recognizer.has_work()
    for name in "ab":
        recognizer.close(name)


def test_a_segment_too_short_for_a_word_is_an_empty_transcript(models, noisy_speech):
    assert play(models(), noisy_speech(0.09), [4_000]) == [Transcript("a", 0, ())]


def test_language_selects_the_prompt(models, noisy_speech, monkeypatch):
    recognizer = models()
    seen = []
    advance = recognizer._model.advance
    monkeypatch.setattr(
        recognizer._model,
        "advance",
        lambda states, mels, prompts: (seen.extend(prompts), advance(states, mels, prompts))[1],
    )
    recognizer.open("a", RecognizerOptions(language="de"))
    recognizer.feed("a", noisy_speech(0.5))
    drain(recognizer)
    recognizer.close("a")
    assert set(seen) == {1}
    with pytest.raises(AudioError, match="expected a language among auto, de, en, found 'xx'"):
        recognizer.open("a", RecognizerOptions(language="xx"))


def test_errors_name_what_was_expected(tiny_transducer_dir, tmp_path, models):
    with pytest.raises(AudioError, match="remedy: voiceloop models pull NAME"):
        TransducerRecognizer(tmp_path / "none")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(AudioError, match="expected a model of nemotron_asr_streaming"):
        TransducerRecognizer(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(AudioError, match="expected a model_type"):
        TransducerRecognizer(tmp_path)
    with pytest.raises(AudioError, match="expected a lookahead of"):
        TransducerRecognizer(tiny_transducer_dir(KINDS[0]), device="cpu", n_lookahead=5)
    with pytest.raises(UnknownStream):
        models().flush("nobody")
