"""The model of each role in this server, and its place.

Owns the step from a preset and the overrides of a configuration to models with their folders on
disk. An override is a name of the catalog, a folder, or the id of any model on disk
(``owner/name`` or ``owner/name@revision``) whose architecture a loader knows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from audio import noise_reduction
from voiceloop.agent_file import embedded_agent
from voiceloop.backends import RoleName
from voiceloop.capabilities import Capabilities
from voiceloop.config import NO_ADAPTER, Config
from voiceloop.errors import ConfigError
from voiceloop.models.cache import find_repo, read_json
from voiceloop.models.catalog import EMBEDDED_AGENT, MODELS, QWEN25, SMOLLM2, Preset
from voiceloop.models.machine import installed_file, installed_version, satisfies
from voiceloop.models.model import (
    CTRANSLATE2_FILES,
    CTRANSLATE2_NEEDED,
    TRANSFORMERS_FILES,
    Model,
    Repo,
)

ROLE_KEYS: Mapping[RoleName, str] = {"engine": "llm", "recognizer": "stt", "voice": "tts"}

# model_type of config.json -> the loader of the role
LOADERS: Mapping[RoleName, Mapping[str, str]] = {
    "engine": dict.fromkeys(
        (
            "llama",
            "mistral",
            "mistral3",
            "qwen2",
            "qwen3",
            "phi3",
            "gemma3",
            "gemma3_text",
            "smollm3",
            "granite",
        ),
        "",
    ),
    "recognizer": {
        "whisper": "whisper",
        "nemotron_asr_streaming": "transducer",
        "nemotron3_5_asr": "transducer",
    },
}
MOONSHINE_ONNX_NEEDED = tuple(
    (f"encoder_model.{kind}", f"decoder_model_merged.{kind}") for kind in ("ort", "onnx")
)
GGUF = ".gguf"
# A language model's, whose instructions are said for it: of 1.5B parameters in four bits. One of 3B
# has two gigabytes, and nobody has measured what that garbles.
SMALL_FILE_BYTES = 1_500_000_000
KOKORO_WEIGHTS = ("*.onnx", "onnx/*.onnx")  # as audio.tts.kokoro reads them
KOKORO_VOICES = "voices/[ab][fm]_*.bin"  # American and British, of women and men
END_HEAD = "end_of_turn.safetensors"  # as engine.end_of_turn reads it
ADAPTER_WEIGHTS = "adapter_model.safetensors"  # as engine.load.adapter reads it
# Any model: what transformers and CTranslate2 read, and no other format of the weights.
ANY_FILES = (*TRANSFORMERS_FILES, *CTRANSLATE2_FILES, "voices/*")
ANY_WEIGHTS = ("*.safetensors", "model.bin")
# A second copy of the same weights, which no loader here reads.
ANY_IGNORED = ("consolidated*", "*/consolidated*", "*.fp32-*")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """One role's model, and where it lies.

    folder: None for a model that is in a package, or not on disk. missing: what is not on disk, or
    not whole. in_place_of: the preset's own model, where what that requires is not installed.
    adapter: what is merged into a language model.
    """

    model: Model
    folder: Path | None = None
    missing: tuple[Repo, ...] = ()
    in_place_of: Model | None = None
    adapter: Path | None = None

    @property
    def weights_name(self) -> str:
        """Return what quality gates call it: with an adapter merged its weights are others."""
        if self.adapter is None:
            return self.model.name
        is_own = self.adapter == shipped_adapter(self.model)
        return f"{self.model.name} with {'its' if is_own else 'an'} adapter"


def embedded_folder() -> Path:
    """Return where the models lie that ship (found, not imported: they belong to workers).

    Raises:
        ConfigError: there is no engine beside voiceloop.
    """
    spec = find_spec("engine")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("expected the package engine beside voiceloop, found none")
    return Path(spec.submodule_search_locations[0]) / "embedded"


def shipped_adapter(model: Model) -> Path | None:
    """The folder of the adapter that ships for a model, where one does and is installed."""
    if not model.adapter:
        return None
    folder = embedded_folder() / model.adapter
    return folder if (folder / ADAPTER_WEIGHTS).is_file() else None


def _adapter_of(config: Config, model: Model) -> Path | None:
    """The one that is named, else the model's own."""
    if config.llm_adapter is None:
        return shipped_adapter(model)
    return None if str(config.llm_adapter) == NO_ADAPTER else config.llm_adapter


def resolve_models(config: Config, preset: Preset, hub: Path) -> dict[RoleName, ResolvedModel]:
    """The local roles of this server; one that has a URL or workers elsewhere is not among them.

    Raises:
        ConfigError: a role without a model and without a URL, or an override that names nothing.
    """
    elsewhere = roles_elsewhere(config)
    found: dict[RoleName, ResolvedModel] = {}
    absent: list[str] = []
    for role, key in ROLE_KEYS.items():
        if getattr(config, f"{key}_url") or role in elsewhere:
            continue
        name: str = getattr(config, f"{key}_model")
        if name:
            found[role] = resolve_named(role, name, hub)
        elif role in preset.models:
            found[role] = resolve_preset_model(preset.models[role], hub)
        else:
            absent.append(f"{key}_url")
    if (engine := found.get("engine")) is not None:
        found["engine"] = replace(engine, adapter=_adapter_of(config, engine.model))
    if absent:
        raise ConfigError(f"preset {preset.name}: expected {', '.join(absent)}, found nothing")
    return found


def roles_elsewhere(config: Config) -> frozenset[RoleName]:
    """The roles that workers on the network hold; a file that lists these may name any."""
    return frozenset(
        role
        for role, key in ROLE_KEYS.items()
        if (config.workers.list is not None or getattr(config.workers, role))
        and not getattr(config, f"{key}_url")
    )


def roles_here(config: Config) -> frozenset[RoleName]:
    """Return the roles that neither a service nor workers elsewhere have."""
    served = {role for role, key in ROLE_KEYS.items() if getattr(config, f"{key}_url")}
    return frozenset(ROLE_KEYS) - served - roles_elsewhere(config)


def resolve_preset_model(model: Model, hub: Path) -> ResolvedModel:
    """A preset's model, or its fallback where that alone is installed."""
    if model.fallback is None or is_installed(model) or not is_installed(model.fallback):
        return resolve_model(model, hub)
    return replace(resolve_model(model.fallback, hub), in_place_of=model)


def is_installed(model: Model) -> bool:
    """Whether the package that it requires is here, in that version."""
    return satisfies(model.requires, installed_version(model.requires.partition("==")[0]))


def resolve_model(model: Model, hub: Path) -> ResolvedModel:
    """A model of the catalog, on disk or not."""
    if model.repo is None:
        return ResolvedModel(model, _packaged_file(model) if model.file else None)
    own = find_repo(model.repo, hub)
    if own.folder is None or not own.is_whole:
        return ResolvedModel(model, missing=(model.repo,))
    return ResolvedModel(model, own.folder / model.file)


def _packaged_file(model: Model) -> Path | None:
    name = model.requires.partition("==")[0]
    is_right = satisfies(model.requires, installed_version(name))
    return installed_file(name, model.file) if is_right else None


def resolve_named(role: RoleName, name: str, hub: Path) -> ResolvedModel:
    """Return what an override means. Raises: ConfigError, naming what was expected and found."""
    known = catalog_model(name)
    if known is not None and known.role == role:
        return resolve_model(known, hub)
    folder = Path(os.path.expanduser(name))  # Path's own raises where a user is not known
    if folder.is_dir():
        return _resolve_folder(role, name, folder)
    if role == "engine" and folder.suffix == GGUF and folder.is_file():
        card = "see its card"
        model = Model(name=name, role=role, licence=card, languages=card)
        return ResolvedModel(model, folder)
    if name.startswith(("/", "~", ".")) or name.count("/") != 1 or folder.suffix == GGUF:
        names = ", ".join(model.name for model in MODELS if model.role == role)
        raise ConfigError(
            f"{ROLE_KEYS[role]}_model: expected a folder, {'a GGUF file, ' * (role == 'engine')}"
            f"one of {names}, or an id owner/name, found {name!r}"
        )
    repo = any_repo(name)
    found = find_repo(repo, hub)
    if found.folder is None or not found.is_whole:
        raise ConfigError(
            f"{ROLE_KEYS[role]}_model: expected {name} on disk, found none in {hub}: "
            f"voiceloop models pull {name}"
        )
    return _resolve_folder(role, name, found.folder)


def catalog_model(name: str) -> Model | None:
    """The model of the catalog that a name means; None for any other."""
    return next((model for model in MODELS if model.name == name), None)


def any_repo(name: str) -> Repo:
    """The repository that an id names: ``owner/name`` or ``owner/name@revision``."""
    repo_id, _, revision = name.partition("@")
    return Repo(
        repo_id,
        revision or "main",
        ANY_FILES,
        needed=("config.json",),
        weights=ANY_WEIGHTS,
        ignored=ANY_IGNORED,
    )


def _resolve_folder(role: RoleName, name: str, folder: Path) -> ResolvedModel:
    loader = loader_of(role, folder)
    card = "see its card"
    model = Model(name=name, role=role, loader=loader, licence=card, languages=card)
    return ResolvedModel(model, folder)


def loader_of(role: RoleName, folder: Path) -> str:
    """The role's loader for what lies in a folder. Raises: ConfigError if none knows it."""
    if role == "recognizer" and not _lacks(folder, CTRANSLATE2_NEEDED):
        return "whisper"
    if role == "recognizer" and any(not _lacks(folder, names) for names in MOONSHINE_ONNX_NEEDED):
        return "moonshine-onnx"
    if role == "voice" and any(not _lacks(folder, (w, KOKORO_VOICES)) for w in KOKORO_WEIGHTS):
        return "kokoro"
    if role == "voice":
        raise ConfigError(
            f"{ROLE_KEYS[role]}_model: expected Kokoro's *.onnx and {KOKORO_VOICES} in {folder}, "
            "found neither; another voice is a service (tts_url) or a package's provider"
        )
    kind = read_json(folder / "config.json").get("model_type")
    loader = LOADERS[role].get(str(kind))
    if loader is None:
        elsewhere = '; vLLM, SGLang or llama.cpp may serve it: llm_url = "http://HOST:PORT/v1"'
        raise ConfigError(
            f"{ROLE_KEYS[role]}_model: expected config.json in {folder} with a model_type among "
            f"{', '.join(LOADERS[role])}, found {kind!r}{elsewhere if role == 'engine' else ''}"
        )
    return loader


def _lacks(folder: Path, needed: tuple[str, ...]) -> bool:
    return not all(any(folder.glob(pattern)) for pattern in needed)


def capabilities_of(resolved: Mapping[RoleName, ResolvedModel]) -> Capabilities:
    """Return the capabilities of these models; a role without one is a service's."""
    voice, recognizer = resolved.get("voice"), resolved.get("recognizer")
    engine = resolved.get("engine")
    return Capabilities(
        voices=known_voices(voice) if voice is not None else frozenset(),
        voice_model=voice.model.name if voice is not None else "",
        languages=recognizer.model.language_codes if recognizer is not None else (),
        recognizer=recognizer.model.name if recognizer is not None else "",
        language_model=engine.model.name if engine is not None else "",
        reduces_noise=noise_reduction.is_available(),
        reads_turn_ends=engine is None or has_end_head(engine),
        made_for=_made_for(engine),
    )


def _made_for(engine: ResolvedModel | None) -> str | None:
    """As of `Capabilities`: the embedded models were made for the cafe, the `cpu` preset's for
    nobody, nor was another file as small; an adapter of one's own is made for its agent.
    """
    if engine is None or engine.adapter != shipped_adapter(engine.model):
        return None
    file = engine.folder if engine.folder is not None and engine.folder.suffix == GGUF else None
    if engine.model == QWEN25 or (file is not None and file.stat().st_size < SMALL_FILE_BYTES):
        return ""
    return embedded_agent().instructions if engine.model in (EMBEDDED_AGENT, SMOLLM2) else None


def has_end_head(engine: ResolvedModel) -> bool:
    """Whether a network that reads the end of a turn belongs to the model.

    With an adapter that is the adapter's alone: the model's own was made for other states.
    """
    if engine.adapter is not None:
        return (engine.adapter / END_HEAD).is_file()
    is_there = engine.folder is not None and (engine.folder / END_HEAD).is_file()
    return engine.model == EMBEDDED_AGENT or is_there


def known_voices(resolved: ResolvedModel) -> frozenset[str]:
    """The voices of a model by its table or its folder's files; empty where neither tells."""
    if resolved.model.loader == "kokoro" and resolved.folder is not None:
        return frozenset(one.stem for one in resolved.folder.glob(KOKORO_VOICES))
    return frozenset(resolved.model.voices)
