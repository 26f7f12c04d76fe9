"""Strict reading of TOML tables, environment text and flags into frozen dataclasses.

Owns the one rule for configuration: every key must be a field, every value of its type; an error
names where it stood, what was expected, what was found and, for a key, the nearest valid name.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from voiceloop.errors import ConfigError
from voiceloop.removed_keys import instead_of

T = TypeVar("T")
DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
LIKENESS = 0.5  # of two names: less helps nobody
BOOLEANS = {"1": True, "true": True, "0": False, "false": False}  # in the environment and in flags


def read_toml(path: Path, wanted: str = "expected a configuration file") -> dict[str, Any]:
    """A TOML file as a table; ``wanted`` begins the sentence when there is none.

    Raises:
        ConfigError: it is missing or not TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{wanted}, found none at {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{wanted}, found {path} unreadable ({error})") from None
    return read_toml_text(text, str(path))


def read_toml_text(text: str, source: str) -> dict[str, Any]:
    """TOML text as a table. Raises ConfigError."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{source}: expected TOML, found an error: {error}") from None


def overlay(base: T, values: Mapping[str, Any], source: str, *, is_text: bool = False) -> T:
    """A copy of the dataclass ``base`` with ``values`` in place of its fields.

    ``is_text``: values are text from the environment and are read by their field's type (lists
    are separated by commas).

    Raises:
        ConfigError: an unknown key or a value of a wrong type.
    """
    changed: T = _overlay(base, values, source, "", is_text)
    return changed


def one_or_list(values: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """The values, where of these keys a text stands for the list that it is, split at commas."""
    texts = {key: values[key] for key in keys if isinstance(values.get(key), str)}
    return {**values, **{key: text.split(",") for key, text in texts.items()}}


def from_environment(text: str, environment: Mapping[str, str], where: str) -> str:
    """``text`` with the values of the variables that it names as ``${NAME}``.

    Secrets stand in the environment, not in files.

    Raises:
        ConfigError: one of them is not set, or is named in another way.
    """
    if "${" in VARIABLE.sub("", text):  # what it stands in is not shown: it may be a secret
        raise ConfigError(f"{where}: expected variables as ${{NAME}}, found one that is not")

    def value(match: re.Match[str]) -> str:
        found = environment.get(match[1], "")
        if not found:
            raise ConfigError(f"{where}: expected ${match[1]} in the environment, found it not set")
        return found

    return VARIABLE.sub(value, text)


def field_types(kind: type[Any]) -> dict[str, Any]:
    """Field names of a dataclass with their types."""
    hints = get_type_hints(kind)
    return {entry.name: hints[entry.name] for entry in dataclasses.fields(kind)}


def check_url(name: str, url: str | None) -> None:
    """Before any model is loaded: a service's address must be one. Raises: ConfigError."""
    schemes = ("http", "https", "ws", "wss") if name == "stt_url" else ("http", "https")
    if url is None:
        return
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(f"{name}: expected a URL ({', '.join(schemes)}), found {url!r}")


def check_origin(origin: str) -> None:
    """As browsers send it: with a path, or a host alone, it lets nobody in. Raises: ConfigError."""
    if origin not in ("*", "null") and not is_origin(origin):
        raise ConfigError(
            f"allowed_origins: expected scheme://host or scheme://host:port, found {origin!r}"
        )


def is_origin(address: str) -> bool:
    try:
        parts = urlsplit(address)
        is_named = bool(parts.hostname) and parts.port != 0
        return is_named and f"{parts.scheme}://{parts.netloc}" == address
    except ValueError:
        return False


def check_device(name: str, device: str, elsewhere: str = "") -> None:
    """elsewhere: the key that has the model run by others, if any does. Raises: ConfigError."""
    if not DEVICE.fullmatch(device):
        raise ConfigError(f"{name}: expected auto, cpu, cuda or cuda:N, found {device!r}")
    if elsewhere and device != "auto":
        raise ConfigError(f"{name}: expected a model here, found {elsewhere}")


def _overlay(base: Any, values: Mapping[str, Any], source: str, path: str, is_text: bool) -> Any:
    fields = field_types(type(base))
    changes: dict[str, Any] = {}
    for key, value in values.items():
        where = f"{path}{key}"
        if key not in fields:
            raise _unknown(where, key, fields, source)
        kind = fields[key]
        if dataclasses.is_dataclass(kind):
            if not isinstance(value, Mapping):
                raise _wrong(source, where, "a table", value)
            changes[key] = _overlay(getattr(base, key), value, source, f"{where}.", is_text)
        else:
            read = _from_text(value, kind) if is_text and isinstance(value, str) else value
            changes[key] = _value(read, kind, source, where)
    return dataclasses.replace(base, **changes)


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: which it may have meant, if any is like it."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=LIKENESS)
    return f"; the nearest is {near[0]!r}" if near else ""


def _unknown(where: str, key: str, fields: Mapping[str, Any], source: str) -> ConfigError:
    instead = instead_of(where)
    if instead is not None:
        return ConfigError(f"{source}: {where}: removed. {instead}")
    return ConfigError(f"{source}: expected a known key, found {where!r}{nearest(key, fields)}")


def _value(value: Any, kind: Any, source: str, where: str) -> Any:
    """``value`` as ``kind``, which is one of the few types that configuration uses."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):  # only "X | None" occurs
        inner = next(arg for arg in args if arg is not type(None))
        return None if value is None else _value(value, inner, source, where)
    if origin is Literal:
        if value not in args:
            raise _wrong(source, where, f"one of {', '.join(map(str, args))}", value)
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            is_table = dataclasses.is_dataclass(args[0])
            raise _wrong(source, where, f"a list: [[{where}]]" if is_table else "a list", value)
        return tuple(
            _value(entry, args[0], source, f"{where}[{index}]") for index, entry in enumerate(value)
        )
    if dataclasses.is_dataclass(kind):
        return _new(kind, value, source, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(source, where, "a table", value)
        return dict(value)
    return _scalar(value, kind, source, where)


def _new(kind: Any, value: Any, source: str, where: str) -> Any:
    """A dataclass without defaults for all its fields (a tool in a list of tools)."""
    if not isinstance(value, Mapping):
        raise _wrong(source, where, "a table", value)
    unknown = [key for key in value if key not in field_types(kind)]
    if unknown:  # before what is missing: it may be that, mistyped
        name = f"{where}.{unknown[0]}"
        raise _unknown(name, unknown[0], field_types(kind), source)
    for entry in dataclasses.fields(kind):
        is_required = (
            entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
        )
        if is_required and entry.name not in value:
            raise _wrong(source, f"{where}.{entry.name}", "a value", None)
    required = {
        name: _value(value[name], hint, source, f"{where}.{name}")
        for name, hint in field_types(kind).items()
        if name in value
    }
    return kind(**required)


def _scalar(value: Any, kind: Any, source: str, where: str) -> Any:
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    names = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
    raise _wrong(source, where, names.get(kind, "a path"), value)


def _from_text(text: str, kind: Any) -> Any:
    """Text of the environment as a TOML-like value; what cannot be read stays text."""
    args = get_args(kind)
    if get_origin(kind) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    wanted = next((arg for arg in args if arg is not type(None)), kind) if args else kind
    if wanted is bool:
        return BOOLEANS.get(text.lower(), text)
    try:
        return wanted(text) if wanted in (int, float) else text
    except ValueError:
        return text


def _wrong(source: str, where: str, wanted: str, found: Any) -> ConfigError:
    key = where.rpartition(".")[2]
    if key in ("keys", "remote_key", "secret_key", "metrics_key") or key.startswith("keys["):
        shown = "another value"  # never a key in a message
    else:
        shown = "nothing" if found is None else repr(found)
    return ConfigError(f"{source}: {where}: expected {wanted}, found {shown[:80]}")
