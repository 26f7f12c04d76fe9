"""What a caller is never told: markup of calls, and the same word for ever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables import each_row
from voiceloop.reply.sayable import MARKS, TEMPLATE_MARKS, Breakage, SayableText

CASH = (
    "You can pay with " + "cash " * 25 + 'cash_total", "arguments": {"order": ["baguette", '
    '"baguette"]}}</tool_call>'
)
SENTENCE = "We open at nine every day."
CALL = '{"name": "book_table", "arguments": {"day": "Friday"}}'
GOOD = [
    "The latte is $4.50, and the cappuccino is $4.75.",
    "No, no, no, no! That is very, very, very good. Bye bye.",
    "It is zero zero zero zero zero, five five five, 5 5 5 5 0 1 0 0.",
    'He said "arguments", < 5 and [sic] {too}, and 1,000,000,000,000.',
    "I am sorry.\n\n- one latte\n- one latte\n\nIs that right?",
    '{"answer": {"arguments_of": 4}}',
    "aaaaaaaaaa",
    "",
]
BROKEN = [
    (CASH, Breakage.REPETITION, "You can pay with cash cash cash"),
    ("It costs 4 dollars.</tool_call> Bye", Breakage.MARKUP, "It costs 4 dollars."),
    ('Sure. book_table", "arguments": {}}', Breakage.MARKUP, 'Sure. book_table", '),
    ("one of those " * 9, Breakage.REPETITION, "one of those one of those one"),
    ("five six seven " * 9, Breakage.REPETITION, "five six seven five six seven five"),
    ((SENTENCE + " ") * 9, Breakage.REPETITION, SENTENCE + " " + SENTENCE),
    ("a" * 40, Breakage.REPETITION, "a" * 16),
    ("你好" * 30, Breakage.REPETITION, "你好" * 16),
]


TOOLS = ("book_table",)


def said(
    text: str, sizes: list[int], *, tools: tuple[str, ...] = TOOLS, speaks: bool = True
) -> tuple[str, SayableText]:
    """What is given out of the text, fed in pieces of these sizes and then by tens."""
    sayable, given = SayableText(tools=tools, speaks=speaks), ""
    for size in [*sizes, *[10] * (len(text) // 10 + 1)]:
        given += sayable.feed(text[:size])
        text = text[size:]
    return given + sayable.finish(), sayable


@each_row("text", GOOD)
def test_what_people_say_passes_whole(text: str) -> None:
    given, sayable = said(text, [])
    assert (given, sayable.breakage, sayable.bare_call) == (text, None, "")


@each_row(("text", "breakage", "given"), BROKEN)
def test_a_reply_that_breaks_is_told_up_to_there(text: str, breakage: Breakage, given: str) -> None:
    found, sayable = said(text, [])
    assert sayable.breakage is breakage
    assert found == given
    assert sayable.needs_fallback is not given.endswith("day.")


@pytest.mark.parametrize("opened", ["", "\n", "{", "[", "```json\n", "```\n["])
def test_a_call_begun_as_text_is_held_back_whole(opened: str) -> None:
    text = opened + CALL
    given, sayable = said(text, [1] * len(text))
    assert (given, sayable.breakage, sayable.bare_call) == ("", None, text)
    assert sayable.names_tool
    assert said(text, [], tools=())[1].bare_call == text
    assert said(text, [], speaks=False)[1].bare_call == text
    answer = opened + '{"name": "Ann"}'
    assert said(answer, [], tools=())[0] == answer
    given, sayable = said(answer, [])
    assert (given, sayable.bare_call, sayable.names_tool) == ("", answer, False)


@each_row(
    "text",
    ['{"name": "Ann", "parameters": {"age": 3}}', '{"name": "book_table"}', "{}", CALL[:-30]],
)
@each_row("opened", ["", "Here: ", "```json\n"])
def test_in_writing_an_answer_in_json_passes_whole(opened: str, text: str) -> None:
    text = opened + text
    for size in (1, 10, 100):
        given, sayable = said(text, [size] * len(text), speaks=False)
        assert (given, sayable.breakage, sayable.bare_call) == (text, None, "")
    given, sayable = said(opened + CALL, [], tools=(), speaks=False)
    assert (given, sayable.breakage, sayable.bare_call) == (opened + CALL, None, "")


words = st.sampled_from([*"abc", "cash", "no", "five", "we open", ".", "  ", "\n", "{", '"', "<"])
texts = st.one_of(
    st.sampled_from([*GOOD, *(text for text, _, _ in BROKEN), CALL]),
    st.lists(st.one_of(words, st.sampled_from(MARKS)), max_size=40).map(" ".join),
    st.lists(words, max_size=120).map("".join),
)


@settings(max_examples=300, derandomize=True)
@given(
    texts, st.lists(st.integers(1, 12), max_size=80), st.sampled_from([TOOLS, ()]), st.booleans()
)
def test_however_it_is_cut_the_same_is_said_and_never_a_mark(
    text: str, sizes: list[int], tools: tuple[str, ...], speaks: bool
) -> None:
    given, sayable = said(text, sizes, tools=tools, speaks=speaks)
    whole, once = said(text, [len(text)], tools=tools, speaks=speaks)
    assert (given, sayable.breakage, sayable.bare_call) == (whole, once.breakage, once.bare_call)
    marks = MARKS if speaks else TEMPLATE_MARKS
    assert text.startswith(given) and not any(mark in given for mark in marks)
    if sayable.breakage is None and not sayable.bare_call:
        assert given == text


def test_nothing_is_held_back_of_plain_words() -> None:
    sayable = SayableText(tools=TOOLS)
    for piece in ("The", " latte", " is", " $4", ".50", "."):
        assert sayable.feed(piece) == piece
