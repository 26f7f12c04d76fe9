"""What is switched off in which server, and what all of it together is held to."""

from __future__ import annotations

import pytest

from benchmarks.calls.ablation import ABLATIONS, AGENT, ALL_OFF, ALL_ON, ablation_bars
from voiceloop.agent_file import load_agent
from voiceloop.config import load_config


def test_the_real_model_has_each_of_four_off_and_all_of_them() -> None:
    variants = ABLATIONS["smollm2"]
    names = {"prefill", "prefix_cache", "speculative_decoding", "speculative_reply"}
    switches = {f"VOICELOOP_ANTICIPATION_{name.upper()}": "0" for name in names}
    assert variants[ALL_ON].environment == {}
    assert variants[ALL_OFF].environment == switches
    singles = [dict(one.environment) for one in variants.values() if len(one.environment) == 1]
    assert sorted(map(str, singles)) == sorted(str({key: "0"}) for key in switches)
    [arguments] = {one.arguments for one in variants.values()}
    assert arguments[-4:-2] == ("--llm-adapter", "none")  # the model as it is published


@pytest.mark.parametrize("name", ["embedded", "ends"])
@pytest.mark.parametrize("mechanism", ["early start", "p voice", "p end"])
def test_what_ends_a_turn_is_taken_apart_by_itself_and_with_all(name: str, mechanism: str) -> None:
    variants = ABLATIONS[name]
    key = f"VOICELOOP_ANTICIPATION_{mechanism.replace(' ', '_').upper()}"
    assert variants[f"no {mechanism}"].environment == {key: "0"}
    assert variants[ALL_OFF].environment[key] == "0"


def test_every_switch_is_a_key_of_the_server() -> None:
    for variants in ABLATIONS.values():
        for variant in variants.values():
            config = load_config(environ=dict(variant.environment))
            for key in variant.environment:
                name = key.removeprefix("VOICELOOP_ANTICIPATION_").lower()
                if key.startswith("VOICELOOP_ANTICIPATION_"):
                    assert getattr(config.anticipation, name) is False


def test_its_agent_asks_for_nothing_that_the_model_lacks() -> None:
    agent = load_agent(AGENT)
    assert not agent.tools
    assert len(agent.instructions) > 2000  # long enough that reading it twice is heard


def test_all_four_together_are_held_to_their_share() -> None:
    def summary(p50: float | None) -> dict[str, dict[str, float | None]]:
        return {"gap_ms": {"p50": p50}}

    [bar] = ablation_bars("smollm2", {ALL_ON: summary(300.0), ALL_OFF: summary(600.0)})
    assert bar.value == 0.5 and bar.holds
    [bar] = ablation_bars("smollm2", {ALL_ON: summary(None), ALL_OFF: summary(600.0)})
    assert not bar.holds
    assert ablation_bars("embedded", {}) == []
