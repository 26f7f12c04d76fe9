"""The page of all settings is made of their declarations, and each of these is whole."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import get_args

from tests.voiceloop.config_page import (
    BASIC,
    EXPERIMENTAL,
    FIRST_KEYS,
    PAGE,
    flags,
    keys_with_lists,
    written,
)
from voiceloop.agent import AgentConfig
from voiceloop.config import FOREIGN, AheadPart, Config, all_keys, load_config
from voiceloop.listening.release import PATIENCE

TEXT = PAGE.read_text(encoding="utf-8")
SERVER = keys_with_lists(Config)
AGENT = keys_with_lists(AgentConfig)


def test_the_page_is_what_its_command_writes() -> None:
    assert written() == TEXT, "python -m tests.voiceloop.config_page"


def test_every_key_is_on_the_page() -> None:
    rows = re.findall(
        r"^\| `([\w.]+)` \|", TEXT.split("<!-- end of first keys -->")[1], re.MULTILINE
    )
    of_lists = {*AGENT, *SERVER} - {*all_keys(AgentConfig), *all_keys()}
    lists = {name.rpartition(".")[0] for name in of_lists}
    assert sorted(rows) == sorted([*SERVER, *AGENT, *lists, *PATIENCE, *get_args(AheadPart)])


def test_a_level_is_of_a_key_that_there_is() -> None:
    assert BASIC | EXPERIMENTAL <= SERVER.keys() | AGENT.keys()
    assert not BASIC & EXPERIMENTAL and len(FIRST_KEYS) == 10


def test_the_first_keys_are_taken_as_shown(tmp_path: Path) -> None:
    part = TEXT.split("<!-- first keys -->")[1].split("<!-- end of first keys -->")[0]
    examples = re.findall(r"`([^`]+ = [^`]+)` \|$", part, re.MULTILINE)
    for name in ("keys", "llm-key"):
        (tmp_path / name).write_text("x" * 20, encoding="utf-8")
    text = "\n".join(examples).replace("/etc/voiceloop/", f"{tmp_path}/")
    path = tmp_path / "server.toml"
    path.write_text(text, encoding="utf-8")
    assert load_config(path, environ={}).llm_model == "Qwen/Qwen3-8B"


def test_every_description_is_told_in_a_sentence_first() -> None:
    for path, key in (SERVER | AGENT).items():
        assert key.description.endswith("."), path
        assert len(key.summary) <= 120 and "](" not in key.summary, path


def test_every_engine_key_has_a_flag() -> None:
    flagged = flags()
    assert {path for path in SERVER if path.startswith("engine.")} <= set(flagged)
    assert {"host", "port", "preset", "agent"} <= set(flagged)


def test_the_waits_on_the_page_are_those_that_ship() -> None:
    page = TEXT.split("### The end of the caller's turn")[1].split("###")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert rows == [
        (name, f"{one.cut_cost_s:g} s", f"{one.least_ms:.0f} ms", f"{one.longest_ms / 1000:g} s")
        for name, one in PATIENCE.items()
    ]


def test_every_part_of_the_work_ahead_is_told() -> None:
    page = TEXT.split("### What is done ahead")[1].split("###")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == get_args(AheadPart)


def test_variables_that_set_nothing_are_named() -> None:
    for name in FOREIGN:
        assert f"`{name}`" in TEXT


# Of the same name and value, and another thing: by file and name.
NO_DEFAULT_OF_A_KEY = {
    ("admission/overload.py", "share"),
    ("workers/backlog.py", "share"),
}


def defaults_in(path: Path) -> Iterator[tuple[str, object]]:
    """The literal defaults of fields and parameters in a file, by their names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        pairs: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            value = node.value
            is_key = isinstance(value, ast.Call) and getattr(value.func, "id", "") == "key"
            pairs = [(node.target.id, value.args[0] if is_key else value)]  # type: ignore[union-attr]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [*node.args.posonlyargs, *node.args.args]
            late = names[len(names) - len(node.args.defaults) :]
            pairs = [
                (one.arg, default) for one, default in zip(late, node.args.defaults, strict=True)
            ]
            named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            pairs += [(one.arg, default) for one, default in named]
        for name, given in pairs:
            with suppress(ValueError, TypeError):
                yield name, ast.literal_eval(given)  # type: ignore[arg-type]


def test_a_default_stands_once() -> None:
    """What a key is without a value, no field or parameter of its name says again."""
    room = PAGE.parent
    defaults = {
        (path.rpartition(".")[2], json.dumps(key.default, default=str))
        for path, key in (SERVER | AGENT).items()
        if key.default
    }
    found = Counter(
        (name, said, str(path.relative_to(room)))
        for path in room.rglob("*.py")
        if "recipes" not in path.parts
        for name, value in defaults_in(path)
        if (name, said := json.dumps(value, default=str)) in defaults
        and (str(path.relative_to(room)), name) not in NO_DEFAULT_OF_A_KEY
    )
    places = Counter((name, said) for name, said, _ in found.elements())
    assert not {each: n for each, n in places.items() if n > 1}, sorted(found)
