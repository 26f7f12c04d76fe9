"""What people read outside of pages is plain too: help, errors, and what each part of the code is.

A sentence has 25 words at most. A command says what it does, a flag what to do. An error of a field
says what was expected and found there; any other says what is wrong, never "found another".
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import audio.errors
import clients.errors
import voiceloop.errors
from tests.manual.reference import parsers
from tests.plain_words import MOST_WORDS, NO_BEGINNING, words_of
from tests.tables import each_row
from tests.test_layering import ROOMS, python_files
from tests.voiceloop.config_page import flags
from voiceloop.cli import build_parser

COMMANDS = parsers(build_parser())
SOURCES = [path for room in ROOMS for path in python_files(room) if "recipes" not in path.parts]
ERRORS = {
    name
    for module in (voiceloop.errors, clients.errors, audio.errors)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Exception)
}
# Said of a thing that was found: they tell nobody what is wrong.
VAGUE = re.compile(r"found (?:another|one|it|them|others|something else|none of it)\.?$")
# A key of a file, a field of an event, a flag: the sentence is about what stands there.
OF_A_FIELD = re.compile(r"^(?:[\w.\[\]{}-]+:|\{)")


def long_sentences(text: str) -> list[str]:
    return [one for one in words_of(text).sentences if len(one.split()) > MOST_WORDS]


@each_row("name", COMMANDS)
def test_a_command_says_what_it_does_and_has_an_example(name: str) -> None:
    parser = COMMANDS[name]
    assert re.match(r"[A-Z]\w+s\b", parser.description or ""), parser.description
    assert not long_sentences(parser.description or "")
    is_group = any(isinstance(one, argparse._SubParsersAction) for one in parser._actions)
    assert is_group or f"voiceloop {name}" in (parser.epilog or "")


@each_row("name", COMMANDS)
def test_a_flag_says_what_to_do(name: str) -> None:
    of_keys = set(flags())
    for action in COMMANDS[name]._actions:
        told = action.help or ""
        assert isinstance(action, argparse._SubParsersAction) or told, action.dest
        assert not long_sentences(told), told
        is_question = "?" in told  # of `init`, which asks them
        is_own = action.dest != "help" and action.dest not in of_keys and action.option_strings
        if is_own and not is_question:
            assert told[0].isupper() and not re.match(r"(?:Of|Where|Who|Which|The)\b", told), told


def literals(node: ast.expr) -> str | None:
    """What is written, with braces for what is put in; None: it is made elsewhere."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    return None


def found_in(path: Path) -> Iterator[tuple[str, str]]:
    """What is wrong with an error's sentence or a docstring's first, and where it stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            kind = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if kind not in ERRORS or not node.args or not (text := literals(node.args[0])):
                continue
            is_vague = VAGUE.search(text) and not OF_A_FIELD.match(text)
            if long_sentences(text) or (kind != "ConfigError" and is_vague):
                yield f"{path.name}:{node.lineno}", text
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            told = (ast.get_docstring(node) or "").partition("\n\n")[0]
            parts = re.split(r"[,;:]\s", " ".join(told.split()))  # of a list each is read alone
            yield from ((path.name, one) for part in parts for one in long_sentences(part))
            if (
                NO_BEGINNING.match(told) and "conformance" not in path.parts
            ):  # rules, said to people
                yield path.name, told


def test_an_error_and_a_docstring_are_short_and_say_what_is_wrong_or_what_it_is() -> None:
    wrong = [found for path in SOURCES for found in found_in(path)]
    assert len(SOURCES) > 400
    assert not wrong, wrong


def test_a_long_or_vague_error_and_a_docstring_without_a_thing_in_front_are_found(
    tmp_path: Path,
) -> None:
    path = tmp_path / "said.py"
    long = "word " * (MOST_WORDS + 1)
    path.write_text(
        f'"""{long.strip()}."""\nraise BackendError("expected a key, found another")\n'
        f'raise ConfigError("{long.strip()}.")\ndef f():\n    """Which does it."""\n'
    )
    assert len(list(found_in(path))) == 4
