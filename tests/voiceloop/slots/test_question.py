"""What the agent asked for, and how far the answer has come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import each_row
from voiceloop.agent import AgentSlot
from voiceloop.slots.letters import letters_at_end
from voiceloop.slots.numbers import digits_at_end
from voiceloop.slots.progress import Answer, Progress, progress
from voiceloop.slots.question import Slot, SlotKind, asked_in, asked_last

PHONE = Slot(SlotKind.NUMBER, 10)
NAME = Slot(SlotKind.SPELLING)
ADDRESS = Slot(SlotKind.ADDRESS)
EMAIL = Slot(SlotKind.EMAIL)
BORN = asked_in("What is your date of birth?")
WHEN = {"under_way": Answer.UNDER_WAY, "plausible": Answer.PLAUSIBLE, "complete": Answer.COMPLETE}


@each_row(
    ("reply", "kind"),
    [
        ("Sure. Would you like a muffin?", "yes_no"),
        ("Seven thirty, is that right?", "yes_no"),
        ("Is your address still 5 Main Street?", "yes_no"),
        ("Great! What can I get you?", "open"),
        ("What is your phone number?", "number"),
        ("Can I get a number to reach you, please?", "number"),
        ("Please tell me your order number.", "number"),
        ("For how many people?", "quantity"),
        ("Could you spell your last name for me?", "spelling"),
        ("What's the delivery address?", "address"),
        ("Could I have your e-mail?", "email"),
        ("Which day would you like?", "date"),
        ("And what time works for you?", "time"),
        ("Small or large?", "choice"),
        ("One latte. That is four dollars.", None),
        ("Your number is 5.", None),
        ("", None),
        ("?", "open"),
        ("...", None),
    ],
)
def test_the_agents_last_sentence_says_what_it_asks_for(reply: str, kind: str | None) -> None:
    asked = asked_in(reply)
    assert (None if asked is None else asked.kind.value) == kind


@pytest.mark.parametrize(
    ("reply", "n_digits"),
    [
        ("What's your phone number?", 10),
        ("And the zip code?", 5),
        ("What are the last four digits of your card?", 4),
        ("Please read me the 16-digit number.", 16),
        ("What is the order number?", None),
        ("What are the last 0 digits?", None),
    ],
)
def test_a_number_that_is_asked_for_has_its_length(reply: str, n_digits: int | None) -> None:
    asked = asked_in(reply)
    assert asked is not None and asked.kind is SlotKind.NUMBER and asked.n_digits == n_digits


AGAIN = "Sorry, could you say it again?"


@pytest.mark.parametrize(
    "said",
    [
        ("What is your phone number?", AGAIN),
        ("What is your phone number?", "Sorry, I only got 5 5 5. Could you say all of it again?"),
        ("What is your phone number?", "I have 5 5 5, is that right?", AGAIN),
        ("What is your phone number?", "Got it, 5 5 5, correct?", AGAIN, "Yes, correct?", AGAIN),
        ("What is your phone number?", "One moment.", "Sorry, can you repeat that, please?"),
        ("Would you like a bag?", "What is your phone number?", "Pardon, say that again?"),
    ],
)
def test_who_is_asked_again_is_asked_what_was_asked_before(said: tuple[str, ...]) -> None:
    assert asked_last(said) == PHONE


def test_only_what_is_to_be_said_again_is_looked_for_in_questions_before() -> None:
    number = "What is your phone number?"
    assert asked_last((number, "Thank you. What can I get you?")) == Slot(SlotKind.OPEN)
    assert asked_last((number, "Would you like to come again?")) == Slot(SlotKind.YES_NO)
    assert asked_last((number, "Thank you.")) is None
    # The fallback, after a question that wants a yes or a no and says nothing back.
    assert asked_last((number, "Would you like a bag?", AGAIN)) == Slot(SlotKind.YES_NO)
    assert asked_last((AGAIN,)) == Slot(SlotKind.OPEN)
    assert asked_last(()) is None


@pytest.mark.parametrize(
    "offer",
    ["Shall I repeat that?", "Would you like me to say it again?", "May I give you that again?"],
)
def test_an_offer_to_say_it_again_wants_a_yes_or_a_no(offer: str) -> None:
    for question in ("Could you spell your name?", "What is your email address?"):
        assert asked_last((question, offer)) == Slot(SlotKind.YES_NO)


def test_a_value_said_back_in_the_authors_words_is_no_question_of_its_own() -> None:
    named = (AgentSlot("booking reference", "number", 6, "ref", read_back="Did I get {value}?"),)
    said = ("And your booking reference?", "Did I get 1 2 3?", AGAIN)
    assert asked_last(said, named) == Slot(SlotKind.NUMBER, 6)
    assert asked_last(said) == Slot(SlotKind.YES_NO)


def test_an_agents_file_says_what_its_own_questions_ask_for() -> None:
    named = (AgentSlot("booking reference", "number", 6), AgentSlot("shall it be", "choice"))
    assert asked_in("And your Booking Reference?", named) == Slot(SlotKind.NUMBER, 6)
    assert asked_in("Your booking reference, please.", named) == Slot(SlotKind.NUMBER, 6)
    found = asked_in("Shall it be rye or wheat?", named)
    assert found == Slot(SlotKind.CHOICE, options=frozenset({"rye", "wheat"}))
    assert asked_in("And your booking reference?") == Slot(SlotKind.OPEN)


@each_row(
    ("said", "n_digits"),
    [
        ("five five five oh one four two", 7),
        ("my number is four one five five five five oh one four two", 10),
        ("four fifteen five five five oh one forty two", 10),
        ("double five triple two", 5),
        ("eight hundred five five five", 6),
        ("415 555 0142", 10),
        ("(415)-555-0142", 10),
        ("five five uh five", 3),
        ("the area code is four one five and then five five", 5),
        ("two lattes", 0),
        ("", 0),
    ],
)
def test_digits_are_counted_in_any_grouping(said: str, n_digits: int) -> None:
    assert digits_at_end(said.split()).n_digits == n_digits


@each_row(
    ("slot", "said", "expected"),
    [
        # numbers, and the groups of three, three and four, or four, three and three
        (PHONE, "", "number under_way"),
        (PHONE, "four one five", "number under_way"),
        (PHONE, "four one five five five five", "number under_way"),
        (PHONE, "four one five five five five oh", "number plausible"),
        (PHONE, "four one five five five five oh one four two", "number complete"),
        (PHONE, "four one five five double", "number under_way"),
        (PHONE, "i don't have one", None),
        (None, "four one five five five five oh one four two", "number complete"),
        (None, "it's four one five", "number under_way"),
        (None, "a table for two", None),
        (Slot(SlotKind.NUMBER, 4), "one two three", "number under_way"),
        (Slot(SlotKind.NUMBER, 4), "one two three four", "number complete"),
        (Slot(SlotKind.NUMBER), "one two three four", "number plausible"),
        # names
        (NAME, "k l a", "spelling under_way"),
        (NAME, "klara k l a r a", "spelling complete"),
        (NAME, "klara k-l-a-r-a", "spelling complete"),
        (NAME, "otto o double t o", "spelling complete"),
        (NAME, "my name is klara", "spelling plausible"),
        (None, "k l a r a", "spelling under_way"),
        (None, "a b", None),
        (NAME, "b as in", "spelling under_way"),
        (NAME, "b as in boy", "spelling under_way"),
        (NAME, "my name is victor", "spelling plausible"),
        (None, "a as in apple n a as in", "spelling under_way"),
        (None, "my name is l for london", "spelling under_way"),
        (None, "b as in", "spelling under_way"),
        (None, "do you have a for rent sign", None),
        (None, "plan b is in place", None),
        (None, "i am at the hotel", None),
        # what is corrected within the turn
        (PHONE, "four one five no", "number under_way"),
        (PHONE, "four one five five five five oh one four two no three", "number complete"),
        (PHONE, "four one five sorry five five five oh one four two", "number complete"),
        (None, "five five five one sorry", "number under_way"),
        (NAME, "k l a no", "spelling under_way"),
        (None, "no", None),
        (PHONE, "no", None),
        (None, "no wait sorry", None),
        (PHONE, "four one five no wait sorry", "number under_way"),
        # addresses
        (ADDRESS, "twelve", "address under_way"),
        (ADDRESS, "twelve river", "address under_way"),
        (ADDRESS, "twelve river road", "address plausible"),
        (ADDRESS, "twelve river road apartment", "address under_way"),
        (ADDRESS, "twelve river road nine four one one seven", "address complete"),
        (ADDRESS, "i'll pick it up", None),
        (None, "twelve river road", "address plausible"),
        (None, "turn off the road", None),
        # the rest
        (EMAIL, "klara dot", "email under_way"),
        (EMAIL, "klara at example", "email under_way"),
        (EMAIL, "klara at example dot", "email under_way"),
        (EMAIL, "klara at example dot c", "email under_way"),
        (EMAIL, "klara at example dot co", "email plausible"),
        (EMAIL, "klara at example dot co dot uk", "email complete"),
        (EMAIL, "klara at example dot c o m", "email complete"),
        (EMAIL, "klara at example dot com", "email complete"),
        (EMAIL, "klara@example.com", "email complete"),
        (None, "it is klara underscore k at gmail", "email under_way"),
        (None, "klara dot k at example dot com", "email complete"),
        (None, "my email is klara dot", "email under_way"),
        (EMAIL, "klara at gmail com", "email complete"),
        (None, "it's klara underscore k", "email under_way"),
        (None, "my email is klara at example", "email under_way"),
        (None, "my email is klara at example com", "email complete"),
        (None, "my email is not working", None),
        (None, "my email is not working at the moment", None),
        (None, "i use outlook at work", None),
        (None, "my email is klara at work dot", "email under_way"),
        (None, "meet me at noon", None),
        (None, "at this point", None),
        (Slot(SlotKind.DATE), "march", "date under_way"),
        (Slot(SlotKind.DATE), "march third", "date complete"),
        (Slot(SlotKind.DATE), "on friday", "date complete"),
        (BORN, "march third", "date under_way"),
        (BORN, "the third of", "date under_way"),
        (BORN, "march third nineteen", "date under_way"),
        (None, "march third nineteen", "date under_way"),
        (BORN, "march third nineteen eighty", "date plausible"),
        (BORN, "march third nineteen eighty five", "date complete"),
        (Slot(SlotKind.TIME), "at seven", "time plausible"),
        (Slot(SlotKind.TIME), "seven pm", "time complete"),
        (Slot(SlotKind.QUANTITY), "for four", "quantity plausible"),
        (asked_in("Small or large?"), "large", "choice complete"),
        (asked_in("Small or large?"), "what is large in ounces", None),
        (Slot(SlotKind.OPEN), "a latte please", None),
        (None, "a bible of about fourteen fifty five", None),
        (None, "it was built in 1984", None),
        (None, "it was in nineteen oh", "number under_way"),
        (None, "that is fourteen fifty five", "number under_way"),
        (None, "1984", "number under_way"),
        (PHONE, "in nineteen eighty four", "number under_way"),
    ],
)
def test_an_answer_is_counted_as_it_comes(
    slot: Slot | None, said: str, expected: str | None
) -> None:
    found = progress(slot, said.split())
    if expected is None:
        assert found is None
    else:
        kind, answer = expected.split()
        assert found == Progress(SlotKind(kind), WHEN[answer])


def test_a_filler_changes_nothing_of_how_far_an_answer_has_come() -> None:
    said = "four one five uh".split()
    assert progress(PHONE, said) == progress(PHONE, said[:-1])


SPOKEN = st.sampled_from(
    "five oh 415 a k twenty double hundred river road and uh is at @ com march seven pm large "
    "klara apartment the no wait".split()
)


@given(st.sampled_from(SlotKind), st.none() | st.integers(1, 20), st.lists(SPOKEN, max_size=12))
def test_any_words_have_a_progress_or_none(
    kind: SlotKind, n_digits: int | None, words: list[str]
) -> None:
    found = progress(Slot(kind, n_digits), words)
    assert found is None or found.kind in SlotKind
    run = digits_at_end(words)
    assert run.n_digits >= 0 and run.n_words <= len(words)
    assert len(letters_at_end(words)) <= 3 * len(words)
