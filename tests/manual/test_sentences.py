"""What people read outside of pages is plain too: help, errors, and what each part of the code is.

A sentence has 25 words at most. A command says what it does, a flag what to do. An error of a field
says what was expected and found there; any other says what is wrong, never "found another".
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import audio.errors
import clients.errors
import voiceloop.errors
from tests.manual.reference import parsers
from tests.plain_words import MOST_WORDS, NO_BEGINNING, words_of
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


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_it_does_and_has_an_example(name: str) -> None:
    parser = COMMANDS[name]
    assert re.match(r"[A-Z]\w+s\b", parser.description or ""), parser.description
    assert not long_sentences(parser.description or "")
    is_group = any(isinstance(one, argparse._SubParsersAction) for one in parser._actions)
    assert is_group or f"voiceloop {name}" in (parser.epilog or "")


@pytest.mark.parametrize("name", COMMANDS)
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


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def errors_of(path: Path) -> Iterator[tuple[int, str, str]]:
    for node in nodes_of(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in ERRORS and node.args and (text := literals(node.args[0])):
                yield node.lineno, name, text


def test_an_error_is_short_and_says_what_is_wrong() -> None:
    found = [(path, *one) for path in SOURCES for one in errors_of(path)]
    assert len(found) > 400
    wrong = [
        (f"{path.name}:{line}", text)
        for path, line, kind, text in found
        if long_sentences(text)
        or (kind != "ConfigError" and VAGUE.search(text) and not OF_A_FIELD.match(text))
    ]
    assert not wrong, wrong


def test_what_a_part_of_the_code_is_stands_in_a_short_sentence_with_the_thing_in_front() -> None:
    wrong = []
    for path in SOURCES:
        for node in nodes_of(path):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                told = (ast.get_docstring(node) or "").partition("\n\n")[0]
                parts = re.split(r"[,;:]\s", " ".join(told.split()))  # of a list each is read alone
                wrong += [(path.name, one) for part in parts for one in long_sentences(part)]
                if (
                    NO_BEGINNING.match(told) and "conformance" not in path.parts
                ):  # rules, said to people
                    wrong.append((path.name, told))
    assert not wrong, wrong
