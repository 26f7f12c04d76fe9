"""The tables of ``CONFIG.md``, made of the declarations: ``python -m tests.voiceloop.config_page``.

Writes each table anew between its marks in the page, and prints how many keys there are. What a
cell has no room for stands below its table; what stands between the tables is written by hand.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import types
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from tests.plain_words import MOST_CELL_WORDS, words_of
from voiceloop.agent import AgentConfig
from voiceloop.cli import build_parser
from voiceloop.config import Config, all_keys
from voiceloop.config_reader import Key, bounds, said

PAGE = Path(__file__).resolve().parents[2] / "voiceloop" / "docs" / "CONFIG.md"
MARKED = re.compile(r"(<!-- keys of (\w+): ([\w.]*) -->\n).*?(\n<!-- end of keys -->)", re.DOTALL)
FIRST = re.compile(r"(<!-- first keys -->\n).*?(<!-- end of first keys -->)", re.DOTALL)
# What most people set first, with an example. A tenth of all keys is basic, and a key that nobody
# names here is advanced.
FIRST_KEYS = {
    "agent": '"my-agent.toml"',
    "llm_url": '"http://127.0.0.1:8000/v1"',
    "llm_model": '"Qwen/Qwen3-8B"',
    "llm_key": '"file:/etc/voiceloop/llm-key"',
    "host": '"0.0.0.0"',
    "keys_file": '"/etc/voiceloop/keys"',
    "certfile": '"cert.pem"',
    "keyfile": '"key.pem"',
    "allowed_origins": '["https://shop.example"]',
    "metrics_key": '"change-me-0123456789"',
}
BASIC = {
    *FIRST_KEYS,
    *("port", "preset", "agents", "reload", "keys", "log_level"),
    *("stt_url", "stt_model", "stt_key", "tts_url", "tts_model", "tts_key"),
    *("limits.max_sessions", "limits.session_minutes", "webrtc.port"),
    *("recording.folder", "recording.consent", "recording.keep_days"),
    *("phone.public_url", "sip.port", "sip.allow"),
    *("name", "instructions", "greeting", "voice", "speed", "language", "python", "eagerness"),
    *("hotwords", "try_saying", "fallback", "knowledge.source", "answer.questions", "answer.text"),
    *("tools.name", "tools.description", "tools.parameters", "tools.side_effect_free"),
    *("tools.result", "tools.url", "tools.python", "mcp.name", "mcp.url"),
    *("slots.asked", "slots.kind", "slots.name", "transfers.name", "transfers.to", "call.tools"),
}
# Nobody has run it with what it is for (a carrier, a GPU, a model that hears), or no measurement
# sets its value.
EXPERIMENTAL = {
    *("canary", "llm_adapter"),
    *("llm_hears", "realtime_url"),
    *("cascade.large_share", "cascade.verify"),
    *("phone.secrets", "phone.audiosocket_at"),
    *("sip.trunk.uri", "sip.trunk.password", "sip.trunk.dial_to"),
    *("sip.trunk.register", "call.machine", "call.message", "call.screening", "transfers.warm"),
}
SENTENCE = re.compile(r"(?<=[.?!]) (?=[A-Z`0-9])")
NOTHING = "-"
KIND_NAMES = {
    str: "text",
    int: "a number",
    float: "a number",
    bool: "`true`, `false`",
    Path: "a path",
}


def lists_of(kind: type[Any]) -> dict[str, type[Any]]:
    """The lists of tables in a file, as ``tools``, with what one of each is."""
    found = {}
    for name, key in all_keys(kind).items():
        inner = next(iter(get_args(key.kind)), None)
        if get_origin(key.kind) is tuple and dataclasses.is_dataclass(inner):
            found[name] = inner
    return found


def keys_with_lists(kind: type[Any]) -> dict[str, Key]:
    """Every key that a file may hold; of a list of tables its own keys stand for it."""
    found: dict[str, Key] = {}
    lists = lists_of(kind)
    for name, key in all_keys(kind).items():
        found |= all_keys(lists[name], f"{name}.") if name in lists else {name: key}
    return found


def n_keys() -> int:
    """Of server and agent files together."""
    return len(keys_with_lists(Config)) + len(keys_with_lists(AgentConfig))


def flags() -> dict[str, str]:
    """The flags of `serve` and `gateway`, by the key that each sets."""
    [commands] = [
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    actions = [*commands.choices["gateway"]._actions, *commands.choices["serve"]._actions]
    flags = {one.dest: one.option_strings[0] for one in reversed(actions) if one.option_strings}
    return {dest: flag for dest, flag in flags.items() if dest in all_keys()}


def written() -> str:
    """The page as it has to be."""
    of_serve = flags()
    rooms: Mapping[str, type[Any]] = {"server": Config, "agent": AgentConfig}

    def table(match: re.Match[str]) -> str:
        kind, name = rooms[match[2]], match[3]
        lists = lists_of(kind)
        keys = all_keys(kind) if name not in lists else all_keys(lists[name], f"{name}.")
        chosen = {path: key for path, key in keys.items() if path.rpartition(".")[0] == name}
        assert chosen, f"no keys of {name!r}"
        flagged = of_serve if kind is Config else {}  # an agent's key may have a server's name
        return match[1] + "\n".join(_rows(chosen, flagged)) + match[4]

    page = MARKED.sub(table, PAGE.read_text(encoding="utf-8"))
    return FIRST.sub(lambda match: match[1] + "\n".join(_first_rows()) + "\n" + match[2], page)


def level_of(path: str) -> str:
    if path in EXPERIMENTAL:
        return "experimental"
    return "basic" if path in BASIC else "advanced"


def _first_rows() -> Iterable[str]:
    yield from (_row(("key", "what it is for", "example")), "|---|---|---|")
    for path, value in FIRST_KEYS.items():
        yield _row((f"`{path}`", all_keys()[path].summary.rstrip("."), f"`{path} = {value}`"))


def _rows(keys: Mapping[str, Key], of_serve: Mapping[str, str]) -> Iterable[str]:
    has_flags = bool(set(keys) & set(of_serve))
    head = ["key", "level", *["flag"] * has_flags, "default", "values", "meaning"]
    yield _row(head)
    yield _row(["---"] * len(head)).replace(" ", "")
    notes: list[str] = []
    for path, key in keys.items():
        assert key.description, f"expected `{path}: ... = key(default, description)`, found no text"
        flag = [f"`{of_serve[path]}`" if path in of_serve else NOTHING] * has_flags
        meaning, rest = in_short(key.description)
        of_key = [f"`{path}`", level_of(path), *flag, _default(key), _values(key)]
        yield _row([*of_key, meaning.rstrip(".")])
        if rest:
            notes += [f"- `{path}`: {rest}"]
    if notes:
        yield from ("", *notes)


def in_short(description: str) -> tuple[str, str]:
    """What fits a cell, and what stands below the table: whole sentences, the first always."""
    sentences = SENTENCE.split(description)
    n_words = list(accumulate(len(words_of(one).sentences[0].split()) for one in sentences))
    n_fit = max(1, sum(n <= MOST_CELL_WORDS for n in n_words))
    return " ".join(sentences[:n_fit]), " ".join(sentences[n_fit:])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _default(key: Key) -> str:
    if key.default is dataclasses.MISSING:
        return "needed"
    return NOTHING if key.default is None else f"`{json.dumps(key.default, default=dict)}`"


def _values(key: Key) -> str:
    kind = key.kind
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(arg for arg in get_args(kind) if arg is not type(None))
    range_, zero = bounds(key.metas), said(key.metas, "zero")
    if range_ is not None:
        return f"{range_[0]} to {range_[1]}" + (f"; 0: {zero}" if zero else "")
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if said(key.metas, "schemes"):
        provider = ", or a provider" if said(key.metas, "providers") else ""
        return f"URL ({', '.join(said(key.metas, 'schemes'))}{provider})"
    if get_origin(kind) is tuple:
        is_table = dataclasses.is_dataclass(get_args(kind)[0])
        if get_origin(get_args(kind)[0]) is Literal:
            return f"a list of {', '.join(f'`{value}`' for value in get_args(get_args(kind)[0]))}"
        return "tables" if is_table else "a list"
    return KIND_NAMES.get(kind, "a table")


def main() -> None:
    PAGE.write_text(written(), encoding="utf-8")
    print(f"{n_keys()} keys of server and agent files")


if __name__ == "__main__":
    main()
