"""The real Whisper architecture on a tiny random checkpoint."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from audio.asr import whisper_decoder, whisper_folder
from audio.asr.local_agreement import HypothesisWord
from audio.asr.whisper import WhisperRecognizer
from audio.asr.whisper_decoder import Ct2Decoder, WhisperText, padded_frames, without_loop
from audio.asr.window_decoder import MAX_TOKENS, DecodeRequest, max_new_tokens
from audio.asr.window_recognizer import MAX_PROMPT_TOKENS
from audio.errors import AudioError
from audio.stream import RecognizerOptions, Transcript
from tests.tables import each_row

pytest.importorskip("faster_whisper")


@pytest.fixture(scope="module")
def ct2(tiny_ct2_dir):
    return Ct2Decoder(tiny_ct2_dir, "cpu", "float32", n_threads=1)


def request(samples, prefix=(), prompt=(), with_times=False, language="en"):
    return DecodeRequest(samples, language, tuple(prompt), tuple(prefix), with_times)


def word(i):
    return HypothesisWord(f"w{i}", (i,))


@pytest.fixture
def short_tails(monkeypatch):
    """A random model says words to the last that it may; two dozen show as much as 200."""
    monkeypatch.setattr(whisper_decoder, "max_new_tokens", lambda request: 24)


def test_batched_windows_give_what_each_gives_alone(ct2, noisy_speech, short_tails):
    requests = [
        request(noisy_speech(1.0, 1)),
        request(noisy_speech(2.0, 2), prefix=(word(300), word(301)), with_times=True),
        request(noisy_speech(9.0, 3), prompt=(400, 401)),
        request(noisy_speech(1.5, 4), language="de"),
        request(noisy_speech(1.2, 5), prefix=(word(777),)),
        *(request(noisy_speech(0.1 * i, i)) for i in (6, 7, 8)),
    ]
    alone = [ct2.decode([one])[0] for one in requests]
    assert ct2.decode(requests) == alone
    assert ct2.decode(requests[:2]) == alone[:2]
    assert len({result.tail for result in alone}) == len(alone), "the model must depend on input"


def test_tail_continues_the_forced_prefix(ct2, noisy_speech):
    samples = noisy_speech(5.0)
    whole = ct2.decode([request(samples)])[0].tail
    assert len(whole) >= 4
    rest = ct2.decode([request(samples, prefix=whole[:3])])[0].tail
    assert rest[: len(whole) - 3] == whole[3:]


def test_final_of_the_real_architecture_keeps_what_was_stable(tiny_ct2_dir, noisy_speech):
    samples = noisy_speech(6.0)
    recognizer = WhisperRecognizer(
        tiny_ct2_dir,
        device="cpu",
        compute_type="float32",
        update_ms=2_000.0,
        n_threads=1,
        clock=lambda: 0.0,
    )
    recognizer.open("a", RecognizerOptions())
    events = []
    for i in range(0, len(samples), 8_000):
        recognizer.feed("a", samples[i : i + 8_000])
        events += recognizer.step()
    recognizer.finalize("a")
    events += recognizer.step()
    transcript = events[-1]
    assert isinstance(transcript, Transcript) and transcript.words
    committed = events[-2].stable_words
    assert tuple(word.text for word in transcript.words)[: len(committed)] == committed


def test_hugging_face_folder_is_converted_once(tiny_whisper_dir, tmp_path):
    first = whisper_folder.convert(tiny_whisper_dir, tmp_path)
    stamp = (first / "model.bin").stat().st_mtime_ns
    assert whisper_folder.is_ct2(first)
    assert whisper_folder.convert(tiny_whisper_dir, tmp_path) == first
    assert (first / "model.bin").stat().st_mtime_ns == stamp
    (tmp_path / "plain").mkdir()
    assert first.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_interrupted_conversion_leaves_nothing_behind(tiny_whisper_dir, tmp_path, monkeypatch):
    from ctranslate2 import converters

    def interrupted(self, folder, **options):
        (Path(folder) / "model.bin").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(converters.TransformersConverter, "convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            whisper_folder.convert(tiny_whisper_dir, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_conversion_left_is_removed_and_never_taken(tiny_whisper_dir, tmp_path):
    target = whisper_folder.convert(tiny_whisper_dir, tmp_path)
    (target / "vocabulary.json").unlink()  # what an earlier release may have left
    abandoned = tmp_path / f"{target.name}.abc.partial"
    under_way = tmp_path / f"{target.name}.def.partial"
    for folder in (abandoned, under_way):
        folder.mkdir()
        (folder / "model.bin").write_bytes(b"half")
    for path in (abandoned / "model.bin", abandoned):
        os.utime(path, (1_000.0, 1_000.0))
    again = whisper_folder.convert(tiny_whisper_dir, tmp_path)
    assert again == target and whisper_folder.is_ct2(again)
    assert sorted(tmp_path.iterdir()) == sorted([target, under_way])
    assert Ct2Decoder(again, "cpu", "float32", n_threads=1).languages


@pytest.mark.parametrize("n_mels", [80, 128])
def test_the_weights_say_how_many_mel_bins_there_are(n_mels, tiny_whisper_dir, tmp_path):
    """Neither the folder nor its conversion has preprocessor_config.json."""
    transformers = pytest.importorskip("transformers")
    config = transformers.WhisperConfig.from_pretrained(tiny_whisper_dir, num_mel_bins=n_mels)
    model = transformers.WhisperForConditionalGeneration(config)
    model.generation_config.lang_to_id = {"<|en|>": 50259}
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tiny_whisper_dir / name).read_bytes())
    samples = np.random.default_rng(0).normal(0.0, 3_000.0, 24_000).astype(np.int16)
    decoder, _ = whisper_folder.open_decoder(folder, "cpu", "float32", 1, tmp_path / "converted")
    assert decoder.decode([request(samples)])[0].tail


def test_a_prefix_and_prompt_that_fill_the_context_are_no_failure(ct2, noisy_speech):
    """1 + 200 + 4 + 200 of 448 tokens, beside a window that is decoded for longer."""
    prefix = tuple(word(300 + i) for i in range(200))
    prompt = tuple(range(2 * MAX_PROMPT_TOKENS))
    asked = request(noisy_speech(3.0), prefix=prefix, prompt=prompt, with_times=True)
    neighbour = request(noisy_speech(2.5, 2), prompt=prompt)
    alone = ct2.decode([neighbour])
    long, beside = ct2.decode([asked, neighbour])
    assert len(prefix) + sum(len(w.tokens) for w in long.tail) <= MAX_TOKENS
    assert len(long.spans_ms) == len(prefix) + len(long.tail)
    assert [beside] == alone


def test_marks_stand_with_their_word(tiny_ct2_dir):
    text = WhisperText(tiny_ct2_dir)
    tokens = [300, *text.encode(","), 301, *text.encode("!"), *text.encode("?")]
    words = text.words(tokens, "en")
    assert [w.text for w in words] == ["w300,", "w301!?"]
    assert [t for w in words for t in w.tokens] == tokens
    assert text.words(text.encode("..."), "en") == ()


@pytest.mark.parametrize(
    ("seconds", "frames"), [(0.1, 1_000), (8.0, 1_000), (8.1, 1_500), (13.1, 2_000), (30.0, 3_000)]
)
def test_padding_depends_on_the_window_alone(seconds, frames):
    assert padded_frames(round(16_000 * seconds)) == frames


SENTENCE = list(range(300, 312))  # "Concord returned to its place amidst the tents.", 12 tokens


@each_row(
    ("said", "kept"),
    [
        (SENTENCE * 9 + SENTENCE[:5], SENTENCE),
        ([290, 291, *SENTENCE * 3], [290, 291, *SENTENCE]),
        ([299, *[7] * 12], [299, 7]),
        (SENTENCE * 2, SENTENCE * 2),  # a sentence said again
        ([299, *[7] * 10], [299, *[7] * 10]),  # a number of equal digits
        ([1, 2] * 5, [1, 2] * 5),
        ([*SENTENCE * 3, 299], [*SENTENCE * 3, 299]),  # it found its place again
        ([], []),
    ],
)
def test_text_that_goes_round_in_a_loop_is_said_once(said, kept):
    assert without_loop(said) == kept


def test_a_loop_that_began_in_the_certain_words_adds_none(ct2, noisy_speech, monkeypatch):
    prefix = [word(i) for i in SENTENCE[:8]]
    looped = (SENTENCE * 6)[: max_new_tokens(request(noisy_speech(2.0)))]
    answer = SimpleNamespace(sequences_ids=[looped], scores=[0.0], no_speech_prob=0.0)
    model = SimpleNamespace(generate=lambda *_, **__: [answer])
    monkeypatch.setattr(ct2, "_model", SimpleNamespace(encode=lambda mels: mels, model=model))
    [window] = ct2.decode([request(noisy_speech(2.0), prefix=prefix)])
    assert [t for one in window.tail for t in one.tokens] == SENTENCE[8:]


def test_missing_folder_names_the_remedy(tmp_path):
    with pytest.raises(AudioError, match="remedy: voiceloop models pull NAME"):
        WhisperRecognizer(tmp_path / "nothing")


def test_folder_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(AudioError, match="expected weights"):
        WhisperRecognizer(tmp_path, device="cpu")


def test_broken_weights_are_refused(tiny_ct2_dir, tmp_path):
    for name in ("config.json", "vocabulary.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((tiny_ct2_dir / name).read_bytes())
    (tmp_path / "model.bin").write_bytes(b"\x00" * 64)
    with pytest.raises(AudioError, match="expected a CTranslate2 Whisper"):
        WhisperRecognizer(tmp_path, device="cpu")


def test_cuda_without_its_libraries_is_one_sentence_with_the_remedy(monkeypatch):
    monkeypatch.setattr(whisper_folder, "_n_cuda_devices", lambda: 1)
    monkeypatch.setattr(whisper_folder, "missing_cuda_libraries", lambda: ("libcublas.so.12",))
    for device in "cuda":
        with pytest.raises(AudioError, match="remedy: pip install nvidia-cublas-cu12"):
            whisper_folder.choose_device(device)
    monkeypatch.setattr(whisper_folder, "missing_cuda_libraries", lambda: ())
    assert whisper_folder.choose_device("auto") == "cuda"
    assert whisper_folder.choose_device("cuda:0") == "cuda:0"
    with pytest.raises(AudioError, match="cuda:0 to cuda:0, found cuda:1"):
        whisper_folder.choose_device("cuda:1")
    monkeypatch.setattr(whisper_folder, "_n_cuda_devices", lambda: 0)
    assert whisper_folder.choose_device("auto") == "cpu"


@pytest.mark.parametrize(
    "written",
    [
        "that is $4.50 please",
        "at 7:30 or 10.15 p.m. today",
        "I don't know, it's the barista's",
        "10% of 1,250.75 is too much!",
        "a well-known (small) place",
        "€3,20 and £2.10",
    ],
)
def test_what_no_space_stands_before_belongs_to_the_word_before(tiny_whisper_dir, written):
    text = WhisperText(tiny_whisper_dir)
    words = text.words(text.encode(" " + written), "en")
    assert [word.text for word in words] == written.split()
    assert [t for word in words for t in word.tokens][-1] == text.encode(written[-1])[0]
