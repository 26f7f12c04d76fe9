"""What workers say of their models, and which of them are refused beside others."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from voiceloop.backends import RoleName
from voiceloop.cluster.hello import OWN, disagreement
from voiceloop.workers.messages import HeldModel, Ready, RoleReady

HELD = HeldModel("hibari", "a1b2", "bf16 weights", ("en",), ("ava", "tom"), 4096, 8192, 12, False)


def saying(role: RoleName = "voice", rate_hz: int = 24_000, **model: Any) -> Ready:
    version = model.pop("version", "")
    return Ready((RoleReady(role, 1.0, rate_hz, model=replace(HELD, **model)),), version)


OTHERS = [("10.0.0.5:9001", saying())]
OTHER_VALUES: dict[str, Any] = {
    "name": "kokoro", "digest": "ffff", "formats": "int8 weights", "languages": ("de",),
    "voices": ("ava",), "context_tokens": 2048, "reads_turn_ends": True,
}  # fmt: skip


def test_workers_that_hold_the_same_agree() -> None:
    assert disagreement(saying(), OTHERS, ["voice"]) is None
    assert disagreement(saying(), [], ["voice"]) is None


@pytest.mark.parametrize("field", [f for f in HeldModel.__struct_fields__ if f not in OWN])
def test_whatever_a_caller_could_notice_is_told_in_words(field: str) -> None:
    found = saying(**{field: OTHER_VALUES[field]})
    told = disagreement(found, OTHERS, ["voice"])
    assert told is not None
    assert told.startswith(f"voice: expected {field} ") and "as 10.0.0.5:9001 has it" in told


def test_one_worker_may_be_larger_than_another() -> None:
    assert disagreement(saying(kv_blocks=99, n_streams=1), OTHERS, ["voice"]) is None


def test_versions_are_kept_apart_but_for_the_rate_that_a_call_is_played_at() -> None:
    assert disagreement(saying(version="v2", name="kokoro"), OTHERS, ["voice"]) is None
    told = disagreement(saying(version="v2", rate_hz=16_000), OTHERS, ["voice"])
    assert told == (
        "voice: expected rate_hz 24000 as 10.0.0.5:9001 has it, found 16000; "
        "a worker with another model wants another --version"
    )


def test_roles_that_nobody_is_asked_for_are_not_compared() -> None:
    found = saying("recognizer", name="whisper")
    assert disagreement(found, OTHERS, ["recognizer"]) is None
    assert disagreement(found, [("other", saying("recognizer"))], ["engine"]) is None
