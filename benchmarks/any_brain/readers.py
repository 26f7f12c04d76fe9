"""The readers of the turn's end: what 32 calls cost each, and beside a model without a head.

Load: the bundled caller's turns in real time, each of 32 calls with a silence between two turns as
long as the agent's answer. A judgement's time runs from the pause, where it is asked for, to its
arrival in the gateway's process; beside many the reader of the voice gives a second one, with what
the words add. A core's share is processor time over wall time, of one call.

Beside a model: SmolLM2-135M as published has no head for the end of the turn, as `cpu`'s and
`gpu`'s models have none; the call is held against that of the embedded agent.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from audio.frames import RECOGNIZER_HZ, VAD_WINDOW_MS
from benchmarks.any_brain.served import Found
from benchmarks.calls.ablation import EMBEDDED, SMOLLM2, Variant
from benchmarks.harness.harness import Bar
from benchmarks.turn_latency import Measured, Settings
from benchmarks.turn_latency import measure as play
from clients.call.script import Utterance, load_call, load_utterances
from clients.report.call_summary import summary_of
from clients.report.percentiles import percentile
from voiceloop.backends import ChatMessage, Partial, RecognizerOptions, Staged
from voiceloop.config import Config
from voiceloop.models.end_judges import end_reader_spec, voice_reader_spec
from voiceloop.workers.messages import WorkerSpec
from voiceloop.workers.supervisor import Supervisor

URL = ("http://127.0.0.1:1/v1",)  # nobody asks it: it makes the readers wanted
N_CALLS, LOAD_S = 32, 40.0
N_QUICK_CALLS, QUICK_LOAD_S = 2, 4.0
ANSWER_S = (2.0, 6.0)  # of the agent's answers, between the caller's turns
WORD_S = 0.3  # between two words of people, at 170 to 200 a minute
LOW_WINDOWS = 2  # of silence before a pause is judged
PAUSE_S = 0.25  # for so long it is, and the reader of many has time for its second judgement
MOST_P95_MS, MOST_MB, MOST_CORE_PERCENT = 40.0, 250.0, 2.0
LEAST_HELD, MOST_LATER_MS = 80.0, 20.0
N_TURNS, N_QUICK_TURNS = 24, 1
HISTORY = (ChatMessage("assistant", "Juniper Cafe, good morning. What can I get you?"),)
WITH_HEAD, WITHOUT_HEAD = "embedded", "a model without a head"

Delays = tuple[list[float], list[float]]  # ms, of first and of second judgements
Caller = Callable[[Supervisor, int, float, Delays], Awaitable[None]]


async def measure(found: Found, *, is_quick: bool, seed: int) -> None:
    config = Config(preset="remote", stt_url=URL, llm_url=URL, tts_url=URL)
    n_calls, load_s = (N_QUICK_CALLS, QUICK_LOAD_S) if is_quick else (N_CALLS, LOAD_S)
    for name, spec, caller in (
        ("words", end_reader_spec(config), _words_of),
        ("voice", voice_reader_spec(config), _voice_of),
    ):
        row = await _load(spec, caller, n_calls, load_s, seed) if spec is not None else {}
        found.figures[name] = row
        judged = f"reader of {name}, {n_calls} calls"
        found.bars += [
            Bar(f"{judged}: judgement p95", row.get("p95_ms"), MOST_P95_MS, n=row.get("n")),
            Bar(f"{judged}: memory", row.get("memory_mb"), MOST_MB, "MB"),
            Bar(f"{judged}: of a core a call", row.get("core_percent"), MOST_CORE_PERCENT, "%"),
        ]
    await _beside_a_model(found, N_QUICK_TURNS if is_quick else N_TURNS, seed)


async def _load(
    spec: WorkerSpec, caller: Caller, n_calls: int, load_s: float, seed: int
) -> dict[str, Any]:
    delays: Delays = ([], [])
    async with Supervisor([spec]) as reader:
        pid = reader.workers[0].pid
        assert pid is not None
        await caller(reader, seed, 0.0, ([], []))  # one turn, not counted: buffers, tables
        began_s, busy_s = time.monotonic(), _processor_s(pid)
        calls = (caller(reader, seed + 1 + n, load_s, delays) for n in range(n_calls))
        await asyncio.gather(*calls)
        share = (_processor_s(pid) - busy_s) / (time.monotonic() - began_s) / n_calls
        memory_mb = _resident_mb(pid)
    first, second = delays
    return {
        "n": len(first),
        "p50_ms": round(percentile(first, 50), 1),
        "p95_ms": round(percentile(first, 95), 1),
        "second_n": len(second),
        "second_p50_ms": round(percentile(second, 50), 1) if second else None,
        "second_p95_ms": round(percentile(second, 95), 1) if second else None,
        "memory_mb": round(memory_mb, 1),
        "core_percent": round(100.0 * share, 2),
    }


def _utterances() -> Sequence[Utterance]:
    script = load_call()
    return load_utterances(script, script.voices[0], RECOGNIZER_HZ)


async def _words_of(reader: Supervisor, seed: int, for_s: float, delays: Delays) -> None:
    """One caller's words, staged as they come; then all of them, at the pause."""
    draw, until_s = random.Random(seed), time.monotonic() + for_s
    said = [one.turn.text for one in _utterances()]
    await asyncio.sleep(draw.uniform(0.0, for_s / 4))
    while True:
        words = draw.choice(said).split()
        branch = await reader.language_model().branch(f"load_{seed}.{draw.random()}", HISTORY)
        for n_words in range(1, len(words)):
            branch.stage(n_words, " ".join(words[:n_words]))
            await asyncio.sleep(WORD_S if for_s else 0.0)
        asked_s = time.monotonic()
        branch.stage(len(words), " ".join(words))
        async for event in branch.events():
            if isinstance(event, Staged) and event.stage_id == len(words):
                delays[0].append(1000.0 * (time.monotonic() - asked_s))
                break
        await branch.close()
        if time.monotonic() >= until_s:
            return
        await asyncio.sleep(draw.uniform(*ANSWER_S))


async def _voice_of(reader: Supervisor, seed: int, for_s: float, delays: Delays) -> None:
    """One caller's sound, window by window; flushed two windows into the pause."""
    draw, until_s = random.Random(seed), time.monotonic() + for_s
    utterances = _utterances()
    n_window = int(RECOGNIZER_HZ * VAD_WINDOW_MS / 1000)
    stream = await reader.recognizer().open(f"load_{seed}", RecognizerOptions())
    told: list[tuple[float, bool]] = []  # when, and whether it answers a flush
    is_answered = asyncio.Event()

    async def hear() -> None:
        async for event in stream.events():
            if isinstance(event, Partial) and event.p_voice is not None:
                told.append((time.monotonic(), event.flushed))
                if event.flushed:
                    is_answered.set()

    hearing = asyncio.create_task(hear())
    await asyncio.sleep(draw.uniform(0.0, for_s / 4))
    while True:
        one = draw.choice(utterances)
        sound = one.recording.samples[one.onset : one.end + LOW_WINDOWS * n_window]
        next_s = time.monotonic()
        for at in range(0, len(sound), n_window):
            stream.feed(sound[at : at + n_window].astype("<i2").tobytes())
            next_s += VAD_WINDOW_MS / 1000 if for_s else 0.0
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
        told.clear()
        is_answered.clear()
        asked_s = time.monotonic()
        stream.flush()
        await asyncio.sleep(PAUSE_S)
        await is_answered.wait()
        for at_s, answers in told:
            delays[not answers].append(1000.0 * (at_s - asked_s))
        stream.finalize()
        if time.monotonic() >= until_s:
            break
        await asyncio.sleep(draw.uniform(*ANSWER_S))
    hearing.cancel()
    await stream.close()


def _processor_s(pid: int) -> float:
    """What the process has computed since its start (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def _beside_a_model(found: Found, n_turns: int, seed: int) -> None:
    variants = {WITH_HEAD: Variant(EMBEDDED), WITHOUT_HEAD: Variant(SMOLLM2)}
    measured = {name: Measured() for name in variants}
    await play(Settings(n_turns, variants, seed), measured)
    rows = {name: summary_of(one.calls) for name, one in measured.items()}
    gaps = {name: row["gap_ms"]["p50"] for name, row in rows.items()}
    found.figures["beside a model"] = {
        name: {key: row[key] for key in ("n_turns", "gap_ms", "cut_ins", "clauses_held")}
        for name, row in rows.items()
    }
    held = rows[WITHOUT_HEAD]["clauses_held"]
    known = None not in gaps.values()
    found.bars += [
        Bar(f"{WITHOUT_HEAD}: turns with a clause held", None if held is None else 100.0 * held,
            LEAST_HELD, "%", at_least=True),
        Bar(f"{WITHOUT_HEAD}: gap p50 later than the embedded agent's",
            gaps[WITHOUT_HEAD] - gaps[WITH_HEAD] if known else None, MOST_LATER_MS),
    ]  # fmt: skip
