"""Which preset a server or a worker runs, and what there is to tell a person about the choice."""

from __future__ import annotations

from dataclasses import replace

from voiceloop.config import AUTO, Config
from voiceloop.errors import ConfigError
from voiceloop.models.cache import hub_folder
from voiceloop.models.gates import Formats, doubt_of
from voiceloop.models.machine import this_machine
from voiceloop.models.preset_check import choose, find_preset, replaced_models
from voiceloop.models.presets import note_on_agent, worker_specs
from voiceloop.models.resolve import resolve_models


def with_preset(config: Config) -> tuple[Config, list[str]]:
    """The configuration with its preset chosen, and notes of a line each. Raises: ConfigError."""
    hub, notes = hub_folder(), []
    choice = choose(config, this_machine(), hub)
    if config.preset == AUTO:
        notes.append(f"preset {choice.preset.name}: {choice.reason}")
    for one in replaced_models(choice.preset, resolve_models(config, choice.preset, hub)):
        notes.append(f"without {one.subject}: {one.found}; {one.remedy}")
    if choice.better:
        notes.append(f"a better one: {choice.better}")
    config = replace(config, preset=choice.preset.name)
    if (note := note_on_agent(config)) is not None:
        notes.append(note)
    formats = formats_of(config)
    if formats is not None and (doubt := doubt_of(formats)) is not None:
        notes.append(f"quality gate: {doubt}")
    return config, notes


def formats_of(config: Config) -> Formats | None:
    """How the language model of a chosen preset is kept; None where it is elsewhere, or missing."""
    taken = resolve_models(config, find_preset(config.preset), hub_folder())
    try:
        roles = [role for spec in worker_specs(config) for role in spec.roles]
    except ConfigError:
        return None  # whoever starts it is told
    options = next((role.options for role in roles if role.role == "engine"), None)
    return Formats.of(taken["engine"].weights_name, options) if options is not None else None
