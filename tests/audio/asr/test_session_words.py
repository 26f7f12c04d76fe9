"""What a session tells the recognizer: phrases of its prompt, and how they are said."""

import numpy as np
import pytest

pytest.importorskip("pocketsphinx", reason="the embedded extra is not installed")
pytest.importorskip("espeakng_loader", reason="the embedded extra is not installed")

from audio.asr.pocketsphinx_decoder import PRIOR, CepstralMean, find_model
from audio.asr.session_words import MAX_PHRASES, session_phrases
from audio.pronunciation import arpabet, pronounce
from audio.stream import RecognizerOptions

PROMPT = (
    "You are Nora, the assistant of Blue Finch Bakery. Drinks: flat white $3.50, chai latte $4."
    " Food: a slice of plum cake $3.25. We open on Monday."
)


def test_menu_items_names_and_hotwords_are_expected():
    options = RecognizerOptions(hotwords=("Oat Milk",), context=PROMPT)
    phrases = {" ".join(words) for words in session_phrases(options)}
    assert {"oat milk", "flat white", "chai latte", "plum cake", "blue finch bakery"} <= {
        p.removeprefix("slice of ") for p in phrases
    }
    assert "nora" in phrases
    assert "monday" not in phrases


def test_a_prompt_of_prices_alone_is_bounded():
    context = ", ".join(f"item{chr(97 + i % 26)}{chr(97 + i // 26)} $1" for i in range(300))
    assert len(session_phrases(RecognizerOptions(context=context))) <= MAX_PHRASES
    assert session_phrases(RecognizerOptions()) == ()


@pytest.mark.parametrize("filler", ["\n", "a ", "Ab ", "$"])
def test_a_prompt_of_megabytes_is_read_as_far_as_ten_pages(filler):
    prompt = "We sell plum cake for $3. " + filler * 1_000_000 + " And flat white for $4."
    phrases = session_phrases(RecognizerOptions(context=prompt))
    assert phrases[0][-2:] == ("plum", "cake")
    assert not any("white" in words for words in phrases)


def test_known_words_come_from_the_dictionary_and_others_from_rules():
    said = pronounce(["the", "read", "zorblax"], find_model().pronunciations)
    assert said["the"] == ("DH AH", "DH IY")
    assert set(said["read"]) == {"R EH D", "R IY D"}
    assert said["zorblax"] == ("Z AO R B L AE K S",)


def test_phonemes_without_a_counterpart_give_no_pronunciation():
    assert arpabet("m'atS@") == "M AE CH AH"
    assert arpabet("\u00a7") is None
    assert arpabet("") is None


def test_the_mean_learns_the_level_fast_and_the_spectrum_slowly():
    mean = CepstralMean()
    observed = np.array(PRIOR) + 10
    live = (np.array(PRIOR) * 500 + observed * 100) / 600  # as pocketsphinx averages
    mean.observe(",".join(map(str, live)), 100)
    moved = mean.mean - np.array(PRIOR)
    assert moved[0] == pytest.approx(10 * 100 / 105)
    assert moved[1] == pytest.approx(10 * 100 / 160)
    unchanged = str(mean)
    mean.observe(",".join(map(str, live)), 0)
    assert str(mean) == unchanged
