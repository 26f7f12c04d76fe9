"""Moonshine in onnxruntime: its decoder's rules on a scripted model; the real one where it is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audio.asr.local_agreement import HypothesisWord
from audio.asr.moonshine import decoder as decoder_module
from audio.asr.moonshine import onnx_network
from audio.asr.moonshine.decoder import MoonshineDecoder
from audio.asr.moonshine.onnx_network import (
    MoonshineOnnxRecognizer,
    OnnxNetwork,
    packaged_folder,
    vocabulary_folder,
)
from audio.asr.moonshine.vocabulary import END, N_LOGITS, MoonshineVocabulary, PhraseHints
from audio.asr.speech_level import VoicedLevel
from audio.asr.window_decoder import DecodeRequest
from audio.errors import AudioError, MissingExtra
from audio.stream import Partial, RecognizerOptions, Transcript
from tests.stepping import drain

WORDS = "\u2581two \u2581small \u2581lattes \u2581letters \u2581p m".split()
WORDS += ", . - 4 0 \u2581$ \u2581 \u266a".split()
WORDS += "\u2581five \u2581eight \u2581to \u2581heaven \u2581double \u2581one".split()
PIECES = ["<unk>", "<s>", "</s>", *(f"<{i}>" for i in range(256)), *WORDS]
SPEECH = (np.random.default_rng(0).normal(0, 3000, 16_000)).astype(np.int16)


def token(piece):
    return PIECES.index(piece)


@pytest.fixture
def folder(tmp_path):
    data = b""
    for piece in (one.encode() for one in PIECES):
        data += bytes([len(piece)]) + piece
    (tmp_path / "tokenizer.bin").write_bytes(data)
    return tmp_path


class Port:
    def __init__(self, name, shape=()):
        self.name, self.shape = name, shape


class ScriptedEncoder:
    def get_inputs(self):
        return [Port("input_values"), Port("attention_mask")]

    def run(self, names, inputs):
        return [np.zeros((1, inputs["input_values"].shape[1] // 384, 8), np.float32)]


class ScriptedDecoder:
    """Says the rows of its script, each the scores of some pieces; then the end.

    n_forced: tokens before which it has nothing of its own to say.
    """

    def __init__(self, *script, n_forced=0):
        self.script = script
        self.n_forced = n_forced
        self.fed = []

    def get_inputs(self):
        states = [f"past_key_values.0.{part}.key" for part in ("decoder", "encoder")]
        names = ["input_ids", "encoder_hidden_states", "encoder_attention_mask"]
        return [*map(Port, names), *(Port(name, (1, 2, 0, 4)) for name in states)]

    def run(self, names, inputs):
        is_first = not bool(inputs["use_cache_branch"][0])
        assert is_first == (inputs["past_key_values.0.decoder.key"].shape[2] == 0)
        self.fed.append(inputs["input_ids"][0].tolist())
        n_past = inputs["past_key_values.0.decoder.key"].shape[2]
        n_fed = len(self.fed[-1])
        logits = np.full((1, n_fed, N_LOGITS), -30.0, np.float32)
        for row in range(n_fed):
            place = n_past + row - self.n_forced
            says = self.script[place] if 0 <= place < len(self.script) else {"</s>": 0.0}
            for piece, score in says.items():
                logits[0, row, token(piece)] = score
        return [logits, *(np.zeros((1, 2, n_past + n_fed, 4), np.float32) for _ in names[1:])]


@pytest.fixture
def decode(folder, monkeypatch):
    def run(script, prefix=(), hints=(), seconds=1.0, guess=(), n_digits=0, n_forced=None):
        n_forced = len(prefix) if n_forced is None else n_forced
        model = ScriptedDecoder(*script, n_forced=n_forced)
        parts = {"encoder_model": ScriptedEncoder(), "decoder_model_merged": model}
        monkeypatch.setattr(onnx_network, "_session", lambda folder, name, n: parts[name])
        samples = np.resize(SPEECH, round(16_000 * seconds))
        request = DecodeRequest(
            samples, "en", (), tuple(prefix), True, hints=tuple(hints), guess=tuple(guess),
            n_digits=n_digits,
        )  # fmt: skip
        decoder = MoonshineDecoder(OnnxNetwork(folder), vocabulary_folder(folder))
        return decoder.decode([request])[0], model

    return run


def texts(result):
    return [word.text for word in result.tail]


# Of each sound the word that the model likes best, and what else it may have been.
SAID_FIVE = {"\u2581five": 0.0}
LIKE_TWO = {"\u2581to": 0.0, "\u2581two": -1.0}
LIKE_EIGHT = {"\u2581heaven": 0.0, "\u2581eight": -1.5}


@pytest.mark.parametrize(("n_digits", "words"), [
    (4, "five two eight five"),
    (0, "five to heaven five"),  # no number was asked for
    (9, "five to heaven five"),  # nor is one said that is half as long
    (5, "five to heaven five"),  # another digit would have to be made up
])  # fmt: skip
def test_a_number_that_was_asked_for_is_read_in_words_that_sound_like_it(decode, n_digits, words):
    script = [SAID_FIVE, LIKE_TWO, LIKE_EIGHT, SAID_FIVE]
    result, _ = decode(script, n_digits=n_digits)
    assert texts(result) == words.split() and result.is_anew == (n_digits == 4)


def test_a_number_is_read_in_words_that_were_stable_too_and_a_double_is_two_digits(decode):
    prefix = (HypothesisWord("heaven", (token("\u2581heaven"),)),)
    script = [LIKE_EIGHT, LIKE_TWO, {"\u2581double": 0.0}, SAID_FIVE]  # from the forced word on
    result, _ = decode(script, prefix, n_digits=4, n_forced=0)
    assert texts(result) == "eight two double five".split() and result.is_anew


@pytest.mark.parametrize(
    ("eight", "words"), [(-0.5, "five two five eight"), (-1.5, "five to five")]
)
def test_no_last_digit_is_made_up_in_a_pause_before_it(decode, eight, words):
    result, _ = decode(
        [SAID_FIVE, LIKE_TWO, SAID_FIVE, {"</s>": 0.0, "\u2581eight": eight}], n_digits=4
    )
    assert texts(result) == words.split()


@pytest.mark.parametrize(("first", "is_read"), [("one", True), ("five", False)])
def test_ten_digits_may_have_one_more_behind_the_national_prefix(decode, first, is_read):
    script = [{f"\u2581{first}": 0.0}, LIKE_TWO, *[SAID_FIVE] * 9]
    result, _ = decode(script, n_digits=10)
    assert texts(result) == [first, "two" if is_read else "to", *["five"] * 9]


def test_of_a_number_its_own_words_say_whether_that_was_the_end(folder, monkeypatch):
    class Heads:
        def log_odds(self, states):
            return float(sum(states))

    class Head:
        def log_odds(self, rows):
            return 0.0

    script = [SAID_FIVE, LIKE_TWO, SAID_FIVE, {"</s>": 0.0, "\u2581eight": -0.5}]
    parts = {"encoder_model": ScriptedEncoder(), "decoder_model_merged": ScriptedDecoder(*script)}
    monkeypatch.setattr(onnx_network, "_session", lambda folder, name, n: parts[name])
    network = OnnxNetwork(folder)
    seen = []
    monkeypatch.setattr(
        network, "last_states", lambda states, n_tokens: seen.append((states, n_tokens)) or [1.0]
    )
    decoder = MoonshineDecoder(network, folder, Head(), end_in_states=Heads())
    spoken = DecodeRequest(SPEECH, "en", (), (), True, is_paused=True, n_digits=4)
    result = decoder.decode([spoken])[0]
    assert texts(result) == "five two five eight".split() and result.by_words == 1.0
    [(states, n_tokens)] = seen
    # The start and four digits, where "five to five" has a state less.
    assert n_tokens == states["past_key_values.0.decoder.key"].shape[2] == 5


def test_eleven_digits_that_were_heard_as_such_are_not_looked_for_again(decode):
    script = [{"\u2581one": 0.0}, TWO, *[SAID_FIVE] * 9]
    fed = [decode(script, n_digits=n)[1].fed for n in (0, 10)]
    assert fed[0] == fed[1]


def test_no_number_is_looked_for_where_far_fewer_words_were_heard(decode):
    script = [SAID_FIVE, LIKE_TWO, SAID_FIVE, LIKE_EIGHT]
    fed = [decode(script, n_digits=n)[1].fed for n in (0, 9, 4)]
    assert fed[0] == fed[1] and len(fed[2]) > len(fed[1])


def test_words_that_are_no_number_stay_as_they_are(decode):
    script = [{f"\u2581{word}": 0.0} for word in ("small", "lattes", "letters", "p")]
    result, model = decode(script, n_digits=4)
    assert texts(result) == "small lattes letters p".split() and not result.is_anew


TWO, SMALL, LATTES = ({f"\u2581{word}": 0.0} for word in ("two", "small", "lattes"))


def test_stable_words_are_forced_and_only_the_rest_is_decoded(decode):
    prefix = (HypothesisWord("two", (token("\u2581two"),)),)
    result, model = decode([SMALL, LATTES], prefix)
    assert texts(result) == ["small", "lattes"]
    assert model.fed == [[1, token("\u2581two")], [token("\u2581small")], [token("\u2581lattes")]]
    assert len(result.spans_ms) == 3 and result.is_sure


def test_what_still_holds_of_a_guess_is_read_in_one_pass(decode):
    prefix = (HypothesisWord("two", (token("\u2581two"),)),)
    guess = [token(f"\u2581{word}") for word in ("small", "letters", "p")]
    result, model = decode([SMALL, LATTES, TWO], prefix, guess=guess)
    assert texts(result) == ["small", "lattes", "two"]
    assert model.fed == [
        [1, token("\u2581two"), *guess], [token("\u2581lattes")], [token("\u2581two")]
    ]  # fmt: skip


@pytest.mark.parametrize("guessed", ["", "two", "two small lattes", "two small lattes two", "p p"])
def test_no_guess_changes_what_is_heard(decode, guessed):
    guess = [token(f"\u2581{word}") for word in guessed.split()]
    alone, model = decode([TWO, SMALL, LATTES])
    n_alone = len(model.fed)
    found, model = decode([TWO, SMALL, LATTES], guess=guess)
    assert found == alone and len(model.fed) <= n_alone


def test_the_end_of_turn_head_reads_the_encoders_rows_at_a_pause_alone(folder, monkeypatch):
    class Head:
        asked = []

        def log_odds(self, rows):
            self.asked.append(rows.shape)
            return 1.25

    parts = {"encoder_model": ScriptedEncoder(), "decoder_model_merged": ScriptedDecoder(TWO)}
    monkeypatch.setattr(onnx_network, "_session", lambda folder, name, n: parts[name])
    decoder = MoonshineDecoder(OnnxNetwork(folder), folder, Head())
    spoken = DecodeRequest(SPEECH, "en", (), (), True)
    assert decoder.decode([spoken])[0].p_voice is None and not Head.asked
    parts["decoder_model_merged"].fed.clear()
    assert decoder.decode([replace(spoken, is_paused=True)])[0].p_voice == 1.25
    assert Head.asked == [((16_000 + 2 * 3_200) // 384, 8)]  # the silence on both sides too
    parts["decoder_model_merged"].fed.clear()
    again = decoder.decode([replace(spoken, is_paused=True, voice_alone=True)])[0]
    assert (again.tail, again.p_voice) == ((), 1.25) and not parts["decoder_model_merged"].fed
    reader = MoonshineDecoder(OnnxNetwork(folder), folder, Head(), hears_words=False)
    read = reader.decode([replace(spoken, is_paused=True)])[0]
    assert (read.tail, read.p_voice) == ((), 1.25) and not parts["decoder_model_merged"].fed
    reader.decode([replace(spoken, samples=np.tile(SPEECH, 9), is_paused=True)])
    assert Head.asked[-1] == ((3 * 16_000 + 2 * 3_200) // 384, 8)  # of nine seconds the last three


def test_a_reader_that_is_asked_again_reads_the_words_of_the_same_sound(folder, monkeypatch):
    class Heads:
        def log_odds(self, states):
            return float(len(states))

    decoder = ScriptedDecoder(SMALL, LATTES)
    parts = {"encoder_model": ScriptedEncoder(), "decoder_model_merged": decoder}
    monkeypatch.setattr(onnx_network, "_session", lambda folder, name, n: parts[name])
    network = OnnxNetwork(folder)
    monkeypatch.setattr(network, "last_states", lambda states, n_tokens: range(n_tokens))
    encoded = []
    encode = network.encode
    monkeypatch.setattr(network, "encode", lambda wave: encoded.append(wave) or encode(wave))
    reader = MoonshineDecoder(network, folder, end_in_states=Heads(), hears_words=False)
    paused = DecodeRequest(SPEECH, "en", (), (), True, is_paused=True)
    again = replace(paused, end_by_words=True)
    assert reader.decode([paused])[0].by_words is None
    told = reader.decode([again])[0]
    assert (told.tail, told.by_words, len(encoded)) == ((), 3.0, 1)  # the start, "small lattes"
    assert reader.decode([again]) == [told] and decoder.fed[:3] == decoder.fed[3:]  # from the start
    decoder.script = [{"s": SMALL, "l": LATTES, "t": TWO}[one] for one in "sltstllsttlsstltsl" * 2]
    other = replace(again, samples=SPEECH[100:])
    parts_of_it = [reader.decode([other])[0] for _ in range(11)]  # others come between
    assert [one.has_more for one in parts_of_it] == [True] * 10 + [False]
    assert all(one.by_words is None for one in parts_of_it)  # without an end
    long = replace(again, samples=np.tile(SPEECH, 9))
    reader.decode([replace(long, end_by_words=False)])
    reader.decode([replace(long, is_shared=True)])
    assert len(encoded) == 3  # what was judged
    reader.decode([long])
    assert [len(wave) // 16_000 for wave in encoded[2:]] == [3, 6]  # of nine seconds
    one, two = (replace(paused, stream_id=stream_id) for stream_id in ("one", "two"))
    reader.decode([one, two])
    reader.forget("one")  # its call is over
    reader.decode([two, one])
    assert len(encoded) == 4 + 2 + 1
    for stream_id in ("", "one", "two"):
        reader.forget(stream_id)
    monkeypatch.setattr(decoder_module, "KEPT_SOUNDS", 2)
    three = replace(paused, stream_id="three")
    reader.decode([one, two, one, three])  # the longest unused makes room
    n_encoded = len(encoded)
    reader.decode([one, three])
    assert len(encoded) == n_encoded
    reader.decode([two])
    assert len(encoded) == n_encoded + 1


def test_the_head_of_sounds_over_the_agent_reads_the_same_rows_at_the_beginning_alone(
    folder, monkeypatch
):
    class Head:
        def log_odds(self, rows):
            return float(len(rows))

    parts = {"encoder_model": ScriptedEncoder(), "decoder_model_merged": ScriptedDecoder(TWO)}
    monkeypatch.setattr(onnx_network, "_session", lambda folder, name, n: parts[name])
    decoder = MoonshineDecoder(OnnxNetwork(folder), folder, None, Head(), hears_words=False)
    spoken = DecodeRequest(SPEECH, "en", (), (), True)
    assert decoder.decode([spoken])[0].for_agent is None
    begun = decoder.decode([replace(spoken, is_beginning=True)])[0]
    assert (begun.for_agent, begun.p_voice) == ((16_000 + 2 * 3_200) // 384, None)


def test_figures_are_spelled_and_signs_of_no_speech_are_not_written(decode):
    result, _ = decode([{"4": 0.0, "\u2581$": -0.1, "\u266a": 1.0, "\u2581two": -0.5}, LATTES])
    assert texts(result) == ["two", "lattes"]


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("\u2581two \u2581 4 4 4 - 0 4", "two four four four zero four"),
        ("\u2581$ 4 . 4 0 \u2581two", "four dollars and forty cents two"),
        ("\u2581 4 0 0 \u2581lattes", "four hundred lattes"),
        ("\u2581 4 4 \u2581p . m .", "forty four pm"),
        ("\u2581 4 . 4 0 \u2581p . m .", "four forty pm"),
        ("\u2581 4 . 4 0 \u2581p . m . .", "four forty pm"),  # its full stop beside its own
        ("\u2581 4 . 4 0 \u2581lattes", "four point four zero lattes"),
    ],
)
def test_figures_that_the_model_insists_on_are_read_as_they_were_said(decode, written, spoken):
    result, _ = decode([{piece: 0.0, "\u2581letters": -6.0} for piece in written.split()])
    assert " ".join(texts(result)) == spoken


def test_where_somebody_speaks_the_first_thing_is_a_word(decode):
    result, _ = decode([{"</s>": 0.0, ".": -0.1, "\u2581two": -1.0}, LATTES])
    assert texts(result) == ["two", "lattes"]


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("\u2581two " * 6 + "\u2581small", "two " * 6 + "small"),
        ("\u2581two , " * 6 + "\u2581small", "two " * 6 + "small"),
        ("\u2581 " + "4 " * 7 + "\u2581small", "four " * 7 + "small"),
        ("\u2581two \u2581 4 - 0 " * 4 + "\u2581small", "two four zero " * 4 + "small"),
        ("\u2581two " * 11 + "\u2581small", "two " * 11 + "small"),
        ("\u2581two " * 40, "two"),
        ("\u2581two " + "- " * 7 + "\u2581small", "two"),
    ],
)
def test_a_digit_may_be_said_eleven_times_over_and_what_follows_is_heard(decode, written, spoken):
    script = [{piece: 0.0} for piece in written.split()]
    assert " ".join(texts(decode(script, seconds=10.0)[0])) == spoken


def test_a_second_holds_so_many_tokens(decode):
    script = [[TWO, SMALL, LATTES][i * i // 7 % 3] for i in range(200)]
    result, model = decode(script)
    assert len(model.fed) == 26 and len(result.tail) == 26


def test_words_too_unlikely_were_not_said_and_doubtful_ones_are_not_sure(decode):
    pieces = [f"\u2581{word}" for word in ("two", "small", "lattes", "letters")]
    even = dict.fromkeys(pieces, 0.0)
    assert decode([even, even])[0].tail == ()
    doubtful, _ = decode([{**even, "\u2581two": 1.5}])
    assert texts(doubtful) == ["two"] and not doubtful.is_sure


def test_a_phrase_to_expect_wins_over_its_rival_alone(decode):
    rivals = {"\u2581letters": 0.0, "\u2581lattes": -1.5}
    assert texts(decode([TWO, rivals])[0]) == ["two", "letters"]
    assert texts(decode([TWO, rivals], hints=["two lattes"])[0]) == ["two", "letters"]
    distant = {"\u2581letters": 0.0, "\u2581lattes": -6.0}
    hints = PhraseHints([(7, 8)])
    scores = np.zeros(10, np.float32)
    hints.push(scores, [7])
    assert scores[8] > scores[7] > scores[0] == 0.0
    assert texts(decode([TWO, distant], hints=["lattes"])[0]) == ["two", "letters"]


def test_a_space_that_begins_a_phrase_is_not_pushed_and_what_follows_it_is():
    hints = PhraseHints([(7, 8), (6, 9)], space=(6,))
    scores = np.zeros(10, np.float32)
    hints.push(scores, [])
    assert scores[7] > scores[6] == scores[9] == 0.0
    scores[:] = 0.0
    hints.push(scores, [6])
    assert scores[9] > scores[7] > scores[6] == 0.0


def test_words_are_lower_case_without_marks_and_a_hyphen_parts_them(folder):
    vocabulary = MoonshineVocabulary(folder)
    spelled = "\u2581two - m , \u2581lattes . \u2581p . m .".split()
    words = vocabulary.words([token(piece) for piece in spelled])
    assert [word.text for word in words] == ["two", "m", "lattes", "pm"]
    assert [t for word in words for t in word.tokens] == [token(piece) for piece in spelled]
    assert vocabulary.penalties[token("4")] > 0.0 == vocabulary.penalties[END]


def test_a_folder_without_a_model_or_tokenizer_is_refused(folder, tmp_path):
    with pytest.raises(AudioError, match="expected encoder_model.ort or encoder_model.onnx in"):
        OnnxNetwork(tmp_path)
    (folder / "tokenizer.bin").write_bytes(b"\x05ab")
    with pytest.raises(AudioError, match="expected Moonshine's tokenizer in"):
        MoonshineVocabulary(folder)


def test_noise_is_silence_to_the_voiced_level(noisy_speech):
    level = VoicedLevel()
    level.feed(noisy_speech(2.0))
    assert level.is_silent_since(0)


@pytest.fixture(scope="module")
def recognizer():
    try:
        folder: Path | None = packaged_folder()
    except MissingExtra as error:
        pytest.skip(str(error))
    return MoonshineOnnxRecognizer(folder, clock=lambda: 0.0)


def hear(recognizer, samples):
    """The words, and every partial on the way."""
    recognizer.open("a", RecognizerOptions())
    events = []
    for start in range(0, len(samples), 4_000):
        recognizer.feed("a", samples[start : start + 4_000])
        events += recognizer.step()
    recognizer.flush("a")
    recognizer.finalize("a")
    events += drain(recognizer)
    recognizer.close("a")
    assert isinstance(events[-1], Transcript)
    return events[-1].text, [event for event in events if isinstance(event, Partial)]


def test_the_real_model_hears_a_person_and_takes_no_stable_word_back(
    recognizer, read_clip, manifest
):
    record = next(record for record in manifest if record["source"] == "jfk")
    text, partials = hear(recognizer, read_clip(record["file"]))
    spoken, heard = record["text"].split(), text.split()
    assert len(heard) == len(spoken)
    assert sum(a != b for a, b in zip(heard, spoken, strict=True)) <= 1
    for before, after in zip(partials, partials[1:], strict=False):
        assert after.stable_words[: len(before.stable_words)] == before.stable_words
    assert len(partials[-2].stable_words) > 10 and partials[-1].flushed


def test_the_real_model_hears_no_word_in_noise_and_silence(recognizer, noisy_speech):
    for sound in (noisy_speech(2.0), np.zeros(32_000, np.int16), noisy_speech(2.0) // 30):
        text, partials = hear(recognizer, sound)
        assert text == "" and all(not p.unstable_words for p in partials)


def test_a_file_of_the_package_that_is_another_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_network, "packaged_folder", lambda: tmp_path)
    with pytest.raises(AudioError, match="found no such file.*--force-reinstall moonshine-voice"):
        MoonshineOnnxRecognizer()
    (tmp_path / "encoder_model.ort").write_bytes(b"another")
    with pytest.raises(AudioError, match="expected encoder_model.ort of moonshine-voice==0.1.0"):
        MoonshineOnnxRecognizer()


def test_english_of_any_region_is_heard_and_no_other_language(recognizer):
    recognizer.open("b", RecognizerOptions(language="en-US"))
    recognizer.close("b")
    with pytest.raises(AudioError, match="expected a language among en, found 'de'"):
        recognizer.open("b", RecognizerOptions(language="de"))
