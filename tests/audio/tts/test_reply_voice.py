"""What every voice owes its callers, whatever makes its sound: each reply alone, words in order."""

import pytest

from audio.errors import AudioError, UnknownStream
from audio.stream import Speech, SpeechEnd, StreamFailed, VoiceOptions
from tests.spoken import samples_of, speak

REPLY = "Sure, one large latte. We open at noon, is that right?"


def espeak(_):
    pytest.importorskip("espeakng_loader", reason="the embedded extra is not installed")
    from audio.tts.espeak import EspeakVoice

    return EspeakVoice()


def hibari(_):
    pytest.importorskip("hibari", reason="the wheel hibari-tts is not installed")
    from audio.tts.hibari import HibariVoice

    return HibariVoice(kept_mb=0)


@pytest.fixture(scope="module", params=[espeak, hibari])
def voice(request):
    return request.param(request)


def test_words_come_in_order_with_the_sound_they_are_said_in(voice):
    events = speak(voice, REPLY)
    words = [word for e in events if isinstance(e, Speech) for word in e.words]
    assert [word.text.strip(".,?") for word in words] == [w.strip(".,?") for w in REPLY.split()]
    assert [word.text_end for word in words] == sorted(word.text_end for word in words)
    assert words[-1].text_end == len(REPLY)
    starts = [word.start_ms for word in words]
    assert starts == sorted(starts) and all(word.start_ms < word.end_ms for word in words)
    assert events[-1] == SpeechEnd("a", len(samples_of(events)))
    assert starts[-1] <= 1000.0 * events[-1].n_samples / 24_000 + 1.0
    assert REPLY[: words[3].text_end].endswith("latte.")


def test_an_error_nobody_foresaw_fails_its_reply_alone(voice, monkeypatch):
    begin = voice._begin

    def stumbles(fragment, reply):
        if reply.stream_id == "odd":
            raise RecursionError("maximum recursion depth exceeded")
        return begin(fragment, reply)

    monkeypatch.setattr(voice, "_begin", stumbles)
    voice.open("odd", VoiceOptions())
    voice.feed("odd", REPLY)
    voice.finish("odd")
    events = speak(voice, [REPLY], stream_id="plain")
    assert [e for e in events if e.stream_id == "odd"] == [
        StreamFailed("odd", "expected the model to go on, found RecursionError", retryable=True)
    ]
    assert isinstance(events[-1], SpeechEnd)


def test_a_reply_may_be_closed_in_any_state(voice):
    voice.close("never opened")
    voice.open("s", VoiceOptions())
    voice.feed("s", REPLY)
    voice.step()
    voice.close("s")
    voice.close("s")
    assert voice.step() == []
    with pytest.raises(UnknownStream):
        voice.feed("s", "more")


@pytest.mark.parametrize("text", ["", "...  \U0001f600 ", " - ' \" "])
def test_text_without_anything_to_say_is_an_end_without_sound(voice, text):
    assert speak(voice, [text]) == [SpeechEnd("a", 0)]


@pytest.mark.parametrize("options", [{"voice": "nobody"}, {"speed": 0.1}, {"speed": 9.0}])
def test_what_it_cannot_do_is_refused_by_name(voice, options):
    with pytest.raises(AudioError, match="expected a (voice|speed)"):
        voice.open("s", VoiceOptions(**options))
