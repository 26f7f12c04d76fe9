"""``voiceloop init``: asks, and writes the folder."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from voiceloop.errors import InvalidRequest
from voiceloop.new_agent.files import write
from voiceloop.new_agent.options import OPTIONS, Option, listed, wanted_of


def run_init(chosen: argparse.Namespace) -> int:
    """Returns the exit code. Raises: InvalidRequest."""
    if chosen.list_options:
        print(json.dumps(listed(), indent=1))
        return 0
    folder: Path = chosen.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidRequest(f"expected a new or empty folder, found {str(folder)!r} with content")
    named = {one.name: getattr(chosen, one.name) for one in OPTIONS}
    answers = {name: text for name, text in named.items() if text is not None}
    if sys.stdin.isatty() and not chosen.defaults:
        answers |= {one.name: _ask(one) for one in OPTIONS if one.name not in answers}
    try:
        files = write(folder, wanted_of(answers))
    except OSError as error:
        raise InvalidRequest(f"expected to write into {str(folder)!r}, found: {error}") from error
    print("wrote " + "  ".join(str(file) for file in files))
    print(f"talk to it:  cd {folder} && voiceloop serve --config server.toml")
    print(f"test it:     cd {folder} && python test_agent.py")
    return 0


def _ask(option: Option) -> str:
    """Return what was typed; nothing: the default."""
    shown = f" [{option.default}]" if option.default else ""
    return input(f"{option.question}{shown} ").strip() or option.default
