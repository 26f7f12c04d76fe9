"""The quality gate that ships: what it asks, and that it finds a format that is another model."""

import pytest

import engine.gate as gate
from engine.quality import Format
from engine.types import EngineConfig
from tests.engine.conftest import WriteCheckpoint

pytest.importorskip("llguidance", reason="the optional package llguidance is not installed")

BASE = EngineConfig(kv_tokens=24576, max_draft_tokens=0)


@pytest.fixture
def few_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = gate._asked()
    monkeypatch.setattr(gate, "_asked", lambda: {**asked, "callers": asked["callers"][:6]})


@pytest.mark.usefixtures("few_callers")
def test_a_format_is_compared_on_replies_and_calls_of_its_own_bf16(
    write_checkpoint: WriteCheckpoint,
) -> None:
    tiny_model = write_checkpoint(max_position_embeddings=2048)
    told = list[str]()
    found = gate.run(tiny_model, Format("int8"), BASE, exact=True, tell=told.append)
    assert found.n_calls == 6 and 0 <= found.n_same <= 6
    assert 6 <= found.quality.n_tokens <= 6 * 32 and found.quality.kl_nats < 0.1
    assert found.of_fp32 is not None and found.of_fp32 > 0.8
    assert told[0] == "bf16: reading"
    same = gate.run(tiny_model, Format(), BASE, exact=False, tell=told.append)
    assert same.quality.top1_agreement == 1 and same.n_same == 6


def test_it_asks_fifty_callers_and_its_tools_are_of_the_kind_that_agents_have() -> None:
    asked = gate._asked()
    assert len(set(asked["callers"])) == 50
    assert all({"name", "description", "parameters"} <= tool.keys() for tool in asked["tools"])
