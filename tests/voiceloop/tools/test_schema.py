"""A tool is called with what its schema allows, and with nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tables import each_row
from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.schema import checked

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "size": {"type": "string", "enum": ["S", "L"]},
        "n": {"type": "integer", "minimum": 1, "maximum": 20},
        "note": {"type": ["string", "null"]},
        "extras": {"type": "array", "items": {"$ref": "#/$defs/extra"}},
        "at": {"anyOf": [{"type": "string"}, {"type": "number"}]},
        "free": {"type": "object"},
    },
    "required": ["size"],
    "$defs": {"extra": {"type": "object", "properties": {"name": {"type": "string"}}}},
}


@pytest.mark.parametrize("arguments", [
    {"size": "S"},
    {"size": "L", "n": 2, "note": None, "extras": [{"name": "basil"}], "at": 7.5},
    {"size": "L", "n": 2.0, "free": {"anything": [1]}},
])  # fmt: skip
def test_arguments_that_the_schema_allows_stay_as_they_are(arguments: dict[str, Any]) -> None:
    assert checked(arguments, ORDER) == arguments


@each_row(("arguments", "told"), [
    ({"size": "S", "is_admin": True}, "is_admin is none of its parameters"),
    ({"size": "S", "extras": [{"price": 0}]}, "price is none of its parameters"),
    ({"size": "XL"}, 'size must be one of ["S", "L"]'),
    ({"size": 1}, "size must be of type string"),
    ({"size": None}, "size must be of type string"),
    ({"size": "S", "n": 21}, "n is out of range"),
    ({"size": "S", "n": True}, "n must be of type integer"),
    ({"size": "S", "n": "2"}, "n must be of type integer"),
    ({"size": "S", "note": 3}, "note must be of type string or null"),
    ({"size": "S", "extras": [{"name": 1}]}, "name must be of type string"),
    ({"size": "S", "at": []}, "at has none of the forms"),
    ({"n": 1}, "size is missing"),
])  # fmt: skip
def test_arguments_that_the_schema_does_not_allow_reach_no_tool(
    arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(ToolFailed) as caught:
        checked(arguments, ORDER)
    assert told in caught.value.told and caught.value.is_unsent
    assert "is_admin" not in caught.value.message  # which the log has


def test_a_tool_without_a_schema_takes_nothing() -> None:
    assert checked({}, {}) == {}
    with pytest.raises(ToolFailed):
        checked({"a": 1}, {})


@pytest.mark.parametrize("more", [
    {"additionalProperties": True}, {"additionalProperties": {"type": "integer"}},
    {"patternProperties": {"^x-": {}}},
])  # fmt: skip
def test_a_schema_may_ask_for_other_arguments(more: dict[str, Any]) -> None:
    assert checked({"size": "S", "x-1": 1}, ORDER | more) == {"size": "S", "x-1": 1}
    if more == {"additionalProperties": {"type": "integer"}}:
        with pytest.raises(ToolFailed):
            checked({"size": "S", "x-1": "one"}, ORDER | more)


def test_forms_of_one_object_name_its_arguments_together() -> None:
    name, number = ({"properties": {key: {}}, "required": [key]} for key in ("name", "number"))
    schema = {"type": "object", "properties": {"id": {}}, "oneOf": [name, number]}
    assert checked({"id": 1, "name": "a"}, schema)
    for arguments in ({"id": 1}, {"id": 1, "name": "a", "other": 1}):
        with pytest.raises(ToolFailed):
            checked(arguments, schema)


@pytest.mark.parametrize("schema", [
    {"properties": {"a": {"type": 5}}}, {"required": 5}, {"properties": []}, {"allOf": 7},
    {"properties": {"a": {"enum": 5}}}, {"properties": {"a": {"minimum": "x"}}},
])  # fmt: skip
def test_a_schema_that_is_none_lets_nothing_through(schema: dict[str, Any]) -> None:
    with pytest.raises(ToolFailed):
        checked({"a": 1}, schema)


def test_a_schema_that_refers_to_itself_ends() -> None:
    assert checked({}, {"$ref": "#"}) == {}
    tree = {"properties": {"left": {"$ref": "#"}}}
    assert checked({"left": {"left": {}}}, tree) == {"left": {"left": {}}}
    with pytest.raises(ToolFailed, match="arguments"):
        checked({}, {"allOf": [{"$ref": "#"}, {"$ref": "#"}]})
