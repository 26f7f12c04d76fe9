"""Owns how a tokenizer spells JSON, and what that makes of a schema.

Most spell it as it stands. That of the embedded agent writes a space before each word of a string,
so that the word is the token it is in speech, and its decoder takes the space out again; a grammar
works on what is spelled.
"""

import json
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from ..types import GrammarError

PROBE = '{"name": "a", "b": ["c", "d"]}'
SPACED_PROBE = '{"name": "a", " b": [" c", " d"]}'

# Keywords of JSON Schema below which schemas stand: one, a list of them, or one a name.
SCHEMA_KEYWORDS = frozenset(
    ("items", "prefixItems", "anyOf", "oneOf", "allOf", "not", "additionalProperties")
)
SCHEMA_TABLES = frozenset(("$defs", "definitions", "patternProperties"))
OF_OBJECTS = ("type", "additionalProperties")  # beside its properties
# Of the objects that one is spelled as, which double with each optional name that nests another:
# four times the largest schema that a client may send (`MAX_SCHEMA_BYTES` of the gateway).
MOST_CHARACTERS = 256 * 1024


class Spelling(Enum):
    """Decode the tokens that JSON is made of, byte by byte."""

    PLAIN = "as it stands"
    SPACED = "a space before each word, but of an object's first name"
    OTHER = "something else"

    @classmethod
    def of(cls, spell: Callable[[str], str]) -> "Spelling":
        """spell: from text to what its tokens are in bytes."""
        spelled = spell(PROBE).strip()
        return {PROBE: cls.PLAIN, SPACED_PROBE: cls.SPACED}.get(spelled, cls.OTHER)

    @property
    def gap(self) -> str:
        """Describe what may follow a comma or colon, as a regular expression.

        Where words are spaced it has to: behind `:"` the decoder would leave the space in a value.
        """
        return " " if self is Spelling.SPACED else " ?"

    def schema(self, schema: Any) -> Any:
        """The JSON schema of what is spelled, for one of what is meant.

        Raises: GrammarError where it would be too large.
        """
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
        elif keyword == "maxLength" and isinstance(value, int):
            spelled[keyword] = value + 1  # the space counts
        elif keyword == "pattern" and isinstance(value, str) and value.startswith("^"):
            spelled[keyword] = "^ ?" + value[1:]
        else:
            spelled[keyword] = value
    names = spelled.get("properties")
    if not isinstance(names, dict) or not names or "anyOf" in spelled:
        return spelled
    shared = {k: v for k, v in spelled.items() if k in OF_OBJECTS}
    others = {k: v for k, v in spelled.items() if k not in (*OF_OBJECTS, "properties", "required")}
    variants, n_characters = list[dict[str, Any]](), 0
    for variant in _objects(names, spelled.get("required")):
        variants.append(shared | variant)
        n_characters += len(json.dumps(variants[-1]))
        if n_characters > MOST_CHARACTERS:
            raise GrammarError(
                f"expected a schema of at most {MOST_CHARACTERS} characters as it is spelled, "
                "found more"
            )
    return others | {"anyOf": variants}


def _objects(properties: dict[str, Any], required: Any) -> Iterator[dict[str, Any]]:
    """An object for each name that may come first, which alone is spelled without a space."""
    asked = required if isinstance(required, list) else []
    required = {name for name in asked if isinstance(name, str)}
    names = list(properties)
    spelled = {name: _spaced(each) for name, each in properties.items()}  # each of them once
    for index, first in enumerate(names):
        later = names[index + 1 :]
        yield {
            "properties": {first: spelled[first]} | {_word(name): spelled[name] for name in later},
            "required": [first, *(_word(name) for name in later if name in required)],
        }
        if first in required:
            return
    yield {"properties": {}}


def _word(value: Any) -> Any:
    begins_with_letter = isinstance(value, str) and value[:1].isascii() and value[:1].isalpha()
    return f" {value}" if begins_with_letter else value
