"""The conversation in the terminal while it happens.

The caller's line firms up as the recognizer hears it (settled words bright, the rest dim), the
agent's grows as it speaks, and every finished turn leaves its gap and its waterfall. Where output
is not a terminal only finished lines are printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from clients.call.result import TurnResult
from clients.call.script import Utterance, words_found
from clients.connection import Received
from clients.report.stage_colors import color_of
from clients.report.waterfall import Waterfall

CALLER, AGENT, TOOL = "#d9913f", "#5b9be6", "#8a93a0"
MAX_TOOL_CHARS = 400  # of arguments or a result: a line or a few
BAR_CELLS = 48
NAMED_FROM_MS = 5.0


class LiveView:
    """Observer of one call; use as a context manager around it.

    ``n_turns``: length of a scripted call, for its progress bar and the figures of its turns; None
    for a call without a script, whose turns nobody knows beforehand. ``meter``: a line that stands
    under the call while it lasts.
    """

    def __init__(
        self,
        console: Console,
        agent: str,
        n_turns: int | None = None,
        meter: RenderableType | None = None,
    ) -> None:
        self._console = console
        self._agent = agent
        self._width = max(6, len(agent), len("caller")) + 2
        self._caller_settled = ""
        self._caller_open = ""
        self._agent_words = ""
        self._progress = Progress(
            TextColumn("[dim]call"),
            BarColumn(bar_width=BAR_CELLS - 8),
            TextColumn("[dim]turn {task.completed:.0f} of {task.total:.0f}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._scripted = n_turns is not None
        self._task = self._progress.add_task("call", total=n_turns)
        self._meter = meter
        self._live = Live(console=console, refresh_per_second=12, transient=True)

    def __enter__(self) -> LiveView:
        self._live.start()
        self._refresh()
        return self

    def __exit__(self, *_: object) -> None:
        self._close_agent()
        self._live.stop()

    # --- what the call tells ---

    def speaks(self, utterance: Utterance) -> None:
        self._progress.advance(self._task)

    def received(self, received: Received) -> None:
        event = received.event
        match received.type:
            case "voiceloop.partial":
                self._caller_settled, self._caller_open = event["stable"], event["unstable"]
            case "conversation.item.input_audio_transcription.completed":
                self._close_caller(event.get("transcript", ""))
            case "response.created":
                self._close_agent()
            case "response.output_audio_transcript.delta":
                self._agent_words += event["delta"]
            case "response.output_item.done":
                if event["item"]["type"] == "function_call":
                    self._tell_tool(f"{event['item']['name']} {event['item']['arguments']}")
            case "conversation.item.added":
                if event["item"]["type"] == "function_call_output":
                    self._tell_tool(f"= {event['item']['output']}")
            case "response.done":
                self._close_agent(event["response"].get("status", ""))
                self._tell_failure(event["response"])
            case "voiceloop.resumed":
                self._close_agent("incomplete")
                self._console.print(Text("(the line broke; the call goes on)", style="dim"))
            case "error":
                self._console.print(Text(f"error: {event['error'].get('message')}", style="red"))
            case _:
                return
        self._refresh()

    def finished(self, turn: TurnResult) -> None:
        if not self._scripted:
            return
        self._console.print(Padding(turn_summary(turn), (0, 0, 1, self._width)))

    # --- drawing ---

    def _close_caller(self, transcript: str) -> None:
        self._caller_settled = self._caller_open = ""
        if transcript:
            self._console.print(self._line("caller", CALLER, Text(transcript)))

    def _close_agent(self, status: str = "completed") -> None:
        if not self._agent_words.strip():
            return
        words = Text(self._agent_words.strip())
        if status != "completed":
            words.append(" —", style="dim")
        self._console.print(self._line(self._agent, AGENT, words))
        self._agent_words = ""

    def _tell_failure(self, response: Mapping[str, Any]) -> None:
        if response.get("status") != "failed":
            return
        error = (response.get("status_details") or {}).get("error") or {}
        reason = error.get("message") or error.get("code") or "the server does not say why"
        self._console.print(Text(f"(no answer: {reason})", style="red"))

    def _tell_tool(self, told: str) -> None:
        words = Text(" ".join(told.split())[:MAX_TOOL_CHARS], style="dim")
        self._console.print(self._line("tool", TOOL, words))

    def _line(self, who: str, color: str, words: Text) -> Table:
        grid = Table.grid(padding=0)
        grid.add_column(width=self._width)
        grid.add_column(overflow="fold")
        grid.add_row(Text(who, style=f"bold {color}"), words)
        return grid

    def _refresh(self) -> None:
        lines: list[RenderableType] = []
        if self._caller_settled or self._caller_open:
            words = Text(self._caller_settled)
            words.append(" " + self._caller_open, style="dim italic")
            lines.append(self._line("caller", CALLER, words))
        if self._agent_words.strip():
            lines.append(self._line(self._agent, AGENT, Text(self._agent_words.strip())))
        # Refreshed by Live's own thread at its own pace, never from here: drawing on the event
        # loop would delay the stamps of arriving audio.
        if self._scripted:
            lines.append(self._progress)
        if self._meter is not None:
            lines.append(self._meter)
        self._live.update(Group(*lines))


def turn_summary(turn: TurnResult) -> Group:
    """The gap in figures, the waterfall as a bar, and whether the answer held what it must."""
    head = Text()
    if turn.gap_ms is not None:
        head.append(f"{turn.gap_ms:.0f} ms", style="bold")
        head.append(" gap", style="dim")
    elif turn.cut_in:
        head.append("cut in before the caller had ended", style="bold red")
    else:
        head.append("no answer", style="bold red")
    if turn.hesitates and not turn.hesitation_cut:
        head.append("  ✓ hesitation left alone", style="green")
    if turn.barge_in is not None:
        head.append(f"  barge-in: silent after {turn.barge_in.audible_ms:.0f} ms", style="dim")
    if turn.expect:
        found = ", ".join(words_found(turn.expect, turn.answer))
        if turn.missing:
            head.append(f"  ✗ missing {', '.join(turn.missing)}", style="red")
        else:
            head.append(f"  ✓ said: {found}", style="green")
    rows: list[RenderableType] = [head]
    if turn.waterfall is not None:
        rows += waterfall_rows(turn.waterfall)
    return Group(*rows)


def waterfall_rows(waterfall: Waterfall) -> list[RenderableType]:
    """A colored bar whose cells are shared out by time, and the stages that took 5 ms or more."""
    bar = Text()
    names = []
    total_ms = max(waterfall.total_ms, 1e-9)
    drawn = 0
    for stage in waterfall.stages:
        upto = round(BAR_CELLS * (stage.start_ms + stage.ms) / total_ms)
        bar.append("█" * (upto - drawn), style=color_of(stage.name))
        drawn = upto
        if stage.ms >= NAMED_FROM_MS:
            name = Text("■ ", style=color_of(stage.name))
            name.append(f"{stage.name} {stage.ms:.0f}", style="dim")
            names.append(name)
    return [bar, Columns(names, padding=(0, 2))]
