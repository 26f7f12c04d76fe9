"""Words said by their sounds: what a voice is given, and that it says it."""

import numpy as np
import pytest

from audio.normalize import as_written, normalize
from audio.phonemes import CLOSES, OPENS, as_espeak, as_hibari, sounds
from audio.stream import Speech, VoiceOptions


def marked(ipa):
    return f"{OPENS}{ipa}{CLOSES}"


@pytest.mark.parametrize(
    "ipa, hibari, espeak",
    [
        ("ˈwɪn", "wˈɪn", "w'In"),  # noqa: RUF001
        ("ʃɪˈvɔːn", "ʃɪvˈɔn", "SIv'O:n"),  # noqa: RUF001
        ("ˈt͡ʃɝ.ɪ", "ʧˈɜɹɪ", "tS'3:I"),  # noqa: RUF001
        ("dʒoʊ", "ʤO", "dZoU"),  # noqa: RUF001
        ("ˈaɪɾəm", "ˈITəm", "'aIt@m"),  # noqa: RUF001
    ],
)
def test_each_voice_is_given_the_sounds_in_its_own_notation(ipa, hibari, espeak):
    found = sounds(ipa)
    assert "".join(one[0] for one in found) == hibari
    assert "".join(one[1] for one in found) == espeak
    assert normalize(f"a {marked(ipa)}'s", as_hibari).text == f"a {OPENS}{hibari}{CLOSES}'s"
    assert as_written(marked(ipa), as_espeak).text == f"[[{espeak}]]"


@pytest.mark.parametrize("ipa, why", [("wɨn", "'ɨ'"), ("pst", "a vowel"), ("w n", "' '")])  # noqa: RUF001
def test_what_is_no_english_sound_is_named_and_not_said(ipa, why):
    with pytest.raises(ValueError, match=why):
        sounds(ipa)
    assert OPENS not in normalize(f"a {marked(ipa)} b", as_hibari).text


def speech_of(voice, text):
    voice.open("s", VoiceOptions())
    voice.feed("s", text)
    voice.finish("s")
    events = []
    while voice.has_work():
        events += [event for event in voice.step() if isinstance(event, Speech)]
    return np.concatenate([event.samples for event in events]), [w for e in events for w in e.words]


@pytest.mark.parametrize("name", ["hibari", "espeak"])
def test_a_voice_says_the_sounds_of_a_word_as_it_says_the_word(name):
    module = pytest.importorskip(f"audio.tts.{name}")
    pytest.importorskip("hibari" if name == "hibari" else "espeakng_loader")
    voice = getattr(module, f"{name.title()}Voice")()
    text = f"Call {marked('ˈwɪn')}'s friend."  # noqa: RUF001
    heard, words = speech_of(voice, text)
    as_word, _ = speech_of(voice, "Call Win's friend.")
    assert len(heard) == pytest.approx(len(as_word), rel=0.02)
    assert "Call" in text[: words[0].text_end] and words[-1].text_end == len(text)
    name_end = text.index(" friend")
    assert any(word.text_end == name_end for word in words)
