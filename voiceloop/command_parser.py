"""How the command line is read: argparse, with refusals that help.

Owns what a person is told of a mistyped command or option, and of a package that a command wants
and does not find. `cli.py` says which commands there are.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias, get_args, get_origin

from voiceloop.config import all_keys
from voiceloop.config_reader import Key, nearest, said
from voiceloop.removed_keys import instead_of_flag

# The package that a missing module belongs to, and the extra that brings it.
EXTRAS = {
    "torch": "embedded",
    "safetensors": "embedded",
    "tokenizers": "embedded",
    "jinja2": "embedded",
    "transformers": "cpu",
    "espeakng_loader": "embedded",
    "hibari": "embedded",
    "moonshine_voice": "embedded",
    "matplotlib": "embedded",
    "sounddevice": "talk",
    "ray": "cluster",
}
METAVARS: Mapping[Any, str] = {
    int: "NUMBER",
    float: "NUMBER",
    Path: "PATH",
    Path | None: "PATH",
}


def remedy_for(error: ModuleNotFoundError) -> str | None:
    """Return what brings a module that is missing; None where nothing that can be named does."""
    extra = EXTRAS.get((error.name or "").split(".")[0])
    if extra is None:
        return None
    return f"expected {error.name}, found it not installed: pip install 'voiceloop[{extra}]'"


class HelpFormatter(argparse.HelpFormatter):
    """Leaves examples as they are, so that they can be pasted."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example") else super()._fill_text(text, width, indent)


class Subcommands(argparse._SubParsersAction):  # type: ignore[type-arg]  # no generic at run time
    """Commands whose line in the list stands in their own help too."""

    def add_parser(self, name: str, **options: Any) -> Any:
        return super().add_parser(name, **{"description": options.get("help"), **options})


class CommandParser(argparse.ArgumentParser):
    """A parser whose commands refuse what they do not know themselves, and name the nearest.

    argparse leaves it to the parser above a command, whose usage has none of the command's options.
    examples: command lines that stand below the arguments.
    """

    def __init__(self, *, examples: Sequence[str] = (), **options: Any) -> None:
        if examples:
            title = "example:" if len(examples) == 1 else "examples:"
            options["epilog"] = "\n  ".join((title, *examples))
        super().__init__(**{"formatter_class": HelpFormatter, **options})
        self.register("action", "parsers", Subcommands)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            instead = instead_of_flag(unknown[0])
            if instead is not None:
                self.error(f"{unknown[0]}: removed. {instead}")
            options = [name for action in self._actions for name in action.option_strings]
            self.error(f"expected a known option, found {unknown[0]}{nearest(unknown[0], options)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """One sentence: usage of a hundred options would hide it."""
        self.exit(2, f"{self.prog}: error: {message} (all options: {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        known = list(action.choices or ())
        if known and value not in known:
            wanted = f"expected one of {', '.join(known)}, found {value!r}{nearest(value, known)}"
            raise argparse.ArgumentError(action, wanted)


def add_keys(command: argparse._ActionsContainer, paths: Iterable[str], prefix: str = "") -> None:
    """A flag for each of these keys of the configuration: ``--engine-kv`` for ``engine.kv``.

    What a flag is given is read as text of the environment is. prefix: of paths, all of whose keys
    are meant, as ``engine.``.
    """
    keys = all_keys()
    for path in (*paths, *(path for path in keys if prefix and path.startswith(prefix))):
        key = keys[path]
        told = key.summary.replace("`", "")
        options: dict[str, Any] = {"dest": path, "default": None}
        if get_origin(key.kind) is Literal:
            options["choices"] = get_args(key.kind)
        elif key.kind is bool:  # the flag alone means yes
            options |= {"action": "store_const", "const": "true"}
        else:
            options["metavar"] = METAVARS.get(key.kind, "NAME")
        command.add_argument(flag_of(path), help=f"{told}{_default(key)}", **options)


def flag_of(path: str) -> str:
    """The flag of a key, where it has one."""
    return "--" + path.replace(".", "-").replace("_", "-")


def _default(key: Key) -> str:
    """The default as the end of a help, where there is one."""
    default = key.default or said(key.metas, "zero")
    return f" (default: {default})" if default else ""


Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"
