"""Which tool a plain question asks, and for what; the business is of this test alone."""

import pytest

from voiceloop.knowledge.lookups import Lookup, asked_of

ITEMS = ("tire", "inner tube", "tube", "bell", "new chain")
PRICES = Lookup("get_price", "item", ITEMS, "get price Price of one item. item")
DAYS = Lookup("find_slots", "day", ("monday", "friday"), "find slots Free slots of a day. day")


@pytest.mark.parametrize(
    ("asked", "tool", "value"),
    [
        ("How much is a bell?", "get_price", "bell"),
        ("and what does an inner tube cost please", "get_price", "inner tube"),
        ("What's the price of tires?", "get_price", "tire"),
        ("How much is a new tire?", "get_price", "tire"),
        ("What does a new chain cost?", "get_price", "new chain"),
        ("What is free on Monday?", "find_slots", "monday"),
        ("Is anything free on friday", "find_slots", "friday"),
    ],
)
def test_a_question_that_names_one_value_asks_its_tool(asked: str, tool: str, value: str) -> None:
    found = asked_of(asked, (PRICES, DAYS))
    assert found is not None and (found[0].tool, found[1]) == (tool, value)


@pytest.mark.parametrize(
    "asked",
    [
        "How much is a saddle?",  # no value of the tool's
        "How much are a bell and a tire?",  # two
        "Do you have bells?",  # not what it costs
        "How much is a bell for a child?",  # something else besides
        "How much time does a tire take?",
        "Are you open on Monday?",
        "Can I have a bell please?",  # asks for nothing that is known
        "I'd like a bell.",
        "",
    ],
)
def test_any_other_is_the_models(asked: str) -> None:
    assert asked_of(asked, (PRICES, DAYS)) is None


def test_a_thing_like_no_value_is_asked_where_the_tool_has_an_answer_for_it() -> None:
    menu = Lookup("get_price", "item", ("fish soup", "leek soup"), "get price", takes_any=True)
    assert asked_of("How much is a carrot soup?", (menu,)) == (menu, "carrot soup")
    for asked in ("How much is a large leek soup?", "How much is the soup?", "How much is a cab?"):
        assert asked_of(asked, (menu,)) is None


def test_of_two_tools_that_would_answer_neither_is_asked() -> None:
    other = Lookup("get_cost", "item", ("bell",), "get cost What one item costs. item")
    assert asked_of("How much is a bell?", (PRICES, other)) is None
