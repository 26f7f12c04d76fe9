"""Searching a folder: what is found, what is not, and what a misheard question still finds."""

from __future__ import annotations

import sqlite3

import pytest

from voiceloop.knowledge.index import MAX_RESULTS, KnowledgeIndex, words_of
from voiceloop.knowledge.passages import Passage

TEXTS = {
    "returns.md": "You may return shoes within thirty days. Refunds take five working days.",
    "delivery.md": "We deliver to Norway and Iceland in three days; the postage is nine euros.",
    "opening.md": "The shop opens at nine and closes at six. On Sunday it is closed.",
    "repair.md": "A broken zipper is mended for twelve euros while you wait.",
    "gifts.md": "Vouchers are valid for two years. A voucher cannot be paid out.",
    "parking.md": "The garage below the shop is free for customers.",
    "sizes.md": "Boots run small: take one size up.",
    "care.md": "Leather wants grease twice a year, suede a soft brush.",
    "jobs.md": "We look for a cobbler. Write to the workshop.",
    "history.md": "Founded in 1921 by two sisters from Bergen.",
}


def passages() -> list[Passage]:
    return [Passage(n, path, "", text) for n, (path, text) in enumerate(TEXTS.items())]


@pytest.fixture
def index() -> KnowledgeIndex:
    return KnowledgeIndex(passages())


def found(index: KnowledgeIndex, question: str, n_most: int = 4) -> list[str]:
    return [hit.passage.path for hit in index.search(question, n_most)]


def test_a_question_finds_the_passage_that_answers_it(index: KnowledgeIndex) -> None:
    assert found(index, "how long until I get my refund?")[0] == "returns.md"
    assert found(index, "do you mend zippers")[0] == "repair.md"
    assert found(index, "was it founded in 1921")[0] == "history.md"


@pytest.mark.parametrize(
    "heard, meant",
    [
        ("can I have a re fund", "returns.md"),  # one word heard as two
        ("can I have it refined", "returns.md"),
        ("is my fowcher still good", "gifts.md"),
        ("my sipper is loose", "repair.md"),
        ("do you send to ice land", "delivery.md"),
        ("what about swayed", "care.md"),
        ("the worship please", "jobs.md"),  # "workshop" without a sound
    ],
)
def test_a_misheard_word_finds_the_passage_by_its_sound(
    index: KnowledgeIndex, heard: str, meant: str
) -> None:
    assert meant in found(index, heard)
    by_spelling = KnowledgeIndex(passages(), with_sounds=False)
    assert meant not in found(by_spelling, heard)


def test_a_word_heard_right_counts_for_more_than_one_of_its_sound() -> None:
    index = KnowledgeIndex(
        [Passage(0, "a.md", "", "the refined sugar"), Passage(1, "b.md", "", "the refund desk")]
        + [Passage(n, f"{n}.md", "", "nothing of the kind") for n in range(2, 12)]
    )
    assert found(index, "refund")[:2] == ["b.md", "a.md"]
    assert found(index, "refined")[:2] == ["a.md", "b.md"]


def test_words_that_stand_everywhere_or_nowhere_find_nothing(index: KnowledgeIndex) -> None:
    assert found(index, "") == []
    assert found(index, "the the and") == []
    assert found(index, "okay hello") == []


def test_a_caller_cannot_write_the_language_of_the_search(index: KnowledgeIndex) -> None:
    asked = 'shoes" OR heading: NOT (near^ *) AND col:"x" {a b} : refund NEAR("y") \x00 \u202e'
    assert "returns.md" in found(index, asked)


def test_a_heading_and_the_name_of_the_file_are_searched_too() -> None:
    index = KnowledgeIndex(
        [
            Passage(0, "prices/postage-abroad.md", "Iceland > Fees", "Nine euros."),
            *(Passage(n, f"{n}.md", "", "Other things entirely.") for n in range(1, 10)),
        ]
    )
    assert found(index, "what are the fees")[:1] == ["prices/postage-abroad.md"]
    assert found(index, "postage")[:1] == ["prices/postage-abroad.md"]


def test_of_a_small_folder_a_word_is_found_that_names_its_file() -> None:
    texts = {"Warranty": "Half a year.", "Payment": "In cash.", "Used": "Three months of warranty."}
    small = [Passage(n, "warranty.md", *one) for n, one in enumerate(texts.items())]
    index = KnowledgeIndex([*small, Passage(3, "rent.md", "Rental", "30 dollars a day.")])
    assert "Warranty" in [hit.passage.heading for hit in index.find("how long is the warranty")]
    assert index.find("hello there") == () == index.find("fill it")
    fillings = KnowledgeIndex([*small, Passage(3, "rent.md", "Fillings", "90 dollars a filling.")])
    assert fillings.find("how much is a filling")[0].passage.heading == "Fillings"


def test_marks_and_other_scripts_are_found_as_they_are_written() -> None:
    index = KnowledgeIndex(
        [
            Passage(0, "a.md", "", "Der Käse kommt aus Österreich."),
            Passage(1, "b.md", "", "Часы работы магазина: с девяти до шести."),
        ],
        language="de",
    )
    assert found(index, "kase aus osterreich")[:1] == ["a.md"]
    assert found(index, "часы работы")[:1] == ["b.md"]


def test_results_are_bounded_and_equal_questions_get_equal_answers(index: KnowledgeIndex) -> None:
    assert len(index.search("nine days shop", 1)) == 1
    assert index.search("nine days shop", 4) == KnowledgeIndex(passages()).search("nine days shop")
    for n_most in (0, MAX_RESULTS + 1):
        with pytest.raises(ValueError, match="expected 1 to 100 results"):
            index.search("shoes", n_most)


def test_a_very_long_question_is_searched_by_its_rarest_words(index: KnowledgeIndex) -> None:
    story = " ".join(f"word{n}" for n in range(5000))
    assert "repair.md" not in found(index, story)
    assert found(index, f"zipper {'the shop ' * 2000}")[0] == "repair.md"


def test_a_closed_index_is_closed_once_more_without_complaint(index: KnowledgeIndex) -> None:
    index.close()
    index.close()
    with pytest.raises(sqlite3.ProgrammingError):
        index.search("shoes")


def test_words_are_small_letters_without_what_stands_between_them() -> None:
    assert words_of("Don\u2019t SEND_it, to 12-b!") == ["don't", "send", "it", "to", "12", "b"]


@pytest.mark.parametrize(
    "heard",
    [
        "hello there",
        "yes that's correct great thanks",
        "is it going to rain in Denver tomorrow",
        "",
    ],
)
def test_what_is_said_in_passing_finds_nothing_that_is_told(
    index: KnowledgeIndex, heard: str
) -> None:
    assert index.find(heard) == ()
