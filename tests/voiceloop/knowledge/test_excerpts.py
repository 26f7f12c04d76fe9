"""What is said of the passages that were found for a question; the library is of this test."""

import pytest

from voiceloop.knowledge.excerpts import MAX_WORDS, said_of
from voiceloop.knowledge.passages import Passage
from voiceloop.knowledge.told import DONT_KNOW

INSTRUCTIONS = "You are Mia at the museum. You help callers with questions about the museum."
TOOLS = "find tickets Free tickets of a day."


def passage(text: str, heading: str = "", path: str = "house.md") -> Passage:
    return Passage(0, path, heading, text)


HELMETS = "Helmets of three armies are in the tower. They are shown from noon on."
HOUSE = passage(
    f"The museum stands on the hill. {HELMETS} Bags go into the lockers. The coins come back.",
    "The house > Rooms",
)
VISIT = passage("Bring warm clothes. Children hold a hand.", "The mine > What to wear", "mine.md")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("Where are the helmets?", HELMETS),
        ("Are there lockers for bags?", "Bags go into the lockers."),
        ("what should i wear in the mine", "Bring warm clothes."),  # its heading says so
        ("where are the hellmets", HELMETS),
        ("Do you have a planetarium?", DONT_KNOW),  # of which no page has a word
        ("Is there a planetarium with wheelchair seats in the tower?", DONT_KNOW),
    ],
)
def test_the_sentence_that_answers_is_said_and_no_other(asked: str, said: str) -> None:
    assert said_of(asked, (HOUSE, VISIT), INSTRUCTIONS, TOOLS) == said


@pytest.mark.parametrize(
    "asked", ["I am looking for a helmet", "Are tickets free?", "Can you help me?", ""]
)
def test_what_is_the_models_stays_the_models(asked: str) -> None:
    assert said_of(asked, (HOUSE, VISIT), INSTRUCTIONS, TOOLS) is None


def test_of_sentences_alike_that_is_said_which_has_what_is_named_first() -> None:
    text = "A rental bike costs 16 dollars a day. As a deposit we take 80 dollars."
    asked = "What deposit do you take for a rental bike?"
    said = said_of(asked, (passage(text, "Rental"),), INSTRUCTIONS, TOOLS)
    assert said == "As a deposit we take 80 dollars."


def test_of_headings_that_is_taken_which_has_more_of_the_question() -> None:
    lost = passage("Call us at once and we block it.", "Museum cards > Lost cards")
    bring = passage("Bring a passport for the card.", "Museum cards > How to get one")
    asked = "How do I get a museum card?"
    assert said_of(asked, (lost, bring), INSTRUCTIONS) == "Bring a passport for the card."


def test_nothing_found_is_not_known_unless_the_instructions_have_a_word_of_it() -> None:
    assert said_of("Do you sell honey?", (), INSTRUCTIONS) == DONT_KNOW
    assert said_of("How old is the museum?", (), INSTRUCTIONS) is None


def test_no_more_is_read_than_fits() -> None:
    long = passage("The tower " + "very " * 80 + "high.")
    said = said_of("How high is the tower?", (long,), INSTRUCTIONS)
    assert said is not None and len(said.split()) == MAX_WORDS


BIKES = passage("A rental bike is 18 dollars a day. Used bikes are checked. They cost from $120.")
COURSES = passage(
    "Courses for beginners are on Monday. A course of ten lessons costs 95 dollars.", "Bike courses"
)
FEES = Passage(0, "fees.csv", "", "what: film. how long: one week. late fee a day: 50 cents")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("Do you sell used bikes?", "Used bikes are checked. They cost from $120."),
        ("Do you rent bikes?", "A rental bike is 18 dollars a day."),
        ("How much is a used bike?", "Used bikes are checked. They cost from $120."),
        ("How much is a course?", "A course of ten lessons costs 95 dollars."),
        ("Do you buy bikes?", DONT_KNOW),
        ("Do you repair tandems?", DONT_KNOW),
        ("How long can I keep a film?", "Film, how long: one week."),
        ("What's the late fee for films?", "Film, late fee a day: 50 cents."),
        ("What about a film?", "Film, how long: one week, late fee a day: 50 cents."),
    ],
)
def test_what_is_sold_and_the_column_of_a_row(asked: str, said: str) -> None:
    assert said_of(asked, (BIKES, COURSES, FEES), INSTRUCTIONS) == said
