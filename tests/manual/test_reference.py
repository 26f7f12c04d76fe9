"""The pages that are looked up say what the code says, and all of it."""

from __future__ import annotations

import pytest

from tests.manual.cards import SHIPPED
from tests.manual.reference import DOCS, PAGES, marks, parsers, server_events, written
from voiceloop import errors
from voiceloop.cli import build_parser
from voiceloop.http.openapi import CODES, description
from voiceloop.models.catalog import MODELS
from voiceloop.realtime.client_events import CLIENT_EVENTS


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_what_its_command_writes(page: str) -> None:
    assert written(page) == (DOCS / page).read_text("utf-8"), "python -m tests.manual.reference"


def test_every_event_has_one_row() -> None:
    page = (DOCS / "EVENTS.md").read_text("utf-8").split("## Names of the beta")[0]
    rows = [row.split("`")[1] for row in page.splitlines() if row.startswith("| `")]
    for name in [*CLIENT_EVENTS, *server_events()]:
        assert rows.count(name) == 1, name


def test_every_event_says_when_it_comes() -> None:
    for kind in [*CLIENT_EVENTS.values(), *server_events().values()]:
        assert kind.__doc__, kind


def test_every_route_has_one_row() -> None:
    page = (DOCS / "HTTP.md").read_text("utf-8")
    for path, methods in description()["paths"].items():
        for method in methods:
            assert page.count(f"\n| `{method.upper()} {path}` |") == 1, path


def test_the_status_of_a_code_is_the_one_it_is_sent_with() -> None:
    """Of the codes that have a class of their own; others are named where they are raised."""
    statuses = {
        kind.code: kind.http_status
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.VoiceLoopError)
    }
    for code, (status, _) in CODES.items():
        assert int(status) == statuses.get(code, int(status)), code


def test_every_command_is_on_its_page() -> None:
    assert sorted(marks("COMMANDS.md", "commands")) == sorted(
        name for name in parsers(build_parser()) if " " not in name
    )


def test_every_model_has_a_card_with_its_figures_and_its_limits() -> None:
    names = {*(model.name for model in MODELS), *SHIPPED}
    assert sorted(marks("MODEL_CARDS.md", "facts")) == sorted(names)
    _, *cards = (DOCS / "MODEL_CARDS.md").read_text("utf-8").split("\n### ")
    assert len(cards) == len(names)
    for card in cards:
        assert "**Figures" in card and "**Limits.**" in card, card[:60]
