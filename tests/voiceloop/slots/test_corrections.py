"""What a caller says of a value that was said back: right, wrong, or another value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.tables import each_row
from voiceloop.agent import AgentSlot
from voiceloop.slots.checks import WITH_VALUES
from voiceloop.slots.corrections import Verdict, judged


@each_row(
    ("kind", "value", "said", "verdict", "other"),
    [
        ("phone", "5550142112", "no, six at the end", "corrected", "5550142116"),
        ("phone", "5550142112", "no the last two digits are four six", "corrected", "5550142146"),
        ("phone", "5550142112", "no it starts with six", "corrected", "6550142112"),
        ("phone", "5550142112", "it's four seven not four two", "corrected", "5550147112"),
        ("phone", "5550142112", "yes that's right", "right", None),
        ("phone", "5550142112", "yeah", "right", None),
        ("phone", "5550142112", "uh huh", "right", None),
        ("phone", "5550142112", "no", "wrong", None),
        ("phone", "5550142112", "it is", "right", None),
        ("phone", "5550142112", "it is thank you", "right", None),
        ("phone", "5550142112", "yes no problem", "right", None),
        ("phone", "5550142112", "it is not", "wrong", None),
        ("phone", "5550142112", "it is wrong", "wrong", None),
        ("phone", "5550142112", "yeah no that's wrong", "wrong", None),
        ("phone", "5550142112", "right no", "wrong", None),
        ("name", "Jane Doe", "it is jan doe", "corrected", "Jan Doe"),
        ("name", "Jane Smith", "smi[th not smith", "wrong", None),
        ("name", "Jane Smith", "sm4th not smith", "wrong", None),
        ("email", "jane@example.com", "j@x not jane", "wrong", None),
        ("name", "Jane Doe", "hold on", "elsewhere", None),
        ("date", "--05-03", "wait a second", "elsewhere", None),
        ("address", "12 Elm Street", "yes and two lattes please", "right", None),
        ("address", "12 Broadway", "it's fourteen broadway", "corrected", "14 Broadway"),
        ("phone", "5550142112", "that's wrong", "wrong", None),
        ("phone", "5550142112", "five five five oh one four two one one two", "right", None),
        (
            "phone",
            "5550142112",
            "no five five five oh one four two one one six",
            "corrected",
            "5550142116",
        ),
        ("phone", "5550142112", "why do you need it", "elsewhere", None),
        ("phone", "5550142112", "when do you open", "elsewhere", None),
        ("name", "Catherine Clark", "no it's with a k", "corrected", "Katherine Clark"),
        ("name", "Jon Smith", "no, Smyth, s m y t h", "corrected", "Jon Smyth"),
        ("name", "Jane Clark", "clark with an e at the end", "corrected", "Jane Clarke"),
        ("name", "Philip", "with two l's", "corrected", "Phillip"),
        ("name", "Phillip", "no with one l", "corrected", "Philip"),
        ("name", "Jane Doe", "no it's jan", "corrected", "Jan Doe"),
        ("name", "Jane Doe", "that's right", "right", None),
        ("name", "Jane Doe", "yes that's correct thank you", "right", None),
        ("name", "Jane Smith", "with a y not an i", "corrected", "Jane Smyth"),
        ("spelling", "AB12", "no it's v not b", "corrected", "AV12"),
        ("spelling", "AB12", "no a d one two", "corrected", "AD12"),
        ("email", "jane.doe@example.com", "no dot org", "corrected", "jane.doe@example.org"),
        (
            "email",
            "jain@example.com",
            "no it's j a n e at example dot com",
            "corrected",
            "jane@example.com",
        ),
        ("email", "jane@example.com", "correct", "right", None),
        ("email", "catherine@example.com", "it's with a k", "corrected", "katherine@example.com"),
        ("date", "--05-03", "no the fourth", "corrected", "--05-04"),
        ("date", "--05-03", "no june third", "corrected", "--06-03"),
        ("date", "friday", "no i said monday", "corrected", "monday"),
        ("address", "12 Elm Street", "no it's fourteen elm street", "corrected", "14 Elm Street"),
        ("address", "12 Elm Street", "yes", "right", None),
        ("phone", "5550142112", "yes", "right", None),
        ("phone", "5550142112", "um yes that is correct", "right", None),
        ("phone", "5550142112", "no the first three are four four four", "corrected", "4440142112"),
        ("number", "123456", "seven instead of six", "corrected", "123457"),
        ("name", "Sara Stone", "sarah with an h at the end", "corrected", "Sarah Stone"),
    ],
)
def test_the_words_about_a_value_are_understood(
    kind: str, value: str, said: str, verdict: str, other: str | None
) -> None:
    slot = AgentSlot("what is it", kind, name="it")  # type: ignore[arg-type]
    found = judged(slot, value, said)
    assert (found.verdict.value, found.value.text if found.value else None) == (verdict, other)


def test_an_end_that_was_not_heard_is_added() -> None:
    slot = AgentSlot("reference", "number", digits=6, name="it")
    found = judged(slot, "12345", "no there is a six at the end")
    assert found.value is not None and (found.value.text, found.value.fits) == ("123456", True)


@given(st.sampled_from(WITH_VALUES), st.text(max_size=200))
def test_any_words_at_all_are_one_of_the_verdicts(kind: str, said: str) -> None:
    values = {"email": "a@b.com", "date": "--05-03", "name": "Jane Doe", "choice": "red"}
    options = ("red", "green") if kind == "choice" else ()
    slot = AgentSlot("what is it", kind, name="it", values=options)  # type: ignore[arg-type]
    found = judged(slot, values.get(kind, "12345"), said)
    assert (found.value is not None) == (found.verdict is Verdict.CORRECTED)
