"""How the command line is read: argparse, with refusals that help.

Owns what a person is told of a mistyped command or option, and of a package that a command wants
and does not find. `cli.py` says which commands there are.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, Literal, TypeAlias, get_args, get_origin

from voiceloop.config_reader import BOOLEANS, field_types, nearest
from voiceloop.removed_keys import instead_of_flag

# The package that a missing module belongs to, and the extra that brings it.
EXTRAS = {
    "torch": "embedded",
    "safetensors": "embedded",
    "tokenizers": "embedded",
    "jinja2": "embedded",
    "transformers": "cpu",
    "pocketsphinx": "embedded",
    "espeakng_loader": "embedded",
    "hibari": "embedded",
    "moonshine_voice": "embedded",
    "matplotlib": "embedded",
    "sounddevice": "talk",
    "ray": "cluster",
}


def remedy_for(error: ModuleNotFoundError) -> str | None:
    """What brings a module that is missing; None where nothing that can be named does."""
    extra = EXTRAS.get((error.name or "").split(".")[0])
    if extra is None:
        return None
    return f"expected {error.name}, found it not installed: pip install 'voiceloop[{extra}]'"


class CommandParser(argparse.ArgumentParser):
    """A parser whose commands refuse what they do not know themselves, and name the nearest.

    argparse leaves it to the parser above a command, whose usage has none of the command's options.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            instead = instead_of_flag(unknown[0])
            if instead is not None:
                self.error(f"{unknown[0]}: removed. {instead}")
            options = [name for action in self._actions for name in action.option_strings]
            self.error(f"expected a known option, found {unknown[0]}{nearest(unknown[0], options)}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        known = list(action.choices or ())
        if known and value not in known:
            wanted = f"expected one of {', '.join(known)}, found {value!r}{nearest(value, known)}"
            raise argparse.ArgumentError(action, wanted)


def add_table(command: argparse.ArgumentParser, table: str, kind: type[Any]) -> None:
    """A flag for each key of a configuration's table: ``--engine-kv`` for ``engine.kv``.

    kind: the table's dataclass, whose fields carry the words for the help as metadata "told".
    """
    group = command.add_argument_group(f"[{table}] of the configuration")
    kinds = field_types(kind)
    for field in dataclasses.fields(kind):
        name, told = f"--{table}-{field.name}".replace("_", "-"), field.metadata["told"]
        options: dict[str, Any] = {"dest": f"{table}.{field.name}", "default": None}
        value = kinds[field.name]
        if value is bool:
            options |= {"nargs": "?", "const": True, "type": _boolean, "metavar": "true|false"}
        elif get_origin(value) is Literal:
            options["choices"] = get_args(value)
        elif value in (int, float):
            options |= {"type": value, "metavar": "NUMBER"}
        else:
            options["metavar"] = "NAME" if value is str else "PATH"
        group.add_argument(name, help=f"{told} (default: {_written(field.default)})", **options)
        if value is bool:
            off, dest = name.replace("--", "--no-", 1), options["dest"]
            told = f"the same as {name} false"
            group.add_argument(off, dest=dest, action="store_const", const=False, help=told)


def _boolean(text: str) -> bool:
    found = BOOLEANS.get(text.lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"expected {', '.join(BOOLEANS)}, found {text!r}")
    return found


def _written(default: Any) -> str:
    """A default in the words of a help: 0 and none leave a setting to the preset."""
    if isinstance(default, bool):
        return "yes" if default else "no"
    return str(default) if default else "the preset's"


Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"
