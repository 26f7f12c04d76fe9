"""Our server passes every check of the suite; each check fails on a server that breaks its rule."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from clients.conformance.check import Check, Result
from clients.conformance.command import ConformanceOptions, run_conformance
from clients.conformance.suite import ALL, chosen, run_check, run_suite
from clients.errors import ClientError
from tests.conformance.mutants import Mutant
from tests.conformance.row_mutants import ROW_MUTANTS
from tests.conformance.rule_mutants import BY_SILENCE, RULE_MUTANTS
from tests.conformance.server import KEY, conforming, target_of

BY_NAME = {check.name: check for check in ALL}
UNBROKEN = {"oversize-frame"}  # a rule of the connection, which no change of events breaks
AT_ONCE = 8  # callers and server share one event loop


either_agent = pytest.mark.parametrize("greeting", ["", "Welcome to the cafe."])


@either_agent
async def test_our_server_passes_every_check_of_a_written_session(greeting: str) -> None:
    assert await broken([check for check in ALL if check.topic != "speech"], greeting) == {}


@either_agent
@pytest.mark.call
async def test_our_server_passes_every_check_of_a_spoken_session(greeting: str) -> None:
    assert await broken(chosen(["speech"]), greeting) == {}


async def broken(checks: Sequence[Check], greeting: str) -> dict[str, str]:
    """The checks that our server does not pass, and why; with an agent that greets, or without."""
    async with conforming(greeting=greeting) as url:
        results = await run_suite(target_of(url), checks, jobs=AT_ONCE)
    return {r.check.name: r.sentence for r in results if r.outcome != "pass"}


async def test_each_row_of_the_fault_table_fails_the_check_that_names_it() -> None:
    assert await survivors(ROW_MUTANTS) == {}


@pytest.mark.call
async def test_each_broken_rule_fails_the_check_that_names_it() -> None:
    assert await survivors(RULE_MUTANTS) == {}


async def survivors(mutants: Sequence[Mutant]) -> dict[str, str]:
    """The mutants that their check lets pass, or fails for another reason than theirs."""
    free = asyncio.Semaphore(AT_ONCE)

    async def tried(mutant: Mutant) -> Result:
        target = target_of(f"{url}?mutant={mutant.name}", timeout_s=patience_s(mutant))
        async with free:
            return await run_check(BY_NAME[mutant.check], target)

    async with conforming(mutants) as url, asyncio.TaskGroup() as group:
        tasks = [group.create_task(tried(mutant)) for mutant in mutants]
    results = zip(mutants, [task.result() for task in tasks], strict=True)
    return {m.name: r.sentence for m, r in results if not is_caught(m, r)}


def patience_s(mutant: Mutant) -> float:
    return 1.0 if mutant.name in BY_SILENCE else 20.0


def is_caught(mutant: Mutant, result: Result) -> bool:
    is_silence = " within " in result.sentence
    return result.outcome == "fail" and is_silence == (mutant.name in BY_SILENCE)


def test_every_check_can_fail() -> None:
    tried = {mutant.check for mutant in (*ROW_MUTANTS, *RULE_MUTANTS)}
    assert {check.name for check in ALL} == tried | UNBROKEN


def test_every_check_states_a_rule_once() -> None:
    rules = [check.rule for check in ALL]
    assert len(set(rules)) == len(rules) and all(rule.endswith(".") for rule in rules)
    assert len(BY_NAME) == len(ALL)


async def test_the_command_prints_results_and_tells_by_its_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lost = next(mutant for mutant in ROW_MUTANTS if mutant.name == "no-event-id")
    async with conforming([lost]) as url:
        good = ConformanceOptions(url, KEY, names=("session-created-first",), as_json=True)
        assert await run_conformance(good) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["counts"] == {"pass": 1}
        broken = ConformanceOptions(f"{url}?mutant=no-event-id", KEY, names=("event-ids",))
        assert await run_conformance(broken) == 1
        printed_table = capsys.readouterr().out
    assert "expected an event_id in session.created, found nothing" in printed_table


async def test_an_address_without_a_server_is_named() -> None:
    with pytest.raises(ClientError, match="ws://127.0.0.1:9/v1/realtime: expected the connection"):
        await run_conformance(ConformanceOptions("ws://127.0.0.1:9/v1/realtime"))


def test_a_check_that_does_not_exist_is_named() -> None:
    with pytest.raises(ClientError, match="expected the name of a check .*, found 'nonsense'"):
        chosen(["nonsense"])
    assert {check.topic for check in chosen(["door"])} == {"door"}
