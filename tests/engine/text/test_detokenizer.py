"""From tokens to text: incremental decoding and stop strings."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from engine.text.detokenizer import Detokenizer, StopStrings
from engine.text.text import Text

SAYINGS = (
    "Good morning – Müller ☎ speaking 👩‍👩‍👧!",
    "日本語 and plain text",
    " leading spaces, and a line\nbreak ",
    "é" * 9,
)


@pytest.fixture(scope="module")
def text(tiny_model: Path) -> Text:
    return Text.read(tiny_model, (2,))


@pytest.mark.parametrize("saying", SAYINGS)
def test_pieces_join_to_the_whole_and_are_never_broken(text: Text, saying: str) -> None:
    detokenizer = Detokenizer(text)
    pieces = [detokenizer.feed(token) for token in text.encode(saying)]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + detokenizer.flush() == saying


@pytest.fixture(scope="module")
def sentencepiece_text(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Text:
    """A tokenizer as Llama 2 and Mistral have it: spaces as marks, unknown characters as bytes."""
    letters = sorted(set("".join(SAYINGS).replace(" ", "\u2581")) & set(map(chr, range(0x2600))))
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    folder = tmp_path_factory.mktemp("sentencepiece")
    tokenizer.save(str(folder / "tokenizer.json"))
    return Text.read(folder)


@pytest.mark.parametrize("saying", SAYINGS)
def test_byte_fallback_pieces_join_to_the_whole(sentencepiece_text: Text, saying: str) -> None:
    detokenizer = Detokenizer(sentencepiece_text)
    pieces = [detokenizer.feed(token) for token in sentencepiece_text.encode(saying)]
    assert "".join(pieces) + detokenizer.flush() == saying


def test_bytes_that_are_no_text_come_out_at_last(text: Text) -> None:
    detokenizer = Detokenizer(text)
    lead_byte = text.encode("é")[:1]
    pieces = [detokenizer.feed(token) for token in lead_byte * 20]
    assert any(pieces), "a run of broken bytes must not be held back for ever"


def test_special_tokens_are_silent(text: Text) -> None:
    detokenizer = Detokenizer(text)
    tokens = [*text.encode("Hello"), 2, *text.encode(" there")]
    assert "".join(map(detokenizer.feed, tokens)) + detokenizer.flush() == "Hello there"


@settings(max_examples=60, derandomize=True)
@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(1, 5), max_size=30),
)
def test_stop_strings_cut_the_same_for_every_chunking(
    reply: str, stops: list[str], sizes: list[int]
) -> None:
    places = [place for stop in stops if (place := reply.find(stop)) >= 0]
    ends = [reply.find(stop) + len(stop) for stop in stops if stop in reply]
    filtered, found, rest = StopStrings(tuple(stops)), "", reply
    for size in [*sizes, *[1] * len(reply)]:
        found += filtered.feed(rest[:size])
        rest = rest[size:]
    found += filtered.flush()
    assert filtered.stopped is bool(places)
    if not places:
        assert found == reply
    elif len(places) == 1 or min(ends) > max(places):
        assert found in {reply[:place] for place in places}
    assert not any(stop in found for stop in stops)
