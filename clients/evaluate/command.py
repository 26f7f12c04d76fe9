"""``voiceloop evaluate``: scenarios played one after the other, judged, and reported."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from clients.command import EXIT_FAILED, EXIT_INTERRUPTED
from clients.connection import RealtimeConnection
from clients.errors import ClientError, EndpointError, ScenarioError
from clients.evaluate.arguments import EFFORTS
from clients.evaluate.judge import Judge
from clients.evaluate.offered_tools import check_calls
from clients.evaluate.outcome import Played
from clients.evaluate.report import has_passed, print_compared, print_report, report_of
from clients.evaluate.scenario import Scenario, ScenarioFile, load_scenarios
from clients.evaluate.spoken_caller import play_spoken, utterances_of
from clients.evaluate.typed_caller import play_typed
from clients.outputs import check_file, writing
from clients.progress import progress_bar
from clients.served_agent import served_agent
from clients.terminal import Terminal


def run_evaluate(chosen: argparse.Namespace) -> int:
    """Returns the exit code. Raises: ClientError; KeyboardInterrupt where nothing was played."""
    file = load_scenarios(chosen.scenarios)
    scenarios = chosen_of(file, chosen.only)
    judge = Judge(chosen.judge, chosen.judge_model, chosen.judge_key) if chosen.judge else None
    if chosen.json is not None:
        check_file(chosen.json)
    played: list[Played] = []
    parts = chosen.compare or (None,)
    with progress_bar("scenarios", len(parts) * len(scenarios)) as progress:
        try:
            asyncio.run(_play_all(chosen, file, scenarios, judge, progress, played))
        except KeyboardInterrupt:
            if not played:
                raise
    how = "spoken" if chosen.spoken else "typed"
    report = report_of(played, file.budgets, how)
    if chosen.compare:
        report["compared"] = {
            part: report_of([one for one in played if one.part == part], file.budgets, how)
            for part in chosen.compare
        }
    if chosen.json is not None:
        with writing(chosen.json):
            chosen.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    terminal = Terminal(highlight=False, soft_wrap=True)
    print_report(report, terminal)
    if chosen.compare:
        print_compared(report["compared"], terminal)
    if len(played) < len(parts) * len(scenarios):
        n_all = len(parts) * len(scenarios)
        print(f"interrupted: {len(played)} of {n_all} were played", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0 if has_passed(report) else EXIT_FAILED


def chosen_of(file: ScenarioFile, only: list[str]) -> tuple[Scenario, ...]:
    """Raises: ScenarioError: no scenario has that name."""
    names = [one.name for one in file.scenarios]
    unknown = next((name for name in only if name not in names), None)
    if unknown is not None:
        raise ScenarioError(f"expected a scenario of {', '.join(names)}, found {unknown!r}")
    return tuple(one for one in file.scenarios if not only or one.name in only)


async def _play_all(
    chosen: argparse.Namespace,
    file: ScenarioFile,
    scenarios: tuple[Scenario, ...],
    judge: Judge | None,
    progress: Callable[[int], None],
    played: list[Played],
) -> None:
    """Add to `played`. One that cannot be played is broken, and the others go on.

    Raises: ClientError: none could be played, or one wants a tool called that there is not.
    """
    errors: list[ClientError] = []
    async with served_agent(chosen.agent, chosen.config, chosen.preset, chosen.key) as (url, key):
        await check_calls(scenarios, url, key)
        wanted = [(part, one) for part in chosen.compare or (None,) for one in scenarios]
        for part, scenario in wanted:
            try:
                one = await _play(chosen, scenario, file.results, url, key, part)
            except ClientError as error:
                errors.append(error)
                one = Played(scenario, broken=str(error))
            one.part = part
            if judge is not None and scenario.judge:
                one.verdict = await _verdict(judge, one)
            played.append(one)
            progress(len(played))
    if len(errors) == len(played):
        raise errors[0]


async def _play(
    chosen: argparse.Namespace,
    scenario: Scenario,
    results: Mapping[str, Any],
    url: str,
    key: str | None,
    part: str | None = None,
) -> Played:
    """part: of a server's two models, that is to answer.

    Raises: ClientError: it could not be begun.
    """
    if not chosen.spoken:
        connection = await RealtimeConnection.open(url, key=key)
        await _take_part(connection, part)
        return await play_typed(connection, scenario, results)
    utterances = await utterances_of(scenario, url, key, chosen.voice)
    connection = await RealtimeConnection.open(url, key=key, extras={"greeting": "1"})
    await _take_part(connection, part)
    return await play_spoken(connection, scenario, results, utterances)


async def _take_part(connection: RealtimeConnection, part: str | None) -> None:
    """Have this part of the server's two models answer; None: as the server has it."""
    effort = EFFORTS[part] if part is not None else None
    if effort is not None:
        session = {"type": "realtime", "reasoning": {"effort": effort}}
        await connection.send({"type": "session.update", "session": session})


async def _verdict(judge: Judge, played: Played) -> str:
    """A judge that does not answer has not said yes."""
    try:
        return await judge.verdict(played.scenario.judge, played.transcript())
    except EndpointError as error:
        return str(error)
