"""What of a tool's answer the model is given, and how its arguments are read."""

from __future__ import annotations

import json

import pytest

from tests.tables import each_row
from voiceloop.tools.arguments import MAX_ARGUMENTS_CHARS, canonical, read_arguments
from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.result import shaped

ORDER = {"id": 7, "items": [{"name": "latte", "cost": 3}, {"name": "tea", "cost": 2}], "log": "x"}


@pytest.mark.parametrize(("keep", "kept"), [
    ((), ORDER),
    (("id",), {"id": 7}),
    (("id", "items.name"), {"id": 7, "items": [{"name": "latte"}, {"name": "tea"}]}),
    (("items", "items.name"), {"items": ORDER["items"]}),
    (("items.name", "items"), {"items": ORDER["items"]}),
    (("nothing",), {}),
    (("id.deeper",), {}),
])  # fmt: skip
def test_only_the_fields_that_are_kept_reach_the_model(keep: tuple[str, ...], kept: object) -> None:
    assert json.loads(shaped(json.dumps(ORDER), keep, 4000)) == kept


def test_a_long_result_is_cut_and_says_so() -> None:
    assert shaped("abcdef", (), 6) == "abcdef"
    assert shaped("abcdefgh", (), 6) == "abcdef [cut: 2 more characters]"


@pytest.mark.parametrize("text", ["<html>", "", "[" * 100_000])
def test_fields_of_what_is_no_json_cannot_be_kept(text: str) -> None:
    with pytest.raises(ToolFailed, match="expected JSON"):
        shaped(text, ("a",), 4000)


@each_row("text", [
    "[1]", "7", "{", "nonsense", '{"a": NaN}', "[" * 10_000, "{" + " " * MAX_ARGUMENTS_CHARS,
    '{"a": ' + "9" * 10_000 + "}",
])  # fmt: skip
def test_arguments_that_are_no_bounded_object_are_refused(text: str) -> None:
    with pytest.raises(ToolFailed, match="arguments: expected") as caught:
        read_arguments(text)
    assert caught.value.is_unsent


def test_arguments_have_one_spelling_however_they_are_written() -> None:
    spellings = ('{"b": 1, "a": {"d": 2, "c": "ü"}}', ' {"a":{"c":"\\u00fc","d":2},"b":1}\n')
    assert {canonical(read_arguments(text)) for text in spellings} == {
        '{"a":{"c":"ü","d":2},"b":1}'
    }
    assert read_arguments(" ") == {}
    assert canonical({"a": 1}) != canonical({"a": "1"}) != canonical({"a": True})
