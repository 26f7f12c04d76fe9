"""The way from a configuration to the worker processes of a server.

Owns the plan: which process holds which model, with which options, taken from the preset's table in
``catalog.py`` and the overrides. A URL, or workers elsewhere, replace that part of the preset. What
is planned here `opening.py` starts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from voiceloop.agent import AgentConfig
from voiceloop.agent_file import (
    EMBEDDED_AGENT_NAME,
    check_models,
    embedded_agent,
    load_agent,
)
from voiceloop.backends import MAIN_MODEL, RoleName
from voiceloop.config import AUTO, Config, EngineSettings, nearest
from voiceloop.errors import ConfigError
from voiceloop.models.cache import hub_folder, read_json
from voiceloop.models.catalog import APART, CPU, EMBEDDED, EMBEDDED_AGENT, MOONSHINE_TINY, Preset
from voiceloop.models.engine_options import engine_options
from voiceloop.models.gates import Formats, doubt_of, verdicts
from voiceloop.models.machine import n_cores, this_machine
from voiceloop.models.preset_check import (
    CPU_BUILD,
    choose,
    find_preset,
    missing_models,
    missing_pieces,
    replaced_models,
    resolve_preset,
    summary_of,
)
from voiceloop.models.resolve import (
    ResolvedModel,
    capabilities_of,
    embedded_folder,
    resolve_model,
    resolve_models,
)
from voiceloop.workers.messages import HeldModel, RoleSpec, WorkerSpec

log = logging.getLogger(__name__)

REPLY_TOKENS = 256
# Each keeps its lines as sound, some 0.3 MB, and may have processes of its own. Chosen.
MOST_AGENTS = 256
AGENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")

EMBEDDED_LIMITS = (
    "{agent} is answered by the embedded model (13M): it takes orders and bookings. Plain "
    "questions get the sentence of the instructions that answers them (`quote`); it gets others "
    "wrong, makes things up, and calls tools it should not. For more: --llm-url URL, or voiceloop "
    "models pull cpu"
)

# Of a language model that a person names in a preset which has no bounds for it: the cpu preset's.
# By its own length (32768 tokens are common) a model of 1.5B would keep a gigabyte for keys and
# values, one of 8B four; two or three callers of a preset on a CPU need no more than these.
NAMED_CONTEXT_LENGTH, NAMED_CONTEXTS = 4096, 2
KEPT_SPEECH_MB = 32  # some six minutes of speech; the least recently said goes first
KEEPS_CLAUSES = ("hibari", "kokoro")  # voices by their loaders


def embedded_model_dir() -> Path:
    """Return where the embedded agent's model lies. Raises: ConfigError."""
    return embedded_folder() / "agent"


def resolve_agent(config: Config) -> AgentConfig:
    """The agent file of the configuration, else the preset's.

    Raises:
        ConfigError: the file is wrong, or names a voice or a language that no model here has.
    """
    _, preset, taken = plan(config)
    if config.agent is not None:
        return _resolved(config.agent, config, taken)
    is_own = "engine" not in taken or taken["engine"].model == EMBEDDED_AGENT
    return embedded_agent() if preset == EMBEDDED and is_own else AgentConfig()


def resolve_agents(config: Config) -> dict[str, AgentConfig]:
    """The agents of the folder at `agents` by name, in order; none where none is named.

    Raises: ConfigError: as `resolve_agent`, or the folder is not there, or holds no agents or too
        many.
    """
    if config.agents is None:
        return {}
    files = sorted(config.agents.glob("*.toml")) if config.agents.is_dir() else []
    if not 1 <= len(files) <= MOST_AGENTS:
        raise ConfigError(
            f"agents: expected a folder with 1 to {MOST_AGENTS} agent files (*.toml), found "
            f"{len(files)} in {config.agents}"
        )
    strange = next((file for file in files if not AGENT_NAME.fullmatch(file.stem)), None)
    if strange is not None:
        raise ConfigError(
            f"agents: expected file names of letters, digits, _ and -, found {strange.name!r}"
        )
    taken = plan(config)[2]
    return {file.stem: _resolved(file, config, taken) for file in files}


def _resolved(file: Path, config: Config, taken: Mapping[RoleName, ResolvedModel]) -> AgentConfig:
    agent = load_agent(file)
    names = [MAIN_MODEL, *(one.name for one in config.models)]
    if agent.model and agent.model not in names:
        raise ConfigError(
            f"{file}: model: expected {', '.join(names)} of this server, found {agent.model!r}"
            f"{nearest(agent.model, names)}"
        )
    if "voice" in taken:
        agent = _with_voice_of(taken["voice"], agent, file)
    check_models(agent, capabilities_of(taken), str(file))
    for told in not_shared(agent, taken):
        log.warning("%s: %s", file, told)
    return agent


def not_shared(agent: AgentConfig, taken: Mapping[RoleName, ResolvedModel]) -> list[str]:
    """A sentence for each model here that does not share the agent's language.

    A recognizer that does not is refused by `check_models`; what a service knows is not known.
    """
    code = agent.language.partition("-")[0].lower()
    if code == "en":
        return []
    told = []
    verbs = {"recognizer": "hears", "engine": "answers in", "voice": "speaks"}
    for role, resolved in taken.items():
        model, does = resolved.model, verbs[role]
        is_english = model.languages == "English"
        names_language = agent.voice.partition("-")[0].lower() == code
        if is_english or (model.loader == "espeak" and not names_language):
            remedy = f'; voice = "{code}" speaks it' if model.loader == "espeak" else ""
            told.append(f"language = {agent.language!r}, but {model.name} {does} English{remedy}")
    return told


def _with_voice_of(resolved: ResolvedModel, agent: AgentConfig, source: Path) -> AgentConfig:
    """The agent in the model's own voice, where it names one of the model that may stand in for it.

    Which of the two a server has depends on what is installed; no agent file should fail on that.
    """
    if agent.voice in resolved.model.voices:
        return agent
    for other in (resolved.model.fallback, resolved.in_place_of):
        if other is not None and agent.voice in other.voices:
            log.warning(
                "%s: voice %s is one of %s; %s speaks here, in its own voice. Remedy: "
                "tts_model = %r, or voice = 'default'",
                source, agent.voice, other.name, resolved.model.name, other.name,
            )  # fmt: skip
            return replace(agent, voice="default")
    return agent


def note_on_agent(config: Config) -> str | None:
    """Return what whoever names an agent should know of the embedded model; None where it is none.

    The cafe is the one agent that this model was made for. Of those that ship beside it the
    pizzeria has 10 of 12 plain turns right, the dentist 9 (RESULTS.md).
    """
    _, _, taken = plan(config)
    is_embedded = "engine" in taken and taken["engine"].model == EMBEDDED_AGENT
    is_another = config.agent is not None and str(config.agent) != EMBEDDED_AGENT_NAME
    return EMBEDDED_LIMITS.format(agent=config.agent) if is_embedded and is_another else None


def context_tokens(config: Config) -> int:
    """The prompt's bound: what the language model takes less a reply. 0: not known, no bound.

    Raises:
        ConfigError: more is asked for than the model here takes.
    """
    config, preset, taken = plan(config)
    if "engine" not in taken:
        return prompt_tokens(config.context_tokens)
    n_most = context_length(config, preset, taken["engine"])
    if 0 < n_most < config.context_tokens:
        raise ConfigError(
            f"context_tokens: expected {n_most} at most, which {taken['engine'].model.name} takes "
            f"here, found {config.context_tokens}"
        )
    return prompt_tokens(config.context_tokens or n_most)


def prompt_tokens(n_tokens: int) -> int:
    """Return how many of a context's tokens a prompt may take, so that a reply has room."""
    return max(0, n_tokens - min(REPLY_TOKENS, n_tokens // 4))


def context_length(config: Config, preset: Preset, resolved: ResolvedModel) -> int:
    """Return the context length of the checkpoint or the preset, the shorter; 0 where nothing says
    it.
    """
    folder = model_dir(resolved)
    model = read_json(folder / "config.json") if folder is not None else {}
    options = _role_options(config, preset, resolved, n_threads=1)
    known = (model.get("max_position_embeddings"), options.get("context_length"))
    return min((n for n in known if isinstance(n, int) and n > 0), default=0)


def worker_specs(
    config: Config, wanted: Sequence[RoleName] = ("recognizer", "engine", "voice")
) -> tuple[WorkerSpec, ...]:
    """The processes to start: the preset's, less the roles that have a URL or a worker elsewhere.

    Raises:
        ConfigError: no such preset, a part without a model and without a URL, or a model that is
            not on disk; the message has the command that brings it.
    """
    config, preset, planned = plan(config)
    taken = {role: one for role, one in planned.items() if role in wanted}
    _check_package(taken)
    lacks = missing_models(preset, taken)
    if lacks:
        commands = dict.fromkeys(one.remedy for one in lacks)
        raise ConfigError(
            f"preset {preset.name}: {_without_device(preset, taken)}"
            f"expected {', '.join(one.subject for one in lacks)} on disk, "
            f"found nothing: {' && '.join(commands)}"
        )
    specs: list[WorkerSpec] = []
    for process in preset.processes or APART:
        n_threads = process.threads(n_cores())
        roles = list[RoleSpec]()
        for resolved in (taken[role] for role in process.roles if role in taken):
            options = _role_options(config, preset, resolved, n_threads)
            lower = tuple(_steps_lower(config, resolved, options))
            roles.append(structs.replace(_role_spec(resolved, options), lower=lower))
        if roles:
            specs.append(WorkerSpec(process.name, tuple(roles), n_threads))
    return tuple(specs)


def _role_spec(resolved: ResolvedModel, options: dict[str, Any]) -> RoleSpec:
    model = resolved.model
    gates = verdicts(Formats.of(resolved.weights_name, options)) if model.role == "engine" else {}
    return RoleSpec(model.role, options, model=HeldModel(model.name), gates=dict(gates))


def _steps_lower(
    config: Config, resolved: ResolvedModel, options: Mapping[str, Any]
) -> Iterator[RoleSpec]:
    """Yield what serves where the device of a language model fails: plain torch on it, then the
    `cpu` preset's model where it is on disk.

    The embedded one stands in for nobody: a wrong answer is worse than a refused call.
    """
    if resolved.model.role != "engine" or options.get("device", "cpu") == "cpu":
        return
    plain = {name: value for name, value in options.items() if name != "eagle_dir"}
    yield _role_spec(resolved, {**plain, "kernels": False})
    other = resolve_model(CPU.models["engine"], hub_folder())
    if not other.missing and other.model != resolved.model:
        n_tokens = options.get("context_length", 0)  # or long calls would no longer fit
        below = replace(config, context_tokens=n_tokens, engine=EngineSettings())
        n_threads = max(1, n_cores() // 2)
        yield _role_spec(other, _role_options(below, CPU, other, n_threads))


def _check_package(taken: Mapping[RoleName, ResolvedModel]) -> None:
    """Raises: ConfigError where the language model's file is in a package that is not here."""
    resolved = taken.get("engine")
    if resolved is None or resolved.model.repo is not None:
        return
    if resolved.model.file and resolved.folder is None:
        model = resolved.model
        raise ConfigError(
            f"llm_model: expected {model.requires} installed for {model.name}, found another or "
            f"none: {model.install}"
        )


def _without_device(preset: Preset, taken: Mapping[RoleName, ResolvedModel]) -> str:
    """Return what to know before gigabytes are fetched for a GPU that is not here, or not used."""
    if preset.device != "cuda":
        return ""
    lacks = missing_pieces(preset, taken, this_machine(), hub_folder())
    absent = [one for one in lacks if one.kind == "device" or one.found.endswith(CPU_BUILD)]
    return "".join(f"{one.subject}: {one.found} ({one.remedy}); " for one in absent)


def plan(config: Config) -> tuple[Config, Preset, dict[RoleName, ResolvedModel]]:
    """The configuration with its preset, that, and the models that are here."""
    config = resolve_preset(config, this_machine)
    preset = find_preset(config.preset)
    return config, preset, resolve_models(config, preset, hub_folder())


def preset_options(preset: Preset, role: RoleName) -> Mapping[str, Any]:
    return preset.options.get(role, {})


def model_dir(resolved: ResolvedModel) -> Path | None:
    """Return where a model's files lie; None where it has none of its own, or they are not on
    disk.
    """
    return embedded_model_dir() if resolved.model == EMBEDDED_AGENT else resolved.folder


def _role_options(
    config: Config, preset: Preset, resolved: ResolvedModel, n_threads: int
) -> dict[str, Any]:
    """Return what the role's ``load`` is called with."""
    role = resolved.model.role
    options: dict[str, Any] = {**preset_options(preset, role), **resolved.model.options}
    if role == "engine":
        if resolved.model != preset.models.get(role):
            options = {**_bounds_of_named(config), **options}
        return engine_role_options(config, resolved, options, n_threads)
    options["model"] = resolved.model.loader
    if resolved.model == MOONSHINE_TINY:
        options["end_of_voice"] = config.anticipation.does("p_voice")
    if resolved.model.loader in KEEPS_CLAUSES:
        options["kept_mb"] = KEPT_SPEECH_MB
    if resolved.folder is None:
        options.pop("device", None)  # of the models in packages none asks for one
    else:
        options["source"] = str(resolved.folder)
    return options


def engine_role_options(
    config: Config, resolved: ResolvedModel, base: Mapping[str, Any], n_threads: int
) -> dict[str, Any]:
    is_embedded = resolved.model == EMBEDDED_AGENT and resolved.adapter is None
    draft = embedded_folder() / "draft" if is_embedded else None
    return engine_options(
        config,
        base,
        model_dir(resolved),
        adapter=resolved.adapter,
        n_threads=n_threads,
        draft=draft,
    )


def _bounds_of_named(config: Config) -> dict[str, Any]:
    """Return what a model without bounds of its own may keep; a longer context has to be asked
    for.
    """
    length = max(NAMED_CONTEXT_LENGTH, config.context_tokens + REPLY_TOKENS)
    return {"context_length": length, "kv_tokens": NAMED_CONTEXTS * length}


def with_preset(config: Config) -> tuple[Config, list[str]]:
    """The configuration with its preset chosen, and notes of a line each. Raises: ConfigError."""
    hub, notes = hub_folder(), []
    choice = choose(config, this_machine(), hub)
    taken = resolve_models(config, choice.preset, hub)
    if config.preset == AUTO:
        told = summary_of(choice.preset, taken)
        notes.append(f"preset {choice.preset.name} ({told}): {choice.reason}")
    for one in replaced_models(taken):
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
