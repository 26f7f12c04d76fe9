"""What a session tells the recognizer: phrases of its prompt."""

import pytest

from audio.asr.session_words import MAX_PHRASES, session_phrases
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
