"""Each code that an error may carry has a heading on ERRORS.md, to link to."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "voiceloop" / "docs" / "ERRORS.md").read_text(encoding="utf-8")
CODE = re.compile(
    r"\bcode(?:: ClassVar\[str\])?\s*=\s*\"([a-z_]+)\"(?: if .*? else \"([a-z_]+)\")?"
    r"|_refused\(\s*\"(resume_[a-z_]+)\""
    r"|_known\([\w.]+, \"([a-z_]+)\""
)


def test_every_code_has_a_heading_and_every_heading_is_a_code() -> None:
    codes = {
        code
        for path in (ROOT / "voiceloop").rglob("*.py")
        for found in CODE.findall(path.read_text(encoding="utf-8"))
        for code in found
        if code
    }
    assert set(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)) == codes


def test_every_code_has_an_action_or_says_what_follows() -> None:
    for section in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        assert "**Problem:**" in section, section.split()[0]
        assert "**Action:**" in section or "**Effect:**" in section, section.split()[0]
