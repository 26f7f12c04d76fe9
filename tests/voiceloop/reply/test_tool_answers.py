"""Which calls lack an argument that their tool requires."""

from __future__ import annotations

import json
from typing import Any

import pytest

from voiceloop.agent import AgentConfig
from voiceloop.backends import Tool, ToolCall
from voiceloop.reply.tool_answers import ToolAnswers

TEXT = {"type": "string"}
NULL = {"type": "null"}


def lacks(schema: Any, **given: Any) -> bool:
    parameters = {"type": "object", "properties": {"note": schema}, "required": ["note"]}
    answers = ToolAnswers(AgentConfig(), [Tool("book", "", parameters)])
    return answers.missing(ToolCall("call", "book", json.dumps(given))) == ("note",)


@pytest.mark.parametrize("schema", [TEXT, {"enum": ["a"]}, {"const": 0}, {"anyOf": [TEXT]}, {}, 1])
def test_null_and_an_empty_text_say_nothing(schema: Any) -> None:
    assert lacks(schema) and lacks(schema, note=None) and lacks(schema, note="")
    assert not lacks(schema, note="a") and not lacks(schema, note=0) and not lacks(schema, note=[])


@pytest.mark.parametrize(
    "schema",
    [
        NULL,
        {"type": ["string", "null"]},
        {"anyOf": [TEXT, NULL]},
        {"oneOf": [{"anyOf": [NULL]}, TEXT]},
        {"enum": ["a", None]},
        {"const": None},
    ],
)
def test_where_null_is_an_answer_it_is_none_the_less_to_be_given(schema: Any) -> None:
    assert lacks(schema) and not lacks(schema, note=None) and not lacks(schema, note="")


@pytest.mark.parametrize("schema", [{"enum": ["", "a"]}, {"const": ""}, {"oneOf": [{"const": ""}]}])
def test_an_empty_text_that_the_schema_names_is_an_answer(schema: Any) -> None:
    assert lacks(schema, note=None) and not lacks(schema, note="")
