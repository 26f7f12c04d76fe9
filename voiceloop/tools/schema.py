"""Check a call's arguments against its tool's schema. Pure.

Checked are types, `enum`, `const`, `minimum`, `maximum`, required and additional properties, also
within `anyOf`, `oneOf`, `allOf` and a local `$ref`. A service checks patterns and formats itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from voiceloop.tools.executor import ToolFailed

MAX_DEPTH = 32  # of schemas in each other: one that refers to itself ends here
MAX_STEPS = 10_000  # of one check, some 20 ms; the longest arguments have some 5,000 values
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "number": (int, float), "integer": (int,), "boolean": (bool,),
    "object": (dict,), "array": (list,), "null": (type(None),),
}  # fmt: skip
COMBINED = ("allOf", "anyOf", "oneOf")
Schema = Mapping[str, Any]


def checked(arguments: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """The arguments, without optional ones that are null and may not be.

    An argument that the schema does not name is refused, unless it has `additionalProperties` or
    `patternProperties`.

    Raises:
        ToolFailed: the schema does not allow the arguments. The message repeats no value of them.
    """
    root = {"type": "object", **schema}
    check = _Check(root)
    try:
        named = check.properties(root) or {}
        required = root.get("required", ())
        given = {
            name: value
            for name, value in arguments.items()
            if value is not None
            or name in required
            or name not in named
            or check.problem(None, named[name], name) is None
        }
        problem = check.undeclared(given, root) or check.problem(given, root, "arguments")
    except (TypeError, AttributeError, _TooLong):  # an MCP server may list anything as a schema
        problem = "the tool's schema is unusable"
    if problem is not None:
        message = "arguments: expected what the tool's schema allows, found others"
        raise ToolFailed(message, told=f"not called: {problem}", is_unsent=True)
    return given


class _TooLong(Exception):
    pass


class _Check:
    """One check against one schema. root: the document that `$ref` points into."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._n_left = MAX_STEPS

    def _step(self) -> None:
        self._n_left -= 1
        if self._n_left < 0:
            raise _TooLong

    def undeclared(self, value: Any, schema: Any, depth: int = 0) -> str | None:
        """Say which property no schema names. A nested schema without properties allows all."""
        self._step()
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return None
        if isinstance(value, list):
            found = (self.undeclared(one, schema.get("items"), depth + 1) for one in value)
            return next((each for each in found if each), None)
        named = self.properties(schema)
        if not isinstance(value, dict) or named is None or not (named or depth == 0):
            return None
        for name, one in value.items():
            if name not in named:
                return f"{name[:64]} is none of its parameters ({', '.join(named)})"
            if problem := self.undeclared(one, named[name], depth + 1):
                return problem
        return None

    def properties(self, schema: Any, depth: int = 0) -> dict[str, Any] | None:
        """The properties that a schema names, by name; None where it allows others beside them."""
        self._step()
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return {}
        if schema.get("additionalProperties", False) is not False or "patternProperties" in schema:
            return None
        found = dict(schema.get("properties", {}))
        for part in (self._referred(schema), *(p for key in COMBINED for p in schema.get(key, ()))):
            more = self.properties(part, depth + 1)
            if more is None:
                return None
            found = more | found
        return found

    def problem(self, value: Any, schema: Any, where: str, depth: int = 0) -> str | None:
        """Say what the schema does not allow of a value; None where it allows all of it."""
        self._step()
        if schema is False:
            return f"{where} is not allowed"
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return None
        depth += 1
        kinds = schema.get("type", list(TYPES))
        if not any(_is_of(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
            return (
                f"{where} must be of type {kinds if isinstance(kinds, str) else ' or '.join(kinds)}"
            )
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        # As JSON: Python takes True for 1.
        if values is not None and json.dumps(value) not in map(json.dumps, values):
            return f"{where} must be one of {json.dumps(values, ensure_ascii=False)}"
        if _is_of(value, "number"):
            if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
                return f"{where} is out of range"
        for key in ("anyOf", "oneOf"):
            ways = schema.get(key)
            if ways and all(self.problem(value, way, where, depth) for way in ways):
                return f"{where} has none of the forms that its schema names"
        parts = [
            (value, part, where) for part in (self._referred(schema), *schema.get("allOf", ()))
        ]
        if isinstance(value, dict):
            for name in schema.get("required", ()):
                if name not in value:
                    return f"{name} is missing"
            properties = schema.get("properties", {})
            more = (
                True if "patternProperties" in schema else schema.get("additionalProperties", True)
            )
            parts += [(one, properties.get(name, more), name[:64]) for name, one in value.items()]
        elif isinstance(value, list):
            parts += [(one, schema.get("items"), where) for one in value]
        found = (self.problem(one, part, name, depth) for one, part, name in parts)
        return next((each for each in found if each), None)

    def _referred(self, schema: Schema) -> Any:
        """The schema that `$ref` points to within the document; None without one."""
        pointer = schema.get("$ref")
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            return None
        found: Any = self._root
        for piece in pointer[1:].strip("/").split("/") if pointer != "#" else ():
            found = found.get(piece.replace("~1", "/").replace("~0", "~")) if found else None
        return found


def _is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES.get(kind, (object,)))
