"""Where a slot stands after what was said: read back, corrected, confirmed, given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voiceloop.agent import AgentSlot
from voiceloop.slots.form import (
    ASK_AGAIN,
    CLOSING,
    OPENING,
    Exchange,
    Form,
    Forms,
    SlotState,
    exchanges,
    notes_of,
)

PHONE = AgentSlot("phone number", "phone", name="phone")
SIZE = AgentSlot("what size", "choice", name="size", values=("small", "large"), read_back="")
SLOTS = (PHONE, SIZE)
ASKED = "What is your phone number?"
NUMBER, OTHER = "five five five oh one four two one one two", "no, six at the end"
READ_BACK = "I have 5 5 5, 0 1 4, 2 1 1 2, is that right?"


def after(*turns: str, slots: tuple[AgentSlot, ...] = SLOTS) -> Form:
    """The form after these turns, the agent's and the caller's in turn."""
    roles = ("assistant", "user") * len(turns)
    return Forms(slots).after(exchanges(zip(roles, turns, strict=False)))


def state(form: Form, name: str = "phone") -> tuple[str, SlotState] | None:
    found = form.get(name)
    return None if found is None else (found.value, found.state)


def test_a_correction_is_said_back_too() -> None:
    form = after(ASKED, NUMBER, READ_BACK, OTHER)
    assert form.line == "I have 5 5 5, 0 1 4, 2 1 1 6, is that right?"
    assert state(after(ASKED, NUMBER, READ_BACK, OTHER, form.line, "correct")) == (
        "5550142116",
        SlotState.CONFIRMED,
    )


def test_after_two_failed_read_backs_the_call_goes_on_without() -> None:
    first = after(ASKED, NUMBER, READ_BACK, "no")
    assert first.line == ASK_AGAIN
    again = after(ASKED, NUMBER, READ_BACK, "no", ASK_AGAIN, NUMBER)
    assert again.line == READ_BACK
    given_up = after(ASKED, NUMBER, READ_BACK, "no", ASK_AGAIN, NUMBER, READ_BACK, "no")
    assert given_up.line == "" and state(given_up) == ("", SlotState.GIVEN_UP)


def test_a_second_correction_is_taken_without_a_third_question() -> None:
    line = after(ASKED, NUMBER, READ_BACK, OTHER).line
    form = after(ASKED, NUMBER, READ_BACK, OTHER, line, "no, seven at the end")
    assert form.line == "" and state(form) == ("5550142117", SlotState.UNCONFIRMED)


def test_the_rest_of_a_number_completes_it() -> None:
    part = after(ASKED, "five five five")
    assert part.line == "Sorry, I only got 5 5 5. Could you say all of it again?"
    whole = after(ASKED, "five five five", part.line, "oh one four two one one two")
    assert whole.line == READ_BACK


@pytest.mark.parametrize("n_digits", [7, 8, 9, 11])
def test_a_number_of_another_length_is_asked_for_again_and_taken_where_it_stays(
    n_digits: int,
) -> None:
    said = "five five five oh one four two one one two six"
    other = " ".join(said.split()[:n_digits])
    unclear = after(ASKED, other)
    assert unclear.line.startswith("Sorry, I only got 5 5 5") and unclear.get("phone") is not None
    again = after(ASKED, other, unclear.line, other)
    assert again.line.startswith("I have 5 5 5") and again.line.endswith("is that right?")
    assert after(ASKED, other, unclear.line, NUMBER).line == READ_BACK
    seven = AgentSlot("phone number", "phone", name="phone", digits=10)  # as the author counts it
    refused = after(ASKED, other, unclear.line, other, slots=(seven,))
    assert state(refused) == ("", SlotState.GIVEN_UP)


def test_a_caller_who_speaks_of_something_else_is_answered_by_the_model() -> None:
    form = after(ASKED, NUMBER, READ_BACK, "when do you open")
    assert form.line == "" and state(form) == ("5550142112", SlotState.UNCONFIRMED)
    nothing = after(ASKED, "why do you need that")
    assert nothing == Form()


def test_what_the_agent_said_instead_of_the_read_back_lets_the_answer_go() -> None:
    form = after(ASKED, NUMBER, "Please call 988.", "yes")
    assert state(form) == ("5550142112", SlotState.UNCONFIRMED)


def test_a_slot_without_a_read_back_is_taken_as_heard() -> None:
    form = after("What size would you like?", "a large one please")
    assert form.line == "" and state(form, "size") == ("large", SlotState.CONFIRMED)


def test_a_statement_with_the_words_of_a_question_asks_nothing() -> None:
    assert after("Thanks, I have noted your phone number.", "two five six lattes") == Form()


def test_an_answer_that_is_asked_for_anew_replaces_the_one_before() -> None:
    told = (
        ASKED,
        NUMBER,
        READ_BACK,
        "yes",
        "Fine. " + ASKED,
        "triple four oh one four two one one two",
    )
    assert state(after(*told)) == ("4440142112", SlotState.HEARD)


def test_words_that_nobody_answered_between_are_one_turn() -> None:
    said = [
        ("assistant", ASKED),
        ("user", "five five five"),
        ("user", "oh one four two one one two"),
    ]
    assert Forms(SLOTS).after(exchanges(said)).line == READ_BACK


def test_the_model_is_told_once_what_is_settled() -> None:
    form = after(ASKED, NUMBER, READ_BACK, "yes")
    notes = notes_of(form, ())
    assert notes == f"{OPENING}\n- phone = 5550142112{CLOSING}"
    assert notes_of(form, (notes,)) == ""
    other = after(ASKED, NUMBER, READ_BACK, "yes", "And " + ASKED, OTHER.replace("no, ", ""))
    assert notes_of(other, (notes,)) == ""  # a six alone is no number: asked again, nothing told


def test_what_is_unsettled_is_not_told_to_the_model() -> None:
    assert notes_of(after(ASKED, NUMBER), ()) == ""
    given_up = after(ASKED, NUMBER, READ_BACK, "no", ASK_AGAIN, NUMBER, READ_BACK, "no")
    assert "- phone: not understood" in notes_of(given_up, ())


TURN = st.sampled_from(
    [ASKED, NUMBER, READ_BACK, OTHER, "yes", "no", ASK_AGAIN, "what size", "large", "hello", ""]
)


def test_an_answer_that_was_given_up_counts_no_further_tries() -> None:
    form = after(*(ASKED, "no, six at the end") * 3)
    assert form.get("phone").n_failed == 2  # type: ignore[union-attr]


@given(st.lists(st.builds(Exchange, TURN, TURN), max_size=8), st.data())
def test_the_form_is_a_function_of_the_turns(turns: list[Exchange], data: st.DataObject) -> None:
    forms = Forms(SLOTS)
    for _ in range(3):  # in any order of what was read before
        n = data.draw(st.integers(0, len(turns)))
        assert forms.after(turns[:n]) == Forms(SLOTS).after(turns[:n])
    form = forms.after(turns)
    assert all(one.n_failed <= 2 for one in form.filled)
    assert bool(form.line) == bool(form.open)
