"""The pages a newcomer reads name only files, modules, commands, flags, variables that exist."""

from __future__ import annotations

import argparse
import re
from importlib.util import find_spec
from pathlib import Path

from tests.plain_words import words_of
from tests.tables import each_row
from voiceloop.cli import build_parser
from voiceloop.config import FOREIGN, PREFIX, Config, all_keys, load_config, variable_of

ROOT = Path(__file__).resolve().parents[1]
MANUAL = sorted(f"voiceloop/docs/{path.name}" for path in (ROOT / "voiceloop/docs").glob("*.md"))
PAGES = (
    "README.md", "NOTICE.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", *MANUAL,
    "engine/embedded/README.md", "engine/embedded/smollm2-135m/README.md",
    "audio/embedded/end_of_voice/CARD.md", "audio/embedded/for_agent/CARD.md",
    "benchmarks/RESULTS.md", "benchmarks/LOG.md",
)  # fmt: skip
PLAIN_PAGES = ("README.md", "SECURITY.md", "CONTRIBUTING.md", *MANUAL)
MOST_WORDS_A_SENTENCE = 18.0  # on average
MOST_LONG_SENTENCES, MOST_LONG_CELLS = 0.02, 0.05
REFERENCE = (  # is looked up
    "COMMANDS", "CONFIG", "ERRORS", "EVENTS", "HTTP", "MODEL_CARDS", "PROTOCOL",
)  # fmt: skip
MOST_WORDS = 35_000  # of all others together
ROOMS = ("voiceloop", "engine", "audio", "clients", "tests", "benchmarks")
LOG = (ROOT / "benchmarks/LOG.md").read_text(encoding="utf-8")
CITED = re.compile(r'LOG\.md, ([\d-]{10}), "([^"]+)"')
LINK = re.compile(r"\]\(([^)#:]+)(?:#[\w-]+)?\)")
SECTION_LINK = re.compile(r"\]\(#([\w-]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
# Not `/v1/audio/speech`, nor the media types `audio/pcm` and its like.
ROOM_PATH = re.compile(rf"(?<![\w/])(?!audio/pcm)(?:{'|'.join(ROOMS)})/[\w./*-]+")
MODULE = re.compile(r"python -m ([\w.]+)")
COMMAND = re.compile(r"(?:^|`|\$ )voiceloop ([a-z]+)([^`\n#]*)", re.MULTILINE)
FLAG = re.compile(r"(?<!\S)--[a-z-]+")
VARIABLE = re.compile(rf"{PREFIX}[A-Z_]+[A-Z]")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def flags_by_command() -> dict[str, set[str]]:
    """Of every subcommand, the flags that it and its own subcommands take."""
    found: dict[str, set[str]] = {}

    def visit(parser: argparse.ArgumentParser, flags: set[str]) -> None:
        for action in parser._actions:
            flags.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                for name, inner in action.choices.items():
                    visit(inner, flags if parser is not top else found.setdefault(name, set()))

    top = build_parser()
    visit(top, set())
    return found


@each_row("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in LINK.findall(text_of(page)):
        assert (ROOT / page).parent.joinpath(target).exists(), target


@each_row("page", PAGES)
def test_links_within_a_page_lead_to_a_heading(page: str) -> None:
    text = text_of(page)
    headings = {anchor(heading) for heading in HEADING.findall(text)}
    assert set(SECTION_LINK.findall(text)) <= headings


def anchor(heading: str) -> str:
    """What a link within a page calls this heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@each_row("page", PAGES)
def test_files_in_the_text_are_there(page: str) -> None:
    for code in CODE.findall(text_of(page)):
        for path in ROOM_PATH.findall(code):
            assert list(ROOT.glob(path.rstrip("/."))), path


@each_row("page", PAGES)
def test_modules_that_are_to_be_run_are_there(page: str) -> None:
    for name in MODULE.findall(text_of(page)):
        if name.split(".")[0] in ROOMS:
            assert find_spec(name) is not None, name


@each_row("page", PAGES)
def test_commands_exist_and_take_the_flags_they_are_shown_with(page: str) -> None:
    known = flags_by_command()
    for command, rest in COMMAND.findall(text_of(page)):
        assert command in known, command
        assert set(FLAG.findall(rest)) <= known[command], (command, rest)


@each_row("page", PAGES)
def test_variables_are_read(page: str) -> None:
    known = {variable_of(path) for path in all_keys()} | FOREIGN
    assert set(VARIABLE.findall(text_of(page))) <= known


@each_row("page", PLAIN_PAGES)
def test_a_plain_page_has_short_sentences_and_cells(page: str) -> None:
    words = words_of(text_of(page))
    assert words.mean <= MOST_WORDS_A_SENTENCE
    assert len(words.long_sentences) <= MOST_LONG_SENTENCES * len(words.sentences)
    assert len(words.long_cells) <= MOST_LONG_CELLS * max(1, len(words.cells))


def test_a_long_sentence_and_a_long_cell_are_counted() -> None:
    words = words_of("One two. " + "word " * 26 + "end.\n\n| " + "word " * 21 + " | b |\n")
    assert len(words.long_sentences) == len(words.long_cells) == 1


def test_the_configuration_in_the_readme_is_taken(tmp_path: Path) -> None:
    [block] = re.findall(r"```toml\n(.*?)```", text_of("README.md"), re.DOTALL)
    path = tmp_path / "voiceloop.toml"
    path.write_text(block, encoding="utf-8")
    assert load_config(path).port == Config().port


def test_the_program_in_the_readme_is_one() -> None:
    [block] = re.findall(r"```python\n(.*?)```", text_of("README.md"), re.DOTALL)
    compile(block, "README.md", "exec")


def test_the_events_of_a_round_trip_are_those_of_the_wire() -> None:
    source = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "voiceloop").rglob("*.py")
    )
    events = re.findall(r"^[<>] ([\w.]+)", text_of("voiceloop/docs/PROTOCOL.md"), re.MULTILINE)
    assert {"session.update", "response.function_call_arguments.done"} <= set(events)
    assert not [event for event in events if f'"{event}"' not in source]


def test_the_manual_can_be_read() -> None:
    read = ["README.md", *(page for page in MANUAL if Path(page).stem not in REFERENCE)]
    assert sum(len(text_of(page).split()) for page in read) <= MOST_WORDS


def test_the_contributors_map_names_every_folder() -> None:
    [tree] = re.findall(r"## The map\n.*?```\n(.*?)```", text_of("CONTRIBUTING.md"), re.DOTALL)
    named, parents = set(), [""]
    for indent, name in re.findall(r"^((?:  )*)([\w.]+)/ ", tree, re.MULTILINE):
        depth = len(indent) // 2
        parents[depth + 1 :] = [f"{parents[depth]}{name}/"]
        named.add(parents[depth + 1])
    assert {f"{room}/" for room in ROOMS} <= named
    assert not [name for name in named if not (ROOT / name).is_dir()], "folders that are not there"
    rooms = set(ROOMS) - {"tests"}
    code = {path.parent.relative_to(ROOT) for room in rooms for path in (ROOT / room).rglob("*.py")}
    folders = {f"{folder}/" for folder in code if "recipes" not in folder.parts[:-1]}
    assert folders <= named, f"folders of code that the map lacks: {folders - named}"


def test_the_glossary_is_short_and_its_words_are_in_the_code() -> None:
    text = text_of("CONTRIBUTING.md")
    [table] = re.findall(r"## The glossary\n.*?\n\|---.*?\n(.*?)\n\n", text, re.DOTALL)
    rows = re.findall(r"^\| (.+?) \|", table, re.MULTILINE)
    assert 10 <= len(rows) <= 20
    files = (path for room in ROOMS[:4] for path in (ROOT / room).rglob("*.py"))
    source = "\n".join(path.read_text(encoding="utf-8").lower() for path in files)
    for word in ", ".join(rows).split(", "):
        assert re.search(r"\b" + re.sub(r"[ -]", "[ _-]?", word), source), word


def test_the_places_that_contributors_are_sent_to_are_there() -> None:
    places = re.findall(r"`(\w+(?:/\w+)+\.\w+|\w+/)`", text_of("CONTRIBUTING.md"))
    assert len(places) > 20
    for place in places:
        assert (ROOT / place).exists() or (ROOT / "voiceloop" / place).exists(), place


def test_the_names_that_contributors_are_told_are_in_the_code() -> None:
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.*")]
    known = {path.name for path in files} | {path.name for path in ROOT.iterdir()}
    for path in files:
        if path.suffix in (".py", ".c"):
            known.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    for code in CODE.findall(text_of("CONTRIBUTING.md")):
        if re.fullmatch(r"\w+\.(py|md|toml)", code):
            assert code in known
        elif re.fullmatch(r"[A-Za-z_][\w.]*", code):
            assert code.split(".")[-1] in known, code


def test_the_log_is_sorted_by_room() -> None:
    text = text_of("benchmarks/LOG.md")
    index, *rooms = re.split(r"^## ", text, flags=re.MULTILINE)
    assert re.findall(r"^\| \[(.+?)\]\(#", index, re.MULTILINE) == [
        room.splitlines()[0] for room in rooms
    ]
    for room in rooms:
        days = re.findall(r"^### ([\d-]{10}): .+$", room, re.MULTILINE)
        assert days, "a room without an entry"
        assert days == sorted(days, reverse=True), "the newest entry first"


def test_what_the_code_cites_of_the_log_is_there() -> None:
    """By its day and the beginning of its heading."""
    told = {tuple(one) for one in re.findall(r"^### ([\d-]{10}): (.+)$", LOG, re.MULTILINE)}
    cited = set()
    for room in ROOMS[:-1]:
        for path in (ROOT / room).rglob("*.py"):
            text = re.sub(r"\s*\n\s*#?\s*", " ", path.read_text(encoding="utf-8"))
            cited |= {(path.name, *one) for one in CITED.findall(text)}
    assert len(cited) > 20
    lost = [
        (name, day, title)
        for name, day, title in cited
        if not any(
            day == of and all(part in heading for part in title.split(" ... "))
            for of, heading in told
        )
    ]
    assert not lost


def test_every_kept_file_of_results_is_named_by_a_page() -> None:
    pages = "\n".join(text_of(page) for page in PAGES)
    kept = (ROOT / "benchmarks" / "results").iterdir()
    assert [path.name for path in kept if path.name not in pages] == []


def test_the_pages_name_what_these_tests_look_for() -> None:
    whole = "\n".join(text_of(page) for page in PAGES)
    assert all(rule.search(whole) for rule in (LINK, ROOM_PATH, MODULE, COMMAND, FLAG, VARIABLE))
    assert {"serve", "talk", "doctor", "models", "conformance"} <= flags_by_command().keys()
    assert "--wav" in flags_by_command()["talk"]
