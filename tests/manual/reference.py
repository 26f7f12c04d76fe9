"""The pages that are only looked up, made of the code: ``python -m tests.manual.reference``.

Writes the marked parts of EVENTS.md, HTTP.md, COMMANDS.md and MODEL_CARDS.md anew: the events of
the wire from their structs, the routes from ``/openapi.json``, the commands from the parser, the
models from `cards.py`. What stands between the marks is written by hand nowhere.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.manual import cards
from voiceloop.cli import build_parser
from voiceloop.http.openapi import KEYED, WRONG, description
from voiceloop.realtime.beta import RENAMED
from voiceloop.realtime.client_events import CLIENT_EVENTS
from voiceloop.realtime.events import ResponseBody, ServerEvent
from voiceloop.realtime.items import Item

DOCS = Path(__file__).resolve().parents[2] / "voiceloop" / "docs"
PAGES = ("EVENTS.md", "HTTP.md", "COMMANDS.md", "MODEL_CARDS.md")
MARKED = re.compile(r"(<!-- (\w+) of ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
KINDS = {"string": "text", "integer": "number", "boolean": "`true` or `false`", "null": "null"}
# What is sent to a client that asked for it alone: by which name it asks.
ASKED_BY = {
    "voiceloop.timeline": "timeline",
    "voiceloop.partial": "partials",
    "voiceloop.sources": "sources",
    "voiceloop.slot": "slots",
    "voiceloop.confirmation_requested": "confirmations",
    "voiceloop.session_expiring": "notices",
    "voiceloop.resume_ticket": "resume",
    "voiceloop.resumed": "resume",
}
OF_BETA = {"temperature": "; in the beta alone"}  # of a response
BOUND = 2**31  # of a number that is told; what is past it is no bound for a person
# Of every route that wants a key, and of every route with a body: told once, above the tables.
COMMON = {*KEYED, *WRONG}
Schema = dict[str, Any]


# --- what a schema says, in a cell ---------------------------------------------------------------


def kind_of(schema: Schema, known: Mapping[str, Schema]) -> str:
    """As "text", "10 to 7200", "a list of text"."""
    if "$ref" in schema:
        return kind_of(known[schema["$ref"].rpartition("/")[2]], known)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        kinds = dict.fromkeys(kind_of(one, known) for one in schema["anyOf"])
        return " or ".join(kinds)
    if schema.get("type") == "array":
        inner = kind_of(schema["items"], known) if "items" in schema else "values"
        return f"list of {inner}"
    least, most = schema.get("minimum", -BOUND), schema.get("maximum", BOUND)
    if -BOUND < least and most < BOUND:
        return f"{least:g} to {most:g}"
    if schema.get("format") == "binary":
        return "a file"
    kind = schema.get("type", "any")
    return KINDS.get(kind, kind)


def fields_of(
    schema: Schema, known: Mapping[str, Schema]
) -> Iterator[tuple[str, Schema, str, bool]]:
    """Name, schema, kind and whether it is needed."""
    needed = schema.get("required", ())
    for name, one in schema.get("properties", {}).items():
        yield name, one, kind_of(one, known), name in needed


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *(list(row) for row in rows)]
    assert len(lines) > 1, f"no rows of {lines[0]}"
    lines.insert(1, ["---"] * len(lines[0]))
    texts = [f"| {' | '.join(row)} |" for row in lines]
    texts[1] = texts[1].replace(" ", "")
    return "\n".join(texts) + "\n"


def first_line(kind: type[Any]) -> str:
    told = (kind.__doc__ or "").partition("\n\n")[0]
    return " ".join(told.split()).rstrip(".")


# --- events --------------------------------------------------------------------------------------


def server_events() -> dict[str, type[ServerEvent]]:
    found: dict[str, type[ServerEvent]] = {}
    waiting = list(ServerEvent.__subclasses__())
    while waiting:
        kind = waiting.pop(0)
        waiting = kind.__subclasses__() + waiting
        if "." in (tag := str(kind.__struct_config__.tag)) or tag == "error":
            found[tag] = kind
    return found


def events(chosen: str) -> str:
    """chosen: `client`, or the beginnings of the server's names."""
    if chosen == "client":
        return event_table({**CLIENT_EVENTS})
    prefixes = tuple(chosen.split())
    return event_table(
        {name: kind for name, kind in server_events().items() if name.startswith(prefixes)}
    )


def event_table(kinds: Mapping[str, type[msgspec.Struct]]) -> str:
    forms, known = msgspec.json.schema_components(tuple(kinds.values()))
    rows = []
    for (name, kind), form in zip(kinds.items(), forms, strict=True):
        whole = known[form["$ref"].rpartition("/")[2]]
        said = [
            f"`{field}` {told}"
            for field, _, told, _ in fields_of(whole, known)
            if field not in ("type", "event_id")
        ]
        asked = f". Ask for it by `{ASKED_BY[name]}`" if name in ASKED_BY else ""
        rows.append((f"`{name}`", ", ".join(said) or "-", first_line(kind) + asked))
    return table(("event", "fields", "what it says"), rows)


def objects(chosen: str) -> str:
    """`response`: of `response.created` and `response.done`. `items`: each kind of item."""
    if chosen == "response":
        (form,), known = msgspec.json.schema_components((ResponseBody,))
        whole = known[form["$ref"].rpartition("/")[2]]
        rows = ((f, kind) for f, _, kind, _ in fields_of(whole, known))
        return table(("field", "value"), ((f"`{f}`", k + OF_BETA.get(f, "")) for f, k in rows))
    if chosen == "beta":
        return table(("GA", "beta"), ((f"`{ga}`", f"`{old}`") for ga, old in RENAMED.items()))
    kinds = msgspec.inspect.type_info(Item)
    assert isinstance(kinds, msgspec.inspect.UnionType) and chosen == "items"
    rows = []
    for kind in kinds.types:
        assert isinstance(kind, msgspec.inspect.StructType)
        names = [f"`{one.encode_name}`" for one in kind.fields if one.encode_name != "object"]
        rows.append((f"`{kind.tag}`", ", ".join(names), first_line(kind.cls)))
    return table(("type", "fields", "what it is"), rows)


# --- routes --------------------------------------------------------------------------------------


def routes(chosen: str) -> str:
    """The routes whose paths begin so, then what each takes."""
    told = description()
    known = told["components"]["schemas"]
    found = [
        (f"{method.upper()} {path}", one)
        for path, methods in told["paths"].items()
        if path.startswith(tuple(chosen.split()))
        for method, one in methods.items()
    ]
    rows = []
    for name, one in found:
        (status, good), *failed = one["responses"].items()
        codes = [
            f"[{code}](ERRORS.md#{code})"
            for _, answer in failed
            for code in re.findall(r"`([a-z_]+)`:", answer["description"])
            if code not in COMMON
        ]
        is_keyed = "security" in one
        rows.append((
            f"`{name}`", one["summary"].rstrip("."), f"{status}. {good['description']}".rstrip("."),
            "a key" if is_keyed else "-", ", ".join(codes) or "-",
        ))  # fmt: skip
    text = table(("route", "what it does", "answer", "needs", "errors"), rows)
    for name, one in found:
        for body in one.get("requestBody", {}).get("content", {}).values():
            text += f"\n**`{name}`** takes {'a form' if 'file' in str(body) else 'JSON'}:\n\n"
            text += body_table(body["schema"], known)
    return text


def body_table(schema: Schema, known: Mapping[str, Schema]) -> str:
    whole = known[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    rows = [
        (
            f"`{name}`", kind.removesuffix(" or null"), default_of(form, is_needed),
            form.get("description", "-").rstrip("."),
        )
        for name, form, kind, is_needed in fields_of(whole, known)
    ]  # fmt: skip
    if not rows:
        return f"{whole['description']}\n"
    if all(row[3] == "-" for row in rows):
        return table(("field", "value", "default"), (row[:3] for row in rows))
    return table(("field", "value", "default", "meaning"), rows)


def default_of(form: Schema, is_needed: bool) -> str:
    if is_needed:
        return "needed"
    default = form.get("default")
    if isinstance(default, dict):
        default = {name: value for name, value in default.items() if value is not None}
    return "-" if default in (None, {}, [], (), "") else f"`{json.dumps(default)}`"


# --- commands ------------------------------------------------------------------------------------

DEFAULT = re.compile(r"\s*\(default: (.*?)\)$")


def parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Each command, and each verb of one, by its words."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                found[name] = inner
                found |= {f"{name} {verb}": one for verb, one in parsers(inner).items()}
    return found


def commands(chosen: str) -> str:
    """One command: what it does, its example, its arguments; then so of each of its verbs."""
    known = parsers(build_parser())
    return "\n".join(command(name, one) for name, one in known.items() if name.split()[0] == chosen)


def command(name: str, parser: argparse.ArgumentParser) -> str:
    level = "###" if " " not in name else "####"
    told = " ".join((parser.description or "").split())
    told = told.replace("<", "&lt;")
    text = f"{level} voiceloop {name}\n\n{told}\n"
    example = (parser.epilog or "").partition(":\n")[2]
    if example:
        lines = "\n".join(line.strip() for line in example.strip().splitlines())
        text += f"\n```\n{lines}\n```\n"
    rows = [row_of(one, parser) for one in parser._actions if shows(one)]
    if rows:
        text += "\n" + table(("argument", "default", "what it does"), rows)
    return text


def shows(action: argparse.Action) -> bool:
    hidden = (argparse._HelpAction, argparse._SubParsersAction)
    return not isinstance(action, hidden) and action.help != argparse.SUPPRESS


def row_of(action: argparse.Action, parser: argparse.ArgumentParser) -> tuple[str, str, str]:
    told = parser._get_formatter()._expand_help(action)
    default = DEFAULT.search(told)
    value = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
    if action.choices:
        value = "|".join(str(one) for one in action.choices)
    name = f"{action.option_strings[-1]} {value}".strip() if action.option_strings else str(value)
    meaning = DEFAULT.sub("", told).rstrip(".")
    shown = f"`{name}`".replace("|", r"\|")
    if default is None:
        return shown, "-", meaning
    return shown, default[1] if " " in default[1] else f"`{default[1]}`", meaning


# --- the pages -----------------------------------------------------------------------------------

PARTS = {
    "events": events,
    "objects": objects,
    "routes": routes,
    "commands": commands,
    "facts": cards.facts,
    "measured": cards.measured,
    "limits": cards.limits,
}


def written(page: str) -> str:
    """The page as it has to be."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return MARKED.sub(lambda mark: mark[1] + PARTS[mark[2]](mark[3]) + mark[4], text)


def marks(page: str, part: str) -> list[str]:
    """What a page asks for of a part."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [chosen for _, name, chosen, _ in MARKED.findall(text) if name == part]


def main() -> None:
    for page in PAGES:
        (DOCS / page).write_text(written(page), encoding="utf-8")


if __name__ == "__main__":
    main()
