"""Clauses: nothing lost, cuts that depend on the text alone, and nothing torn."""

from hypothesis import given, settings
from hypothesis import strategies as st

from audio.chunker import MAX_TOKEN_CHARS, MAX_WORDS, Chunker
from tests.tables import each_row

PIECES = st.sampled_from(
    ["I ", "have ", "a ", "table ", "for ", "two, ", "3.50 ", "$4.", "50 ", "Dr. ", "Smith ",
     "p.m. ", "at ", "10:", "30", ". ", "? ", "\n", "  ", "and ", "yes", "...", " 5 ", "5 5 ",
     "Sure! ", "\u2014 "]
)  # fmt: skip


def clauses_of(*deltas):
    chunker = Chunker()
    clauses = [clause for delta in deltas for clause in chunker.feed(delta)]
    return [clause.text for clause in clauses + chunker.finish()]


@settings(max_examples=150)
@given(pieces=st.lists(PIECES, max_size=50), data=st.data())
def test_any_chunking_cuts_at_the_same_places_and_loses_nothing(pieces, data):
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    deltas = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = clauses_of(text)
    assert clauses_of(*deltas) == whole == clauses_of(*text)
    assert "".join(whole) == text


@settings(max_examples=80)
@given(pieces=st.lists(st.one_of(PIECES, st.none()), max_size=40))
def test_flushes_anywhere_lose_and_reorder_nothing(pieces):
    chunker, clauses = Chunker(), []
    for piece in pieces:
        clauses += chunker.flush() if piece is None else chunker.feed(piece)
    clauses += chunker.finish()
    assert "".join(clause.text for clause in clauses) == "".join(p for p in pieces if p)
    assert [c.start for c in clauses[1:]] == [c.end for c in clauses[:-1]]


@each_row(
    ("text", "expected"),
    [
        ("Sure, one latte. Anything else?", ["Sure,", " one latte. ", "Anything else?"]),
        ("Yes! And tea?", ["Yes!", " And tea?"]),
        ("That's okay. And tea?", ["That's okay.", " And tea?"]),
        ("It's on juniper.com. And tea?", ["It's on juniper.com. ", "And tea?"]),
        ("**Oh yes,** we do.", ["**Oh yes,** ", "we do."]),
        ('"Sure," she said.', ['"Sure," ', "she said."]),
        ("'Sure,' she said. It's on.", ["'Sure,' ", "she said. ", "It's on."]),
        ("It's on, yes.", ["It's on,", " yes."]),
        ("\u201eOh ja!\u201c sagte sie.", ["\u201eOh ja!\u201c sagte sie."]),
        ("\u00abOh oui!\u00bb dit-il.", ["\u00abOh oui!\u00bb dit-il."]),
        ("That is $3.50. Thanks.", ["That is $3.50. ", "Thanks."]),
        ("It is 1,250. Yes.", ["It is 1,250. ", "Yes."]),
        ("On May 5, 2026 we close.", ["On May 5, 2026 we close."]),
        ("Open from 8 a.m. to 6 p.m. We hope", ["Open from 8 a.m. to 6 p.m. ", "We hope"]),
        ("Dr. Smith and J. Doe are in.", ["Dr. Smith and J. Doe are in."]),
        ("Your code is 5 5 5 0 1 4 2 now.", ["Your code is 5 5 5 0 1 4 2 now."]),
        ('He said "no." Then left', ['He said "no." ', "Then left"]),
        ("One\nTwo", ["One\n", "Two"]),
    ],
)
def test_cuts_stand_at_clause_ends_and_tear_nothing(text, expected):
    assert clauses_of(text) == expected


def test_the_first_clause_without_marks_ends_before_a_phrase_then_clauses_grow():
    text = "I would like to tell you about the cakes we bake here every single morning " * 3
    lengths = [len(clause.split()) for clause in clauses_of(text)]
    assert 4 <= lengths[0] <= 8
    assert lengths[1] > lengths[0]


def test_the_first_clause_is_given_with_its_mark_a_later_one_once_a_word_follows():
    chunker = Chunker()
    assert [c.text for c in chunker.feed("Sure,")] == ["Sure,"]
    assert chunker.feed(" one latte, please. ") == []
    assert [c.text for c in chunker.feed("A")] == [" one latte, please. "]
    longer = Chunker()
    assert longer.feed("That sounds like a great idea") == []
    assert [c.text for c in longer.feed("!")] == ["That sounds like a great idea!"]
    assert [c.text for c in Chunker().feed("I'm sorry to hear that.")] == [
        "I'm sorry to hear that."
    ]


def test_flush_gives_the_complete_words_and_keeps_the_last():
    chunker = Chunker()
    chunker.feed("We have blueb")
    assert [c.text for c in chunker.flush()] == ["We have "]
    assert chunker.held == "blueb"
    assert chunker.flush() == []


def test_a_token_without_end_does_not_grow_what_is_held():
    chunker = Chunker()
    clauses = [c for _ in range(50) for c in chunker.feed("x" * 100)]
    assert len(clauses) > 5
    assert len(chunker.held) <= MAX_TOKEN_CHARS + 100


def test_words_without_a_safe_gap_are_cut_in_the_end():
    chunker = Chunker()
    clauses = chunker.feed("one six " * 40)
    assert clauses
    assert all(len(clause.text.split()) <= MAX_WORDS for clause in clauses)
