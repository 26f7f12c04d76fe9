"""A list in a call holds each item as often as the caller counted it, where that is plain."""

import json

import pytest

from engine.text.counted_lists import MAX_WORDS, CountedTurn
from tests.tables import each_row

TEXTS = {"type": "array", "items": {"type": "string"}}


def tool(items: object = TEXTS) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"items": items}, "required": ["items"]}
    return {"type": "function", "function": {"name": "order", "parameters": parameters}}


def settled(turn: str, items: list[object], schema: object = TEXTS) -> list[object]:
    call = json.dumps({"items": items})
    return json.loads(CountedTurn(turn, [tool(schema)]).settle("order", call))["items"]


@pytest.mark.parametrize(
    ("turn", "written", "meant"),
    [
        ("Add up two red wines and 3 teas.", ["red wine"] * 3 + ["tea"] * 3,
         ["red wine"] * 2 + ["tea"] * 3),
        ("uh a cold brew two uh danishes and a a bun", ["cold brew", "danish", "bun", "bun"],
         ["cold brew", "danish", "danish", "bun"]),
        ("an egg sandwich and a tea", ["egg sandwich", "tea", "tea"], ["egg sandwich", "tea"]),
        ("two vanilla lattes and a latte", ["latte", "latte", "vanilla latte"],
         ["latte", "vanilla latte", "vanilla latte"]),
    ],
)  # fmt: skip
def test_items_are_counted_as_the_caller_counted_them(
    turn: str, written: list[object], meant: list[object]
) -> None:
    assert settled(turn, written) == meant


@each_row(
    ("turn", "written"),
    [
        ("three teas and a bun", ["tea", "bun"]),  # a list that repeats nothing counts nothing
        ("two teas no make that three teas", ["tea", "tea"]),  # which of them?
        ("a tea actually make it two", ["tea", "tea"]),  # a number is left over
        ("two large teas", ["tea", "tea", "tea"]),  # its count is not right before it
        ("two teas", ["tea", "bun", "bun"]),  # one item was not said
        ("tea and a bun", ["tea", "tea", "bun"]),  # and this one not counted
        ("100 teas", ["tea", "tea"]),
        ("what is the total", ["tea", "tea"]),
        ("two teas", ["", ""]),
        ("two teas " + "for me " * MAX_WORDS, ["tea"] * 3),
    ],
)
def test_what_the_words_leave_in_doubt_stays_as_it_was_written(
    turn: str, written: list[object]
) -> None:
    assert settled(turn, written) == written


@pytest.mark.parametrize(
    "schema",
    [TEXTS | {"uniqueItems": True}, TEXTS | {"maxItems": 4}, {"$ref": "#/$defs/items"}, True],
)
def test_a_list_whose_length_the_schema_binds_stays_as_it_is(schema: object) -> None:
    assert settled("two teas", ["tea"] * 3, schema) == ["tea"] * 3


def test_a_call_without_such_a_list_keeps_its_spelling() -> None:
    turn = CountedTurn("two teas", [tool()])
    for written in ('{"items":  [2, 2]}', '{"n": 2}', "{}", '{"items": [["tea"], ["tea"]]}'):
        assert turn.settle("order", written) == written
    assert turn.settle("nobody", '{"items": ["tea", "tea", "tea"]}').count("tea") == 3


def test_arguments_nested_a_thousand_deep_are_left_to_who_refuses_them() -> None:
    deep = '{"items": ' + "[" * 100_000 + "]" * 100_000 + "}"
    assert CountedTurn("two teas", [tool()]).settle("order", deep) == deep
