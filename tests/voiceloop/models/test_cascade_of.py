"""Which two models share a call, and whether the large one verifies what the small one drafts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from voiceloop.backends import LanguageModel, NamedModel
from voiceloop.config import CascadeSettings, Config
from voiceloop.models.opening import cascade_of

PAIR = ("main", "cloud")


@pytest.mark.parametrize(
    ("chosen", "small", "large", "verifies"),
    [
        (CascadeSettings(PAIR, verify=True), "a", "a", True),
        (CascadeSettings(PAIR), "a", "a", False),  # not unless it is asked for
        (CascadeSettings(PAIR, verify=True), "a", "b", False),
        (CascadeSettings(PAIR, verify=True), "", "", False),
    ],
)
def test_drafts_are_verified_where_that_is_asked_for_and_both_make_the_same_tokens(
    chosen: CascadeSettings, small: str, large: str, verifies: bool
) -> None:
    models = {
        name: NamedModel(cast(LanguageModel, SimpleNamespace(tokens=tokens)))
        for name, tokens in (("", small), ("cloud", large))
    }
    cascade = cascade_of(Config(cascade=chosen), models)
    assert cascade is not None and (cascade.small, cascade.large) == ("", "cloud")
    assert cascade.verifies() is verifies
