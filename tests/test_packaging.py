"""What an installation brings: what the product imports, nothing of the workshop, true pages."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.tables import each_row
from tests.test_layering import ROOMS, ROOT, imports, python_files

LINK = re.compile(r"\]\(([^)#:]+)(?:#[\w-]+)?\)")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OTLP = "opentelemetry-exporter-otlp-proto-http"
# Named by nobody here, and brought by one that is.
BROUGHT = {
    "aioice": "aiortc",
    "anyio": "starlette",
    "h11": "uvicorn",
    "httpx2": "mcp",
    "mcp-types": "mcp",
    "ctranslate2": "faster-whisper",
    "tokenizers": "faster-whisper",
    # All of them share the name `opentelemetry`, so an import of one is taken for one of each.
    "opentelemetry-api": "opentelemetry-sdk",
    "opentelemetry-semantic-conventions": "opentelemetry-sdk",
    "opentelemetry-proto": OTLP,
    "opentelemetry-exporter-http-transport": OTLP,
    "opentelemetry-exporter-otlp-common": OTLP,
    "opentelemetry-exporter-otlp-proto-common": OTLP,
}


packages_distributions = cache(importlib.metadata.packages_distributions)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(requirements: list[str]) -> set[str]:
    """The distributions that requirements name, voiceloop's own extras left out."""
    names = (re.match(r"[\w.-]+", one) for one in requirements)
    return {normal(name[0]) for name in names if name is not None} - {"voiceloop"}


def third_parties(room: str) -> dict[str, set[str]]:
    """Of each file of a room the distributions that it imports, wherever the statement stands."""
    known = packages_distributions()
    found = {}
    for path in python_files(room):
        tops = {name.split(".")[0] for name in imports(path)} - set(ROOMS)
        tops -= sys.stdlib_module_names
        names = {normal(one) for top in tops for one in known.get(top, [top])}
        found[str(path.relative_to(ROOT))] = names
    return found


PRODUCT = distributions(PROJECT["dependencies"]).union(
    *(distributions(names) for extra, names in EXTRAS.items() if extra != "dev")
)


@pytest.mark.parametrize("room", ROOMS)
def test_the_product_imports_what_it_declares_and_nothing_of_the_workshop(room: str) -> None:
    workshop = distributions(EXTRAS["dev"]) - PRODUCT
    assert {"pytest", "hypothesis", "ruff", "mypy"} <= workshop
    for path, names in third_parties(room).items():
        assert not names & workshop, f"{path} imports what only the extra dev brings"
        assert names <= PRODUCT | BROUGHT.keys(), f"{path}: {names - PRODUCT}"


def test_what_comes_with_another_does_come_with_it() -> None:
    for name, bringer in BROUGHT.items():
        brought = distributions(importlib.metadata.requires(bringer) or [])
        assert name in brought and bringer in PRODUCT


def test_every_dependency_of_the_two_commands_is_pinned() -> None:
    pins = distributions(
        re.findall(r"^[\w-]+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    )
    wanted = distributions([*PROJECT["dependencies"], *EXTRAS["embedded"], *EXTRAS["dev"]])
    assert wanted - pins == {"triton"}  # torch with CUDA chooses its own


READS_THE_END = """
import sys

sys.modules |= dict.fromkeys(sys.argv[1].split(","))  # an import of these finds nothing
from voiceloop.config import Config
from voiceloop.models.end_judges import end_judges, end_reader_spec, voice_reader_spec
from voiceloop.workers.roles.role import load_role

urls = ("http://127.0.0.1:1/v1",)
config = Config(preset="remote", stt_url=urls, llm_url=urls, tts_url=urls)
for spec in (end_reader_spec(config), voice_reader_spec(config)):
    load_role(spec.roles[0]).warm_up()
print(end_judges(config).told)
"""


def test_a_server_of_services_reads_the_end_with_what_every_installation_has() -> None:
    known = packages_distributions()
    extras = set().union(*map(distributions, EXTRAS.values()))
    extras -= distributions(PROJECT["dependencies"])
    absent = [top for top, names in known.items() if {normal(one) for one in names} & extras]
    assert "torch" in absent
    told = subprocess.run(
        [sys.executable, "-c", READS_THE_END, ",".join(absent)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert told.stdout.strip() == "words and voice"


def test_the_demo_installs_nothing_of_the_workshop() -> None:
    dry = subprocess.run(
        ["make", "--dry-run", "--always-make", "demo"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert set(re.findall(r"\.\[([\w,]+)\]", dry)) == {"embedded"}
    assert "bin/voiceloop demo" in dry


def test_a_remedy_finds_the_installation_and_asks_no_index() -> None:
    """`pip install 'voiceloop[cpu]'` where it is installed, from a clone too, adds to it."""
    asked = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--no-index"]
    told = subprocess.run([*asked, "voiceloop[cpu]"], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert "Requirement already satisfied: voiceloop[cpu]" in told.stdout


def in_wheel(path: Path) -> bool:
    """Whether a file of the repository is in the wheel."""
    inner = path.resolve().relative_to(ROOT)
    is_recipe = "recipes" in inner.parts
    return inner.parts[0] in ROOMS and not is_recipe and (inner.parent != DOCS or is_shipped(inner))


DOCS = Path("voiceloop/docs")


def is_shipped(page: Path) -> bool:
    """Whether a page of the manual is in the wheel."""
    return f"!{page}" in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]


def test_the_wheel_has_the_pages_of_the_manual_that_its_files_name() -> None:
    named = set()
    for path in (ROOT / "voiceloop").rglob("*"):
        shipped = "new_agent" in path.parts or path.name == "removed_keys.py"
        if shipped and path.is_file() and path.suffix in (".py", ".toml", ".md", ""):
            named.update(re.findall(r"\b[A-Z_]{4,}\.md", path.read_text(encoding="utf-8")))
    pages = {path.name for path in (ROOT / DOCS).glob("*.md") if is_shipped(path.relative_to(ROOT))}
    assert pages == named - {"README.md"}


@each_row(
    "page",
    [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.md"))],
)
def test_the_pages_of_the_wheel_link_to_what_is_in_it(page: Path) -> None:
    is_manual = page.parent == ROOT / DOCS  # whose pages lead to one another
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        assert in_wheel(path) or is_manual and path.parent == page.parent, f"{target} is not in it"
