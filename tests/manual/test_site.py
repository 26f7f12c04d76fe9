"""The site builds without a dead link, and programs find its pages as text."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "tests" / "manual" / "mkdocs.yml"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("material") is None:
        pytest.skip("no mkdocs-material here: make setup")
    into = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", str(CONFIG)]
    built = subprocess.run(
        [*build, "-d", str(into)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr[-2000:]
    return into


def test_every_page_of_the_manual_is_in_the_site_and_beside_it_as_text(site: Path) -> None:
    for page in (ROOT / "voiceloop" / "docs").glob("*.md"):
        name = page.name.lower().replace("_", "-")
        assert (site / name).is_file() and (site / name).with_suffix(".html").is_file(), name


def test_programs_find_every_page_with_a_sentence(site: Path) -> None:
    listed = re.findall(
        r"^- \[.+?\]\((.+?)\): (.+)$", (site / "llms.txt").read_text(), re.MULTILINE
    )
    assert {url for url, _ in listed} == {path.name for path in site.glob("*.md")}
    cut = [one for one in listed if len(one[1]) <= 20 or one[1].endswith(":")]
    assert not cut


def test_the_text_beside_a_page_leads_to_what_is_there(site: Path) -> None:
    for page in site.glob("*.md"):
        for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s#]+)", page.read_text()):
            assert (site / target).exists(), (page.name, target)
