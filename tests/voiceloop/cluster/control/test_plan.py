"""A cluster's file, and what each of its processes is started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tables import each_row
from voiceloop.cli import build_parser
from voiceloop.cluster.control.plan import GATEWAYS, Group, configuration_of, read_plan
from voiceloop.errors import ConfigError

PLAN = """
[gateways]
least = 3
port = 9000

[[workers]]
roles = ["engine"]
preset = "embedded"
gpus = 0.5

[[workers]]
roles = ["recognizer", "voice"]
name = "speech"
most = 6
"""


def groups_of(tmp_path: Path, text: str = PLAN) -> dict[str, Group]:
    path = tmp_path / "cluster.toml"
    path.write_text(text, encoding="utf-8")
    return {group.name: group for group in read_plan(path)}


def test_a_plan_names_gateways_and_workers(tmp_path: Path) -> None:
    groups = groups_of(tmp_path)
    assert list(groups) == [GATEWAYS, "engine", "speech"]
    assert [(group.least, group.most) for group in groups.values()] == [(3, 3), (2, 2), (2, 6)]
    assert groups["engine"].needs == {"CPU": 1.0, "GPU": 0.5}
    assert groups["speech"].roles == ("recognizer", "voice")


def test_the_commands_it_starts_take_the_arguments(tmp_path: Path) -> None:
    for name in ("engine", "speech"):
        given = build_parser().parse_args(list(groups_of(tmp_path)[name].launch.arguments))
        assert given.json and given.listen == "{address}:0"


def test_the_texts_of_the_files_it_names_go_along(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("log_level = 'info'", encoding="utf-8")
    (tmp_path / "agent.toml").write_text("greeting = 'hello'", encoding="utf-8")
    named = 'config = "mine.toml"\nagent = "agent.toml"\n' + PLAN
    groups = groups_of(tmp_path, named)
    assert set(groups[GATEWAYS].launch.files) == {"server.toml", "agent.toml"}
    assert set(groups["engine"].launch.files) == {"server.toml"}
    assert configuration_of(list(groups.values())) == {"log_level": "info"}


def test_a_version_changes_with_what_is_started_and_with_nothing_else(tmp_path: Path) -> None:
    before = groups_of(tmp_path)
    more = groups_of(tmp_path, PLAN.replace("least = 3", "least = 4"))
    assert more["engine"].version == before["engine"].version
    assert more[GATEWAYS].version == before[GATEWAYS].version
    other = groups_of(tmp_path, PLAN.replace('"embedded"', '"cpu"'))
    assert other["engine"].version != before["engine"].version
    assert other["speech"].version == before["speech"].version
    (tmp_path / "agent.toml").write_text("greeting = 'hello'", encoding="utf-8")
    spoken = groups_of(tmp_path, 'agent = "agent.toml"\n' + PLAN)
    assert spoken[GATEWAYS].version != before[GATEWAYS].version
    assert spoken["engine"].version == before["engine"].version


def test_a_version_changes_with_the_settings(tmp_path: Path) -> None:
    engine = groups_of(tmp_path)["engine"]
    assert engine.with_settings({}) == engine
    small = engine.with_settings({"VOICELOOP_CONTEXT_TOKENS": "2048"})
    large = engine.with_settings({"VOICELOOP_CONTEXT_TOKENS": "4096"})
    assert len({engine.version, small.version, large.version}) == 3
    assert small == engine.with_settings({"VOICELOOP_CONTEXT_TOKENS": "2048"})


def test_braces_of_a_plan_stand_for_themselves(tmp_path: Path) -> None:
    text = PLAN + 'llm_model = "a{b}{folder}{"'
    arguments = groups_of(tmp_path, text)["speech"].launch.arguments
    places = {"folder": "/tmp/x", "address": "10.0.0.5", "version": "v2"}
    told = [argument.format_map(places) for argument in arguments]
    assert "--llm-model=a{b}{folder}{" in told
    assert {"--listen=10.0.0.5:0", "--version=v2"} <= set(told)


def test_workers_call_themselves_by_their_version(tmp_path: Path) -> None:
    engine = groups_of(tmp_path, 'version = "june"\n' + PLAN)["engine"]
    assert engine.version.startswith("june-")
    assert "--version={version}" in engine.launch.arguments  # as its keeper knows it


@each_row(
    ("text", "told"),
    [
        ("", r"expected \[\[workers\]\], found none"),
        ("[[workers]]\nroles = ['voice']", "expected workers with the role engine"),
        ("[[workers]]\nroles = []", r"workers\[0\].roles: expected each role once"),
        ("[[workers]]\nroles = ['engine', 'engine']", "expected each role once"),
        ("[[workers]]\nroles = ['engines']", "expected one of"),
        (PLAN + "gpu = 1", "the nearest is 'gpus'"),
        (PLAN + "least = 0", r"workers\[1\].least: expected 1 to 1000"),
        (PLAN + "least = 9", r"workers\[1\].most: expected 9 to 1000, found 6"),
        (PLAN + "spare = -1", "spare: expected 0 to 1000"),
        (PLAN + "cpus = -1.0", "cpus: expected 0 to 1024"),
        (PLAN + "gpus = 65.0", "gpus: expected 0 to 64"),
        (PLAN + "resources = {tpu = 'one'}", "resources.tpu: expected 0 or a number"),
        (
            PLAN + "resources = {tpu = 0.00001}",
            "resources.tpu: expected 0 or a number of at least 0.0001",
        ),
        (PLAN + "resources = {tpu = inf}", "resources.tpu: expected 0 or a number"),
        (PLAN + "resources = {GPU = 1}", "resources: expected the key gpus for it, found GPU"),
        (PLAN + "gpus = 1.5", "gpus: expected a share of one, or as many whole ones"),
        (PLAN + "version = 'a b'", "version: expected at most 40 letters"),
        (PLAN.replace('"speech"', '"Speech"'), "name: expected small letters"),
        (PLAN.replace('"speech"', '"gateways"'), "other than gateways"),
        (PLAN.replace('"speech"', '"engine"'), "expected a name of its own"),
        (PLAN.replace("9000", "0"), "port: expected 1 to 65535"),
        ("config = 'none.toml'\n" + PLAN, "config: expected a text file"),
    ],
)
def test_a_plan_that_is_wrong_is_refused_in_words(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        groups_of(tmp_path, text)
