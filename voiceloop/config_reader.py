"""Strict reading of settings: TOML tables, environment text and flags into frozen dataclasses.

Owns the one rule for settings. A line of a dataclass declares a key whole, by `key`: name, type,
default, bounds and description. An unknown key, a wrong type or a value out of its bounds fails
with a sentence that says where it stood, what was expected and what was found.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
import types
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from msgspec import Meta

from voiceloop.errors import ConfigError
from voiceloop.log_form import keyless
from voiceloop.removed_keys import instead_of

T = TypeVar("T")
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
LIKENESS = 0.5  # of two names: less helps nobody
BOOLEANS = {"1": True, "true": True, "0": False, "false": False}  # in the environment and in flags
TYPE_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
AUTO = "auto"
FILE = "file:"  # before the path of a file that holds a secret
# An address that names who is behind it: "deepgram:", or "deepgram+wss://host".
PROVIDER = r"(?P<name>[a-z][a-z0-9-]*)(:|\+(?P<url>(https?|wss?)://.+))"

Words = Annotated[str, Meta(pattern=r"(?s).*\S.*", extra={"wanted": "words"})]
Device = Annotated[
    str,
    Meta(pattern=r"auto|cpu|cuda(:\d{1,3})?", extra={"wanted": "auto, cpu, cuda or cuda:N"}),
]


def key(
    default: Any,
    description: str,
    *,
    ge: float | None = None,
    le: float | None = None,
    zero: str | None = None,
    pattern: str | None = None,
    wanted: str | None = None,
    not_path: str | None = None,
    schemes: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A field of a dataclass that is a key of a file.

    default: ``...`` where the file has to name it. description: for the page of settings, the
    flags' help and ``voiceloop doctor``; its first sentence has to do alone. ge, le: the least and
    the most. zero: what 0 means, where it is allowed besides. pattern: what all of a text has to
    match, and wanted: how a sentence calls that. not_path: a pattern; any other text is a path, or
    one behind ``file:``, and a relative one in a file begins at the file's folder. schemes: the
    value is a URL, or several with commas between them. secret: no error and no `repr` shows the
    value.
    """
    extra = {"zero": zero, "wanted": wanted, "not_path": not_path, "schemes": schemes}
    known = {name: value for name, value in extra.items() if value}
    said: dict[str, Any] = {"description": description, "ge": ge, "le": le, "pattern": pattern}
    options: dict[str, Any] = {
        "repr": not secret,
        "metadata": {"meta": Meta(**said, extra=known)},
    }
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, **options)
    return dataclasses.field(**options if default is ... else {**options, "default": default})


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """One setting as its field declares it. default: MISSING where the file has to name it."""

    name: str
    kind: Any
    metas: tuple[Meta, ...]
    default: Any
    is_secret: bool

    @property
    def description(self) -> str:
        return next((meta.description for meta in self.metas if meta.description), "")

    @property
    def is_path(self) -> bool:
        return self.kind in (Path, Path | None)

    @property
    def summary(self) -> str:
        """The first sentence of the description, without its links."""
        plain = re.sub(r" \(\[.*?\]\(.*?\)\)", "", self.description)
        return re.split(r"[.;](?: |$)", plain, maxsplit=1)[0]


@cache
def keys_of(kind: Any) -> Mapping[str, Key]:
    """The keys of a table, by name, in order. kind: its dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: _key(field, hints[field.name])
        for field in dataclasses.fields(kind)
        if field.metadata.get("is_key", True)
    }


def _key(field: dataclasses.Field[Any], hint: Any) -> Key:
    kind, metas = _bare(hint)
    own = field.metadata.get("meta")
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    return Key(field.name, kind, (*metas, own) if own else metas, default, not field.repr)


def _bare(hint: Any) -> tuple[Any, tuple[Meta, ...]]:
    """A type without what is said of it, and that."""
    if get_origin(hint) is Annotated:
        kind, *metas = get_args(hint)
        return kind, tuple(meta for meta in metas if isinstance(meta, Meta))
    return hint, ()


def said(metas: Iterable[Meta], name: str) -> Any:
    """Return what ``extra`` says under this name; None: nothing."""
    return next((meta.extra[name] for meta in metas if meta.extra and name in meta.extra), None)


def bounds(metas: Iterable[Meta]) -> tuple[float, float] | None:
    """The least and the most, where both are declared."""
    return next(
        ((meta.ge, meta.le) for meta in metas if meta.ge is not None and meta.le is not None), None
    )


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


def overlay(
    base: T,
    values: Mapping[str, Any],
    source: str,
    *,
    is_text: bool = False,
    folder: Path | None = None,
) -> T:
    """A copy of the dataclass ``base`` with ``values`` in place of its fields.

    ``is_text``: values are text from the environment or flags and are read by their field's type
    (lists are separated by commas). ``folder``: where relative paths begin; None: the current one.

    Raises:
        ConfigError: an unknown key, or a value of a wrong type or out of its bounds.
    """
    changed: T = _Reader(source, is_text, folder).table(base, values, "")
    return changed


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


def is_origin(address: str) -> bool:
    """Whether it is scheme://host or scheme://host:port, as browsers send it."""
    try:
        parts = urlsplit(address)
        is_named = bool(parts.hostname) and parts.port != 0
        return is_named and f"{parts.scheme}://{parts.netloc}" == address
    except ValueError:
        return False


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: which it may have meant, if any is like it."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=LIKENESS)
    return f"; the nearest is {near[0]!r}" if near else ""


# An entry of a table in a variable. An address as its name may ask one thing of its own, as
# "turn:HOST?transport=udp".
_PAIR = re.compile(r"([^=?]*(?:\?[^=]*=[^=]*)?)=(.*)", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one source."""

    source: str
    is_text: bool = False
    folder: Path | None = None

    def table(self, base: Any, values: Mapping[str, Any], path: str) -> Any:
        kind: Any = type(base)
        keys = keys_of(kind)
        changes: dict[str, Any] = {}
        for name, value in values.items():
            where, key = f"{path}{name}", self._known(name, keys, path)
            if not dataclasses.is_dataclass(key.kind):
                changes[name] = self._value(value, key.kind, key, where)
            elif isinstance(value, Mapping):
                changes[name] = self.table(getattr(base, name), value, f"{where}.")
            else:
                raise self._wrong(where, "a table", value)
        return dataclasses.replace(base, **changes)

    def _known(self, name: str, keys: Mapping[str, Key], path: str) -> Key:
        where = f"{path}{name}"
        if name in keys:
            return keys[name]
        self._refuse_removed(where)
        wanted = f"{self.source}: expected a known key, found {where!r}{nearest(name, keys)}"
        raise ConfigError(wanted)

    def _refuse_removed(self, where: str) -> None:
        if (instead := instead_of(where)) is not None:
            raise ConfigError(f"{self.source}: {where}: removed. {instead}")

    def _value(self, value: Any, hint: Any, key: Key, where: str) -> Any:
        """``value`` as ``hint``, which is one of the few types that settings use."""
        kind, own = _bare(hint)
        metas = (*own, *key.metas)
        origin, args = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):  # "X | None", or "X | a table | None"
            inner, *others = (arg for arg in args if arg is not type(None))
            chosen = others[0] if others and isinstance(value, Mapping) else inner
            return None if value is None else self._value(value, chosen, key, where)
        if origin is tuple:
            return self._list(value, args[0], key, where)
        if dataclasses.is_dataclass(kind):
            return self._new(kind, value, where)
        if origin is Literal:
            if value not in args:
                raise self._wrong(where, f"one of {', '.join(map(str, args))}", value)
            return value
        if origin is not None and issubclass(origin, Mapping):
            if self.is_text and isinstance(value, str):
                found = [_PAIR.fullmatch(part) for part in value.split(",") if part.strip()]
                pairs = [pair for pair in found if pair is not None]
                if len(pairs) < len(found):  # which is not shown: it may be part of a secret
                    wanted = f"{self.source}: {where}: expected NAME=VALUE, with commas between"
                    raise ConfigError(f"{wanted}, found a part without =")
                value = {pair[1].strip(): pair[2].strip() for pair in pairs}
            if not isinstance(value, Mapping):
                raise self._wrong(where, "a table", value, key)
            for name in value:  # it would pass for a name of the user's own
                self._refuse_removed(f"{where}.{name}")
            if self.is_text and args[1] in (float, tuple[float, ...]):
                return {
                    name: self._value(
                        one if args[1] is float else one.split(), args[1], key, f"{where}.{name}"
                    )
                    for name, one in value.items()
                }
            return dict(value)
        found = self._scalar(value, kind, key, where)
        self._check(found, metas, key, where)
        not_path = said(metas, "not_path")
        is_path = kind is Path if not_path is None else not re.fullmatch(not_path, str(value))
        return self._placed(found) if is_path else found

    def _list(self, value: Any, kind: Any, key: Key, where: str) -> Any:
        is_url = said(key.metas, "schemes") is not None
        if isinstance(value, str) and not self.is_text and said(key.metas, "one_or_list"):
            value = [value]
        elif isinstance(value, str) and (self.is_text or is_url):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple):
            is_table = dataclasses.is_dataclass(kind)
            wanted = f"a list: [[{where}]]" if is_table else "a list"
            raise self._wrong(where, wanted, value, key)
        places = [where if is_url else f"{where}[{index}]" for index in range(len(value))]
        return tuple(
            self._value(entry, kind, key, place) for entry, place in zip(value, places, strict=True)
        )

    def _new(self, kind: Any, value: Any, where: str) -> Any:
        """A dataclass of a list of tables, as a tool in a list of tools."""
        if not isinstance(value, Mapping):
            raise self._wrong(where, "a table", value)
        keys = keys_of(kind)
        for name in value:  # before what is missing: it may be that, mistyped
            self._known(name, keys, f"{where}.")
        for name, key in keys.items():
            if key.default is dataclasses.MISSING and name not in value:
                raise self._wrong(f"{where}.{name}", "a value", None)
        found = {
            name: self._value(value[name], key.kind, key, f"{where}.{name}")
            for name, key in keys.items()
            if name in value
        }
        return kind(**found)

    def _scalar(self, value: Any, kind: Any, key: Key, where: str) -> Any:
        if self.is_text and isinstance(value, str):
            value = _from_text(value, kind)
        if kind is Path and isinstance(value, str | Path):
            return Path(value)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        raise self._wrong(where, TYPE_NAMES.get(kind, "a path"), value, key)

    def _check(self, value: Any, metas: tuple[Meta, ...], key: Key, where: str) -> None:
        range_ = bounds(metas)
        if range_ is not None and isinstance(value, int | float):
            low, high = range_
            is_unset = value == 0 and said(metas, "zero") is not None
            if not (low <= value <= high or is_unset):
                raise self._wrong(where, f"{low} to {high}", value)
        pattern = next((meta.pattern for meta in metas if meta.pattern), None)
        if pattern is not None and isinstance(value, str) and not re.fullmatch(pattern, value):
            raise self._wrong(where, said(metas, "wanted"), value, key)
        schemes = said(metas, "schemes")
        if schemes is None or _is_url(value, schemes):
            return
        wanted = ", ".join(schemes)
        if (providers := said(metas, "providers")) is not None:
            named = re.fullmatch(PROVIDER, value)
            if named and (named["url"] is None or _is_url(named["url"], providers)):
                return
            wanted += ", or NAME: of a provider"
        escaped = "; / ? # of a password as %2F %3F %23" if "@" in value else ""
        raise self._wrong(where, f"a URL ({wanted}{escaped})", value)

    def _placed(self, path: Any) -> Any:
        """A path of a file as the file means it. Path.expanduser raises without a user."""
        if self.folder is None:
            return path
        if isinstance(path, Path):
            return self.folder / os.path.expanduser(path)
        mark = FILE if path.startswith(FILE) else ""
        return mark + str(self.folder / os.path.expanduser(path.removeprefix(mark)))

    def _wrong(self, where: str, wanted: str, found: Any, key: Key | None = None) -> ConfigError:
        if key is not None and key.is_secret:
            shown = "another value"
        else:
            shown = "nothing" if found is None else keyless(repr(found))
        return ConfigError(f"{self.source}: {where}: expected {wanted}, found {shown[:80]}")


def _from_text(text: str, kind: Any) -> Any:
    """Text of the environment as a TOML-like value; what cannot be read stays text."""
    if kind is bool:
        return BOOLEANS.get(text.lower(), text)
    try:
        return kind(text) if kind in (int, float) else text
    except ValueError:
        return text


def _is_url(url: str, schemes: Iterable[str]) -> bool:
    """Check before any model is loaded that a service's address is one."""
    try:
        parts = urlsplit(url)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
