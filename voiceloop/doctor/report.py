"""``voiceloop doctor``: looks the machine over and says what is wrong and what to do about it.

Each check yields findings; a finding that is a problem carries its remedy. The self-tests start the
preset's own workers, so what passes here is what a server would run.
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import is_dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.console import Console

from audio.opus import is_available
from voiceloop import __version__
from voiceloop.access.origins import is_loopback
from voiceloop.cell import can_filter
from voiceloop.config import Config, all_keys
from voiceloop.doctor.agent_knowledge import check_agent_knowledge
from voiceloop.doctor.agent_tools import check_agent_tools
from voiceloop.doctor.finding import Finding, Level
from voiceloop.doctor.services import check_services
from voiceloop.errors import ConfigError, VoiceLoopError
from voiceloop.log_form import keyless
from voiceloop.models.cache import hub_folder
from voiceloop.models.catalog import PRESETS
from voiceloop.models.end_judges import end_judges
from voiceloop.models.gates import COMMAND, DENSE, bar, doubt_of
from voiceloop.models.machine import Machine, installed_version, this_machine
from voiceloop.models.preset_check import (
    Choice,
    choose,
    missing_models,
    missing_pieces,
    replaced_models,
    summary_of,
)
from voiceloop.models.presets import (
    context_tokens,
    embedded_model_dir,
    formats_of,
    note_on_agent,
    resolve_agent,
    resolve_agents,
    worker_specs,
)
from voiceloop.models.resolve import known_voices, resolve_models, roles_elsewhere
from voiceloop.workers.messages import WorkerSpec
from voiceloop.workers.supervisor import Supervisor

STAGE_DEADLINE_S = 30.0
SHOWN_CHARACTERS = 80  # of a setting's value

# distribution -> what it is for, and the extra that brings it ("" for none); what a preset needs
# beyond these stands in its table
REQUIRED = {
    "numpy": ("samples", ""),
    "msgspec": ("messages", ""),
    "starlette": ("the server", ""),
    "uvicorn": ("the server", ""),
    "websockets": ("the wire", ""),
    "httpx": ("remote models", ""),
    "onnxruntime": ("voice activity", ""),
    "huggingface-hub": ("voiceloop models pull", ""),
    "soundfile": ("audio files", ""),
}
OPTIONAL = {
    "matplotlib": ("the demo's pictures", "embedded"),
    "sounddevice": ("microphone and speaker of voiceloop talk", "talk"),
    "faster-whisper": ("Whisper as a recognizer", "whisper"),
    "livekit": ("echo cancellation of voiceloop talk", "talk"),
    "mcp": ("tools of MCP servers", "mcp"),
    "aiortc": ("calls over WebRTC", "webrtc"),
    "aiosipua": ("calls by SIP", "sip"),
    "g722": ("G.722 of calls by SIP", "sip"),
    "opuslib-next-bundled": ("Opus of calls over WebRTC and by SIP", "webrtc"),
    "webrtc-noise-gain": ("noise reduction for a session that asks for it", "noise"),
    "pyrage": ("recordings encrypted for a key of age", "recording"),
}
MIN_CORES = 2

MARKS: dict[Level, str] = {
    "ok": "[green]ok     [/]",
    "note": "[yellow]note   [/]",
    "problem": "[red]problem[/]",
}


def run_doctor(config: Config, console: Console | None = None) -> int:
    """Print every finding as it is made. Returns 0, or 1 when there is a problem.

    config: as ``serve`` would be given it. What answers its agent's tools is asked whether it is
    there, and none of them is called.

    Raises:
        ConfigError: no such preset, or the agent file is wrong.
    """
    machine, hub, asked = this_machine(), hub_folder(), config
    choice = choose(config, machine, hub)
    config = replace(config, preset=choice.preset.name)
    agent = None if config.agent is None else resolve_agent(config)
    console = console or Console()
    console.print(f"[bold]voiceloop {__version__}[/] on {platform.platform()}")
    n_problems, has_pip = 0, False

    def show(finding: Finding) -> None:
        nonlocal n_problems, has_pip
        n_problems += finding.level == "problem"
        has_pip |= "pip " in finding.remedy
        console.print(MARKS[finding.level], end=" ")
        lines = [f"{finding.subject}: {finding.found}"]
        if finding.remedy:
            lines.append(f"        -> {finding.remedy}")
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)

    for findings in (
        explain_settings(asked),
        check_python(),
        check_packages(),
        check_libraries(),
        check_machine(machine),
        check_webrtc(config),
        check_models(),
        check_preset(config, choice, machine, hub),
        check_formats(config),
        check_agent(config),
        check_end_judges(config),
    ):
        for finding in findings:
            show(finding)
    specs: Sequence[WorkerSpec] = ()
    try:
        specs = worker_specs(config)
        context_tokens(config)
    except ConfigError as error:
        if not missing_models(choice.preset, resolve_models(config, choice.preset, hub)):
            show(Finding("problem", "configuration", error.message, "mend the configuration"))
    with console.status("testing each stage"):
        asyncio.run(_show_all(self_test(specs), show))
        asyncio.run(_show_all(check_services(config), show))
        if agent is not None and config.agent is not None:
            folder = str(config.agent.resolve().parent)
            asyncio.run(_show_all(check_agent_tools(agent, folder), show))
            asyncio.run(_show_all(check_agent_knowledge(agent, os.environ), show))
    if has_pip:
        console.print(f"pip is this environment's: {sys.executable} -m pip", soft_wrap=True)
    if n_problems:
        console.print(f"[red]{n_problems} problem{'s' if n_problems > 1 else ''} found[/]")
    else:
        command = "serve" if config.agent or config.llm_url else "demo"
        console.print(f"[green]all is well[/]: try voiceloop {command}")
    return 1 if n_problems else 0


def explain_settings(config: Config) -> Iterator[Finding]:
    """Each key that is not at its default: its value, the default, and what it does."""
    for path, one in all_keys().items():
        value = attrgetter(path)(config)
        if value == one.default or (config.realtime_url and path == "llm_url"):
            continue
        if isinstance(value, tuple) and value and is_dataclass(value[0]):
            for index, table in enumerate(value):
                yield Finding("ok", f"setting {path}[{index}]", _keys_told(table))
            continue
        default = "" if one.default in (None, "", (), {}) else f" (default {one.default})"
        yield Finding(
            "ok", f"setting {path}", f"{_shown(value, one.is_secret)}{default}. {one.summary}"
        )


def _keys_told(table: Any) -> str:
    """Return the keys of one `[[table]]` that are not at their default, with their values."""
    values = ((path, one, attrgetter(path)(table)) for path, one in all_keys(type(table)).items())
    return ", ".join(
        f"{path} = {_shown(value, one.is_secret)}"
        for path, one, value in values
        if value != one.default
    )


def _shown(value: Any, is_secret: bool) -> str:
    """A setting's value as far as it is shown."""
    if is_secret:
        return "set, not shown"
    told = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return keyless(told)[:SHOWN_CHARACTERS]


def check_python() -> Iterator[Finding]:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info >= (3, 14):
        yield Finding("note", "Python", found, "voiceloop is tested with 3.11 to 3.13")
    else:
        yield Finding("ok", "Python", found)


def check_packages(
    version: Callable[[str], str | None] = installed_version,
) -> Iterator[Finding]:
    """Distributions by their metadata: nothing heavy is imported."""
    present: list[str] = []
    missing: list[Finding] = []
    tables: tuple[tuple[dict[str, tuple[str, str]], Level], ...] = (
        (REQUIRED, "problem"),
        (OPTIONAL, "note"),
    )
    for packages, level in tables:
        for name, (purpose, extra) in packages.items():
            number = version(name)
            if number is not None:
                present.append(f"{name} {number}")
                continue
            target = f"voiceloop[{extra}]" if extra else "voiceloop"
            found = f"not installed; it is needed for {purpose}"
            missing.append(Finding(level, name, found, f"pip install '{target}'"))
    yield Finding("ok", "packages", ", ".join(present))
    yield from missing


def check_webrtc(
    config: Config, version: Callable[[str], str | None] = installed_version
) -> Iterator[Finding]:
    """Whether browsers can call: libopus, and the UDP port. What is not installed was told."""
    if version("aiortc") is None:
        return
    asked, install = config.webrtc, "pip install 'voiceloop[webrtc]'"
    if not is_available():
        yield Finding("note", "WebRTC", "libopus cannot be loaded", install)
        return
    host = "0.0.0.0" if asked.address else config.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((host, asked.port))
    except OSError as error:
        found = f"UDP port {asked.port} of {host}: {error.strerror}; one of the next 15 is taken"
        yield Finding("note", "WebRTC", found, "webrtc.port")
        return
    if asked.port or is_loopback(host):
        where = f"UDP port {asked.port}" if asked.port else "any free UDP port"
        yield Finding("ok", "WebRTC", f"{where} of {asked.address or host}")
    else:
        found = f"any free UDP port of {asked.address or host}: a firewall lets in what it knows"
        yield Finding("note", "WebRTC", found, "webrtc.port = 8443, and open it for UDP")


def check_preset(config: Config, choice: Choice, machine: Machine, hub: Path) -> Iterator[Finding]:
    """The chosen preset: which model has which role, what stands in for another, what it lacks."""
    preset = choice.preset
    taken = resolve_models(config, preset, hub)
    found = f"{summary_of(preset, taken)}; {choice.reason}"
    yield Finding("ok", f"preset {preset.name}", found, choice.better)
    for role, resolved in taken.items():
        voices = sorted(known_voices(resolved)) if role == "voice" else []
        named = f"; voices: {', '.join(voices)}" if voices else ""
        if resolved.in_place_of is None or named:
            yield Finding("ok", role, f"{resolved.weights_name}{named}")
    for role in sorted(roles_elsewhere(config)):
        yield Finding("ok", role, "at workers elsewhere, which are not asked")
    for one in replaced_models(taken):
        yield Finding("note", f"without {one.subject}", one.found, one.remedy)
    for one in missing_pieces(preset, taken, machine, hub):
        yield Finding(
            "problem", f"preset {preset.name}", f"lacks {one.subject}: {one.found}", one.remedy
        )
    others = ", ".join(one.name for one in PRESETS if one != preset)
    yield Finding("ok", "other presets", f"{others}: voiceloop doctor --preset NAME looks at one")


def check_agent(config: Config) -> Iterator[Finding]:
    """Yield what is to be expected of the language model with this agent."""
    if (note := note_on_agent(config)) is not None:
        yield Finding("note", "agent", note)


def check_formats(config: Config) -> Iterator[Finding]:
    """Whether the formats of the language model have passed their quality gate.

    config: with its preset chosen.
    """
    formats = formats_of(config)
    if formats is None or formats.is_dense:
        return
    doubt = doubt_of(formats)
    if doubt is None:
        found = f"{formats.told} passed: {bar().told}"
        yield Finding("ok", "quality gate", found)
    else:
        asked = f"--weights {formats.weights}" + (f" --kv {formats.kv}" * (formats.kv != DENSE))
        remedy = f"{COMMAND} MODEL {asked}; or engine.weights, engine.kv"
        yield Finding("note", "quality gate", doubt, remedy)


def check_end_judges(config: Config) -> Iterator[Finding]:
    """Yield what judges the end of a caller's turn, and what is lost where a judge is missing."""
    try:
        agents = resolve_agents(config).values() or [resolve_agent(config)]
        judges = end_judges(config, {agent.language for agent in agents})
    except ConfigError:
        return  # told beside the worker specs
    yield Finding("ok", "end of turn", f"judged by {judges.told}")
    for lack in judges.lacking:
        yield Finding("note", "end of turn", lack)


def check_libraries() -> Iterator[Finding]:
    """System libraries that Python packages load, where their wheels do not bring them."""
    try:
        import soundfile
    except ImportError:
        return  # the packages' check has said so
    except OSError as error:
        remedy = "install libsndfile (Debian: apt install libsndfile1)"
        yield Finding("problem", "libsndfile", str(error), remedy)
        return
    yield Finding("ok", "libsndfile", soundfile.__libsndfile_version__)


def check_machine(machine: Machine) -> Iterator[Finding]:
    if machine.n_cores < MIN_CORES:
        remedy = "the embedded models share one core: expect answers to come late"
        yield Finding("note", "processor", f"{machine.n_cores} core", remedy)
    else:
        yield Finding("ok", "processor", f"{machine.n_cores} cores, {platform.machine()}")
    if machine.memory_mb is not None:
        yield Finding("ok", "memory", f"{machine.memory_mb} MB available")
    if can_filter():
        yield Finding("ok", "kernel", "filters what decoders and Python tools may do")
    else:
        found = "filters no system calls: what decodes uploads has bounds of memory and time alone"
        remedy = "run on Linux with seccomp, on x86-64 or arm64, where strangers upload files"
        yield Finding("note", "kernel", found, remedy)
    named = "; ".join(f"{gpu.name}, {gpu.memory_mb} MB" for gpu in machine.gpus)
    yield Finding("ok", "GPU", named or "none; only the preset gpu needs one")


def check_models(folder: Path | None = None) -> Iterator[Finding]:
    """The embedded agent's model; the recognizer's and the voice's say so in their self-tests."""
    try:
        folder = folder or embedded_model_dir()
    except VoiceLoopError as error:
        yield Finding("problem", "agent model", error.message, "pip install voiceloop again")
        return
    patterns = ("config.json", "tokenizer.json", "*.safetensors")
    missing = [pattern for pattern in patterns if not any(folder.glob(pattern))]
    if missing:
        found = f"expected {', '.join(missing)} in {folder}, found none"
        remedy = "install voiceloop from a complete checkout, or give --llm-url"
        yield Finding("problem", "agent model", found, remedy)
        return
    n_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    yield Finding("ok", "agent model", f"{n_bytes / 1e6:.0f} MB in {folder}")


# --- self-tests ---------------------------------------------------------------------------------


async def _show_all(found: AsyncIterator[Finding], show: Callable[[Finding], None]) -> None:
    async for finding in found:
        show(finding)


async def self_test(specs: Sequence[WorkerSpec]) -> AsyncIterator[Finding]:
    """One second of work for each stage, in the processes a server would use."""
    from voiceloop.doctor import stages as doctor_stages

    yield await _stage("voice activity", asyncio.to_thread(doctor_stages.hear_silence))
    for spec in specs:
        roles = ", ".join(role.role for role in spec.roles)
        started = time.monotonic()
        supervisor = Supervisor([spec])
        try:
            await supervisor.start()
        except VoiceLoopError as error:
            remedy = "see what its preset lacks, above; a complete checkout has the embedded models"
            yield Finding("problem", f"worker {spec.name} ({roles})", error.message, remedy)
            continue
        took_s = time.monotonic() - started
        details = (f"; {state.detail}" for state in supervisor.states() if state.detail)
        found = f"ready after {took_s:.1f} s{''.join(details)}"
        yield Finding("ok", f"worker {spec.name} ({roles})", found)
        try:
            for role in spec.roles:
                test = doctor_stages.STAGES[role.role]
                yield await _stage(role.role, test(supervisor))
        finally:
            await supervisor.close()


async def _stage(subject: str, test: Any) -> Finding:
    try:
        async with asyncio.timeout(STAGE_DEADLINE_S):
            return Finding("ok", subject, await test)
    except TimeoutError:
        found = f"no answer within {STAGE_DEADLINE_S:.0f} s"
        return Finding("problem", subject, found, "is the machine busy? try again when it is not")
    except Exception as error:  # whatever a stage does, the doctor goes on and tells it
        found = str(error) or type(error).__name__
        return Finding("problem", subject, found, "pip install its preset's extra again")
