"""Owns how a tokenizer spells JSON, and what that makes of a schema.

Most spell it as it stands. That of the embedded agent writes a space before each word of a string,
so that the word is the token it is in speech, and its decoder takes the space out again; a grammar
works on what is spelled.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

PROBE = '{"name": "a", "b": ["c", "d"]}'
SPACED_PROBE = '{"name": "a", " b": [" c", " d"]}'

# Keywords of JSON Schema below which schemas stand: one, a list of them, or one a name.
SCHEMA_KEYWORDS = frozenset(
    ("items", "prefixItems", "anyOf", "oneOf", "allOf", "not", "additionalProperties")
)
SCHEMA_TABLES = frozenset(("$defs", "definitions", "patternProperties"))
OF_OBJECTS = ("type", "additionalProperties")  # beside its properties


class Spelling(Enum):
    """What the tokens of JSON decode to, byte by byte."""

    PLAIN = "as it stands"
    SPACED = "a space before each word, but of an object's first name"
    OTHER = "something else"

    @classmethod
    def of(cls, spell: Callable[[str], str]) -> "Spelling":
        """spell: from text to what its tokens are in bytes."""
        spelled = spell(PROBE).strip()
        return {PROBE: cls.PLAIN, SPACED_PROBE: cls.SPACED}.get(spelled, cls.OTHER)

    def schema(self, schema: Any) -> Any:
        """The JSON schema of what is spelled, for one of what is meant."""
        return _spaced(schema) if self is Spelling.SPACED else schema


def _spaced(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_spaced(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    spelled: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in SCHEMA_KEYWORDS:
            spelled[keyword] = _spaced(value)
        elif keyword in SCHEMA_TABLES and isinstance(value, dict):
            spelled[keyword] = {name: _spaced(each) for name, each in value.items()}
        elif keyword == "enum" and isinstance(value, list):
            spelled[keyword] = [_word(each) for each in value]
        elif keyword == "const":
            spelled[keyword] = _word(value)
        elif keyword == "pattern" and isinstance(value, str) and value.startswith("^"):
            spelled[keyword] = "^ ?" + value[1:]
        else:
            spelled[keyword] = value
    names = spelled.get("properties")
    if not isinstance(names, dict) or not names or "anyOf" in spelled:
        return spelled
    shared = {k: v for k, v in spelled.items() if k in OF_OBJECTS}
    others = {k: v for k, v in spelled.items() if k not in (*OF_OBJECTS, "properties", "required")}
    variants = _objects(names, spelled.get("required"))
    return others | {"anyOf": [shared | variant for variant in variants]}


def _objects(properties: dict[str, Any], required: Any) -> Iterator[dict[str, Any]]:
    """An object for each name that may come first, which alone is spelled without a space."""
    required = required if isinstance(required, list) else []
    names = list(properties)
    for index, first in enumerate(names):
        later = names[index + 1 :]
        yield {
            "properties": {first: _spaced(properties[first])}
            | {_word(name): _spaced(properties[name]) for name in later},
            "required": [first, *(_word(name) for name in later if name in required)],
        }
        if first in required:
            return
    yield {"properties": {}}


def _word(value: Any) -> Any:
    begins_with_letter = isinstance(value, str) and value[:1].isascii() and value[:1].isalpha()
    return f" {value}" if begins_with_letter else value
