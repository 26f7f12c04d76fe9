"""The locks hold what the project asks for, at the versions it names, each file by a hash."""

from __future__ import annotations

import re

from tests.locks import BASE, BUILD, LOCKS, PINNED, ROOT, names, path_of, pins_of, project
from tests.tables import each_row

NAME = re.compile(r"[A-Za-z0-9-]+")
SAYS_HOW = "python -m tests.locks"
PINS = dict(re.findall(r"(?m)^([a-z0-9-]+)==(\S+)", (ROOT / "constraints.txt").read_text()))


def test_there_is_a_lock_for_the_base_for_each_extra_and_for_the_build() -> None:
    assert {path.stem for path in LOCKS.iterdir()} == set(names()), SAYS_HOW


@each_row("name", names())
def test_a_lock_holds_what_is_asked_for_by_version_and_hash(name: str) -> None:
    text = path_of(name).read_text(encoding="utf-8")
    assert "://" not in text  # whoever installs says from where
    blocks = re.split(r"(?m)^(?=\S)", text)[1:]
    assert all(PINNED.match(block) and "--hash=sha256:" in block for block in blocks)
    pinned = dict(pins_of(name))
    of = project()["project"]
    asked = {BASE: of["dependencies"], BUILD: project()["build-system"]["requires"]}
    asked |= {extra: of["dependencies"] + wanted for extra, wanted in
              of["optional-dependencies"].items()}  # fmt: skip
    direct = {found[0].lower() for one in asked[name] if (found := NAME.match(one))}
    assert direct - {"voiceloop"} <= pinned.keys(), SAYS_HOW
    named = {package: PINS[package] for package in pinned.keys() & PINS.keys()}
    assert named == {package: pinned[package] for package in named}, SAYS_HOW
