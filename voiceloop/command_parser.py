"""How the command line is read: argparse, with refusals that help.

Owns what a person is told of a mistyped command or option. `cli.py` says which there are.
"""

from __future__ import annotations

import argparse
from typing import Any, TypeAlias

from voiceloop.config_reader import nearest


class CommandParser(argparse.ArgumentParser):
    """A parser whose commands refuse what they do not know themselves, and name the nearest.

    argparse leaves it to the parser above a command, whose usage has none of the command's options.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [name for action in self._actions for name in action.option_strings]
            self.error(f"expected a known option, found {unknown[0]}{nearest(unknown[0], options)}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        known = list(action.choices or ())
        if known and value not in known:
            wanted = f"expected one of {', '.join(known)}, found {value!r}{nearest(value, known)}"
            raise argparse.ArgumentError(action, wanted)


Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"
