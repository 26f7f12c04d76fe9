"""What a person who reads the page by ear or with weak eyes depends on, without a browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.tables import each_row

WEB = Path(__file__).resolve().parents[3] / "clients" / "web"
LEAST_CONTRAST = 4.5  # WCAG 2.2 AA for text of this size


class Outline(HTMLParser):
    """Tags with their attributes, and the tags that stand around each."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str], tuple[str, ...]]] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append((tag, found, tuple(self._open)))
        if tag not in ("meta", "link", "input", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open.pop() != tag:
            pass


@pytest.fixture(scope="module")
def outline() -> Outline:
    parsed = Outline()
    parsed.feed((WEB / "index.html").read_text(encoding="utf-8"))
    return parsed


def test_the_page_has_one_main_one_title_and_headings_in_order(outline: Outline) -> None:
    names = [tag for tag, _, _ in outline.tags]
    assert names.count("main") == 1 and names.count("h1") == 1 and names.count("title") == 1
    levels = [int(name[1]) for name in names if re.fullmatch("h[1-6]", name)]
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    assert next(attrs for tag, attrs, _ in outline.tags if tag == "html")["lang"] == "en"


def test_every_field_stands_in_its_label_and_every_section_has_a_name(outline: Outline) -> None:
    for tag, attrs, around in outline.tags:
        if tag in ("input", "select", "textarea"):
            assert "label" in around, attrs
        if tag == "section":
            assert "aria-label" in attrs or "aria-labelledby" in attrs, attrs
        for reference in attrs.get("aria-labelledby", "").split():
            assert any(other.get("id") == reference for _, other, _ in outline.tags)


def test_what_changes_by_itself_is_told_and_nothing_jumps_the_tab_order(outline: Outline) -> None:
    live = [attrs for _, attrs, _ in outline.tags if "aria-live" in attrs or "role" in attrs]
    assert {attrs.get("role") or attrs.get("aria-live") for attrs in live} >= {"status", "polite"}
    assert all(int(attrs.get("tabindex", 0)) <= 0 for _, attrs, _ in outline.tags)
    buttons = [(attrs["type"], around) for tag, attrs, around in outline.tags if tag == "button"]
    assert all(kind == ("submit" if around[-1] == "form" else "button") for kind, around in buttons)


def test_nothing_is_loaded_from_elsewhere(outline: Outline) -> None:
    for tag, attrs, _ in outline.tags:
        for name in ("src", "href"):
            assert "//" not in attrs.get(name, ""), (tag, attrs)
    for script in WEB.glob("*.js"):
        assert not re.search(r"from \"(?!\./)", script.read_text(encoding="utf-8")), script


def palettes() -> dict[str, dict[str, str]]:
    css = (WEB / "style.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6})", block))
        for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    )
    return {"light": light, "dark": dark}


def luminance(color: str) -> float:
    """Source: WCAG 2.2, relative luminance."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@each_row("scheme", ["light", "dark"])
@each_row("ground", ["paper", "card"])
@each_row("ink", ["ink", "soft", "caller", "agent", "good", "bad"])
def test_text_stands_out_from_its_ground(scheme: str, ground: str, ink: str) -> None:
    palette = palettes()[scheme]
    assert contrast(palette[ink], palette[ground]) >= LEAST_CONTRAST


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("ground", ["ink", "caller"])
def test_a_buttons_text_stands_out_too(scheme: str, ground: str) -> None:
    palette = palettes()[scheme]
    assert contrast(palette["on-ink"], palette[ground]) >= LEAST_CONTRAST
