"""The voice hibari with its own weights: words where they sound, no clicks, fair steps."""

import time

import numpy as np
import pytest

from tests.stepping import drain
from tests.tables import each_row

pytest.importorskip("hibari", reason="the wheel hibari-tts is not installed")

from audio.errors import AudioError, MissingExtra
from audio.stream import Speech, SpeechEnd, VoiceOptions
from audio.tts import hibari_model
from audio.tts.hibari import HibariVoice
from audio.tts.hibari_model import HibariModel
from audio.tts.reply_voice import STOCK_VOICES

REPLY = "Sure, one large latte. That comes to $7.50, is that right? We open at 8:30 a.m. today!"
LARGEST_STEP = 100  # -50 dBFS, from one sample to the next where silence and speech meet


@pytest.fixture(scope="module")
def loaded():
    return HibariVoice(kept_mb=0)


@pytest.fixture
def voice(loaded):
    yield loaded
    for stream_id in list(loaded._replies):
        loaded.close(stream_id)


@pytest.fixture(scope="module")
def model(loaded):
    return loaded._model


def run(voice):
    events = drain(voice)
    return events


def start(voice, *deltas, stream_id="s", **options):
    voice.open(stream_id, VoiceOptions(**options))
    for delta in deltas:
        voice.feed(stream_id, delta)
    voice.finish(stream_id)


def speak(voice, *deltas, **options):
    """(samples, words, end) of one stream that is fed the deltas."""
    start(voice, *deltas, **options)
    *speech, end = run(voice)
    samples = np.concatenate([e.samples for e in speech] or [np.zeros(0, np.int16)])
    return samples, [w for e in speech for w in e.words], end


def test_the_first_clause_is_heard_before_the_text_has_ended(voice):
    voice.open("s", VoiceOptions())
    voice.feed("s", "Sure, one la")
    (event,) = voice.step()
    assert isinstance(event, Speech)
    assert [w.text for w in event.words] == ["Sure,"]
    assert not voice.has_work()


def test_words_come_in_order_and_tell_how_much_of_the_text_is_spoken(voice):
    samples, words, end = speak(voice, *REPLY)
    assert end == SpeechEnd("s", len(samples))
    edges = [edge for w in words for edge in (w.start_ms, w.end_ms)]
    assert edges == sorted(edges)
    assert 0 <= edges[0] and edges[-1] <= 1000 * len(samples) / 24_000
    assert all(w.start_ms < w.end_ms for w in words)
    spoken = {w.text: REPLY[: w.text_end] for w in words}
    assert spoken["latte."].endswith("large latte.")
    assert spoken["seven"] == spoken["fifty"] == "Sure, one large latte. That comes to "
    assert spoken["cents,"].endswith("$7.50,")
    assert words[-1].text_end == len(REPLY)


def test_word_times_point_at_sound(voice):
    samples, words, _ = speak(voice, "Yes. No.")
    pause = samples[round(words[0].end_ms * 24) : round(words[1].start_ms * 24)]
    assert len(pause) > 2_400
    assert np.abs(pause[480:]).max() < 184  # -45 dBFS
    for word in words:
        assert np.abs(samples[round(word.start_ms * 24) : round(word.end_ms * 24)]).max() > 3_000


def test_a_word_lasts_as_long_as_the_network_says(model):
    said, times = model.speak(model.phonemes("A very long pause, no?"), 1.0)
    assert len(times) == 5
    halves = [2 * edge / hibari_model.FRAME_MS for span in times for edge in span]
    assert all(half == int(half) for half in halves)
    assert len(said) % round(24 * hibari_model.FRAME_MS) == 0  # whole frames, the last a pad's
    assert times[-1][1] < 1000 * len(said) / 24_000
    assert times[3][1] < times[4][0]  # the comma's pause belongs to no word


def test_the_same_text_gives_the_same_samples_however_it_is_fed(voice):
    whole, words, _ = speak(voice, REPLY)
    cut, cut_words, _ = speak(voice, *REPLY)
    assert whole.tolist() == cut.tolist()
    assert words == cut_words


def test_leading_silence_is_at_most_25_ms_and_little_silence_trails(voice):
    for text in ("Sure.", "Would you like more?", "A latte, please.", "Fish."):
        samples, _, _ = speak(voice, text)
        audible = np.flatnonzero(np.abs(samples) > 184)  # -45 dBFS
        assert audible[0] <= 600
        assert len(samples) - audible[-1] <= 2_000


@pytest.mark.parametrize(
    "text",
    [
        REPLY,
        "I can book that for you at seven and I will call you back tomorrow before we close then.",
        "Yes; no: maybe, or \u2014 well! Fine.",
    ],
)
def test_no_click_where_clauses_meet(voice, text):
    start(voice, text)
    pieces = [e.samples.astype(int) for e in run(voice) if isinstance(e, Speech)]
    assert len(pieces) > 1
    for piece in pieces:
        sounding = np.flatnonzero(piece)
        first, last = sounding[0], sounding[-1]
        bordered = np.concatenate(([0], piece[first : last + 1], [0]))
        assert np.abs(np.diff(bordered[:48])).max() <= LARGEST_STEP
        assert np.abs(np.diff(bordered[-48:])).max() <= LARGEST_STEP


@pytest.mark.parametrize("speed", [0.7, 1.0, 1.6])
def test_sound_goes_on_steadily_from_one_event_to_the_next(voice, speed):
    start(voice, "Sure, that is a table for four on Friday at seven. " * 2 + REPLY, speed=speed)
    pieces = [e.samples.astype(int) for e in run(voice) if isinstance(e, Speech)]
    borders = np.cumsum([len(piece) for piece in pieces])[:-1]
    steps = np.abs(np.diff(np.concatenate(pieces)))
    assert len(borders) >= 5
    assert steps[borders - 1].max() <= LARGEST_STEP
    assert steps.max() > 20 * LARGEST_STEP  # within words


def pitch_at_the_end_hz(model, monkeypatch, words, **options):
    """What the network gives for the last 50 ms of the last word that are voiced; and the wave."""
    pitches, vocoder = [], model._vocoder

    def listen(*spectra_and_noise):
        pitches.append(spectra_and_noise[-2])
        return vocoder(*spectra_and_noise)

    monkeypatch.setattr(model, "_vocoder", listen)
    wave, times = model.speak(words, 1.0, **options)
    monkeypatch.undo()
    per_frame = hibari_model.FRAME_MS / 2
    in_word = pitches[0].reshape(-1)[
        round(times[-1][0] / per_frame) : round(times[-1][1] / per_frame)
    ]
    return float(np.mean(in_word[in_word > 60.0][-4:])), wave, times


@pytest.mark.parametrize(
    "text",
    [
        "I can book that for you at seven",
        "There is a free parking lot behind the building",
        "I have a table for you in the garden,",
    ],
)
def test_the_voice_stays_up_where_the_sentence_goes_on(model, monkeypatch, text):
    words = model.phonemes(text)
    low_hz, _, _ = pitch_at_the_end_hz(model, monkeypatch, words)
    high_hz, wave, times = pitch_at_the_end_hz(model, monkeypatch, words, goes_on=True)
    assert high_hz > 1.3 * low_hz
    assert len(times) == len(words)
    # What is put behind the words to keep the voice up is not heard.
    behind = wave[round((times[-1][1] + 120) * hibari_model.MODEL_HZ / 1000) :]
    assert len(behind) > 0 and not behind.any()


@pytest.mark.parametrize(
    ("text", "goes_on"),
    [
        ("We have a large selection of fresh pastries and a soup.", [True, False]),
        ("Sure, one large latte.", [True, False]),
        ("Sure. One large latte.", [False, False]),
        ("One large latte", [False]),
        (" ".join(["1234567890"] * 5) + ".", [True, False]),  # pieces of one clause
    ],
)
def test_a_clause_is_spoken_as_one_that_goes_on_where_more_comes(voice, monkeypatch, text, goes_on):
    told, speak_ = [], voice._model.speak

    def listen(words, speed, *, voice="", goes_on):
        told.append(goes_on)
        return speak_(words, speed, goes_on=goes_on)

    monkeypatch.setattr(voice._model, "speak", listen)
    speak(voice, text)
    assert told == goes_on


def test_a_step_is_one_clause_and_streams_get_equal_shares(voice):
    names = [f"s{i}" for i in range(6)]
    for name in names:
        start(voice, REPLY, stream_id=name)
    said = dict.fromkeys(names, 0)
    for _ in range(12):
        speakers = {e.stream_id for e in voice.step()}
        assert len(speakers) == 1
        said[speakers.pop()] += 1
    assert set(said.values()) == {2}
    voice.close("s3")
    rest = run(voice)
    assert {e.stream_id for e in rest} == set(names) - {"s3"}
    assert sum(isinstance(e, SpeechEnd) for e in rest) == 5


def test_a_stream_that_has_said_nothing_goes_first(voice):
    start(voice, REPLY, stream_id="long")
    voice.step()
    voice.step()
    start(voice, "Hello.", stream_id="new")
    assert {e.stream_id for e in voice.step()} == {"new"}


def test_streams_do_not_mix(voice):
    alone, words, _ = speak(voice, REPLY)
    start(voice, REPLY, stream_id="a")
    start(voice, "Something else, quite long, and slower.", stream_id="b", speed=0.7)
    of_a = [e for e in run(voice) if e.stream_id == "a"]
    assert np.concatenate([e.samples for e in of_a[:-1]]).tolist() == alone.tolist()
    assert [w for e in of_a[:-1] for w in e.words] == words


def test_a_long_clause_is_spoken_in_pieces_that_a_step_has_time_for(voice):
    text = " ".join(["1234567890"] * 12)
    start(voice, text)
    events, longest_s = [], 0.0
    while voice.has_work():
        started = time.process_time()
        events += voice.step()
        longest_s = max(longest_s, time.process_time() - started)
    speech = [e for e in events if isinstance(e, Speech)]
    assert max(len(e.samples) for e in speech) < 24_000 * 20
    assert longest_s < 1.0  # some 0.1 s on an idle core
    assert sum(len(e.words) for e in speech) == 120
    starts = [w.start_ms for e in speech for w in e.words]
    assert starts == sorted(starts)


@pytest.mark.parametrize("unit", ["a1", "'", "A-", "aB", "1,", "\u00e9", "&", "a.", "x", "\u00b2"])
def test_a_word_without_end_costs_little(voice, unit):
    started = time.process_time()
    _, _, end = speak(voice, unit * 150)
    assert isinstance(end, SpeechEnd)
    assert end.n_samples < 24_000 * 120
    assert time.process_time() - started < 2.5


def test_flush_speaks_what_is_held_back(voice):
    voice.open("s", VoiceOptions())
    voice.feed("s", "We have some fresh ")
    assert voice.step() == []
    voice.flush("s")
    (event,) = voice.step()
    # The last one, if its time comes with the very end, is told with what follows.
    assert [w.text for w in event.words] == ["We", "have", "some", "fresh"]


def test_what_it_cannot_say_is_left_out_of_what_it_can(voice):
    samples, words, _ = speak(voice, "Hello \u4f60\u597d caf\u00e9 \u00df *yes* xzzyq!")
    assert [w.text for w in words] == ["Hello", "caf\u00e9", "\u00df", "yes", "xzzyq!"]
    assert len(samples) > 24_000


def test_speed_shortens_speech(voice):
    normal, _, _ = speak(voice, REPLY)
    fast, words, _ = speak(voice, REPLY, speed=1.5)
    slowest, _, _ = speak(voice, "Hello there.", speed=0.25)
    assert 0.55 < len(fast) / len(normal) < 0.8
    assert words[-1].end_ms <= 1000 * len(fast) / 24_000
    assert len(slowest) == len(speak(voice, "Hello there.", speed=0.5)[0])


def test_stock_voices_and_its_own_are_this_voice(voice):
    for name in (*STOCK_VOICES, "heart"):
        voice.open(name, VoiceOptions(voice=name))


def sounds(model, text):
    """What is heard of text: its phonemes without stress, marks or spaces."""
    from audio.normalize import normalize

    joined = "".join(model.phonemes(normalize(text).text))
    return "".join(c for c in joined if c not in "\u02c8\u02cc" and c not in hibari_model.MARKS)


@each_row(
    ("written", "read"),
    [
        ("$7.50", "seven dollars and fifty cents"),
        ("$0.99", "ninety nine cents"),
        ("$1,250.05", "one thousand two hundred fifty dollars and five cents"),
        ("8:30 a.m.", "eight thirty A.M."),
        ("7pm", "seven P.M."),
        ("555-0123", "five five five zero one two three"),
        ("(415) 555-0199", "four one five five five five zero one nine nine"),
        ("+1 415 555 0199", "plus one four one five five five five zero one nine nine"),
        ("415-555-0199", "four one five five five five zero one nine nine"),
        ("5550123", "five five five zero one two three"),
        ("O-K-O-N-K-W-O", "O K O N K W O"),
        ("J. O. A. N.", "J O A N"),
        ("It's A as in apple", "It's ay as in apple"),
        ("room 4B", "room four bee"),
        ("flight BA2490", "flight BA two four nine zero"),
        ("James St., Apt. 2", "James Street, Apartment two"),
        ("Jan. 5th, 2026", "January fifth, twenty twenty six"),
        ("10% off", "ten percent off"),
        ("1/2 cup", "one half cup"),
    ],
)
def test_figures_and_names_are_said_right(model, written, read):
    assert sounds(model, written) == sounds(model, read)


def test_a_file_that_is_not_the_expected_one_is_refused(monkeypatch):
    monkeypatch.setitem(hibari_model.SHA256, "vocab.json", "0" * 64)
    with pytest.raises(AudioError, match=r"expected vocab.json of hibari-tts==.*remedy: pip"):
        HibariModel()


def test_without_the_wheel_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(hibari_model, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'hibari-tts==0.2.1'"):
        HibariModel()


def test_one_thread_unless_more_are_asked_for(model):
    assert model._session.get_session_options().intra_op_num_threads == 1


@pytest.fixture
def counted(monkeypatch):
    """A voice that keeps what it has said, and what it was asked to compute."""
    voice, computed = HibariVoice(kept_mb=4), []
    speak_ = voice._model.speak

    def listen(words, speed, *, voice="", goes_on=False):
        computed.append((words, speed, goes_on))
        return speak_(words, speed, goes_on=goes_on)

    monkeypatch.setattr(voice._model, "speak", listen)
    return voice, computed


def test_what_was_said_before_is_not_computed_again_and_sounds_the_same(counted):
    voice, computed = counted
    first = speak(voice, REPLY)
    computed.clear()
    samples, words, end = speak(voice, *REPLY)  # in pieces this time
    assert not computed and end == first[2] and words == first[1]
    assert np.array_equal(samples, first[0])


def test_another_speed_or_the_middle_of_a_sentence_is_another_clause(counted):
    voice, computed = counted
    for options in ({}, {"speed": 1.2}, {}):
        speak(voice, "Good morning.", **options)
    assert len(computed) == 2
    speak(voice, "Good morning, it is nine.")  # where it goes on
    assert len(computed) == 4
