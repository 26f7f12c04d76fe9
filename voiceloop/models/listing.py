"""``voiceloop models``: what is known, what is on disk, and where; and the fetching of the rest.

Owns what a name on that command line means and the lines that are printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from voiceloop.config import load_config
from voiceloop.errors import ConfigError
from voiceloop.models.cache import find_repo, hub_folder
from voiceloop.models.catalog import MODELS, PRESETS, Preset
from voiceloop.models.gates import RUN_BY, Gate, bar, keep, own_file
from voiceloop.models.machine import Machine, this_machine
from voiceloop.models.model import Model, Repo
from voiceloop.models.preset_check import missing_pieces
from voiceloop.models.presets import formats_of, worker_specs
from voiceloop.models.resolve import any_repo, catalog_model, resolve_model, resolve_preset_model


def run_list() -> int:
    hub = hub_folder()
    machine = this_machine()
    for preset in PRESETS:
        taken = {role: resolve_preset_model(model, hub) for role, model in preset.models.items()}
        lacks = missing_pieces(preset, taken, machine, hub)
        ready = "ready" if not lacks else f"lacks {', '.join(one.subject for one in lacks)}"
        print(f"{preset.name}: {preset.summary}; {_needs(preset)}\n  {ready}")
        for role, resolved in taken.items():
            print(_line(role, resolved.model, hub))
    others = [m for m in MODELS if not any(m in p.models.values() for p in PRESETS)]
    print("further models (voiceloop models pull NAME):")
    for model in others:
        print(_line(model.role, model, hub))
    print(f"cache: {hub}")
    return 0


def _needs(preset: Preset) -> str:
    memory = f"{preset.memory_mb / 1000:.1f} GB of memory"
    if preset.gpu_memory_mb:
        memory += f", {preset.gpu_memory_mb / 1000:.0f} GB on the GPU"
    return f"{preset.size_mb / 1000:.1f} GB on disk, {memory}" if preset.repos else memory


def _line(role: str, model: Model, hub: Path) -> str:
    if model.repo is None:
        return f"  {role:<10}  {model.name:<42}  {model.licence:<14}  in a package"
    resolved = resolve_model(model, hub)
    state = f"not here: voiceloop models pull {model.name}" if resolved.missing else "on disk"
    size = f"{model.size_mb} MB"
    return f"  {role:<10}  {model.name:<42}  {model.licence:<14}  {size:>8}  {state}"


def run_pull(name: str) -> int:
    """Raises: ModelUnavailable, ConfigError."""
    from voiceloop.models.pull import pull

    repos = repos_of(name)
    if not repos:
        by_hand = "".join(model.install for model in MODELS if model.name == name)
        told = f"it comes with a package: {by_hand}" if by_hand else "it comes with its packages"
        print(f"{name}: nothing to fetch, {told}")
        return 0
    hub = hub_folder()
    for preset in PRESETS:
        if preset.name == name:
            for line in before_pull(preset, this_machine(), hub):
                print(line)
    pull(repos, hub, print)
    return 0


def run_gate(name: str, weights: str, kv: str, *, exact: bool) -> int:
    """``voiceloop models gate``: 0 where the format passes, 1 where it misses the bar.

    Raises: ConfigError.
    """
    from voiceloop.workers.gate import run_gate as measure

    flags = {
        "preset": "embedded", "llm_model": name, "engine.weights": weights, "engine.kv": kv,
    }  # fmt: skip
    config = load_config(flags=flags)
    specs = worker_specs(config, wanted=("engine",))
    options = next(role.options for spec in specs for role in spec.roles if role.role == "engine")
    formats = formats_of(config)
    if formats is None or formats.is_dense:
        raise ConfigError("models gate: expected --weights or --kv other than bf16, found bf16")
    found = measure(options, exact=exact, tell=lambda line: print(line, flush=True))
    gate = Gate(
        formats.model, formats.weights, formats.kv, RUN_BY[found.layers],
        round(found.agreement, 4), round(found.kl_nats, 5), found.n_places,
        None if found.of_fp32 is None else round(found.of_fp32, 4), found.n_calls, found.n_same,
    )  # fmt: skip
    keep(gate)
    told = f"{formats.model} in {replace(formats, layers=gate.layers).told}"
    print(f"{told}: {gate.told}; expected {bar().told}")
    print("passed" if gate.passes(bar()) else "missed", f"(kept in {own_file()})")
    return 0 if gate.passes(bar()) else 1


def before_pull(preset: Preset, machine: Machine, hub: Path) -> Iterator[str]:
    """How much a preset's models are, and what else it needs that no download brings."""
    taken = {role: resolve_preset_model(model, hub) for role, model in preset.models.items()}
    absent = [repo for resolved in taken.values() for repo in resolved.missing]
    size_mb = sum(repo.size_mb for repo in absent)
    yield f"{preset.name}: {preset.summary}"
    # 50 Mbit/s carry 6 MB a second.
    minutes = size_mb / 6 / 60
    parts = "1 part" if len(absent) == 1 else f"{len(absent)} parts"
    yield (
        f"{size_mb / 1000:.1f} GB to fetch in {parts}, some {minutes:.0f} min at 50 Mbit/s, "
        f"into {hub}"
    )
    for one in missing_pieces(preset, taken, machine, hub):
        if one.kind not in ("model", "disk"):
            yield f"note: {preset.name} also lacks {one.subject}: {one.found}; {one.remedy}"


def run_path(name: str | None) -> int:
    """Print the cache's folder, or those of one preset or model. Raises: ConfigError."""
    hub = hub_folder()
    if name is None:
        print(hub)
        return 0
    repos = repos_of(name)
    if not repos:
        raise ConfigError(
            f"expected a model of the cache, found {name}: it comes with its packages"
        )
    for folder in _folders(repos, name, hub):
        print(folder)
    return 0


def _folders(repos: tuple[Repo, ...], name: str, hub: Path) -> Iterator[Path]:
    for repo in repos:
        found = find_repo(repo, hub)
        if found.folder is None or not found.is_whole:
            raise ConfigError(
                f"expected {repo.id} on disk, found nothing whole in {hub}: "
                f"voiceloop models pull {name}"
            )
        yield found.folder


def repos_of(name: str) -> tuple[Repo, ...]:
    """The repositories of a preset, of a model of the catalog, or of any id.

    Raises:
        ConfigError: the name is none of these.
    """
    for preset in PRESETS:
        if preset.name == name:
            return preset.repos
    model = catalog_model(name)
    if model is not None:
        return model.repos
    if name.count("/") != 1 or name.startswith(("/", ".", "~")):
        known = [preset.name for preset in PRESETS if preset.repos]
        known += [model.name for model in MODELS if model.repos]
        names = ", ".join(sorted(known))
        raise ConfigError(f"expected one of {names}, or an id owner/name, found {name!r}")
    return (any_repo(name),)
