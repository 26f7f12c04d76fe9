"""Which model has which role in this server, and where it lies.

Owns the step from a preset and the overrides of a configuration to models with their folders on
disk. An override is a name of the catalog, a folder, or the id of any model on disk
(``owner/name`` or ``owner/name@revision``) whose architecture a loader knows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from voiceloop.catalog import (
    CTRANSLATE2_FILES,
    CTRANSLATE2_NEEDED,
    MODELS,
    TRANSFORMERS_FILES,
    Model,
    Preset,
    Repo,
)
from voiceloop.config import Config
from voiceloop.errors import ConfigError
from voiceloop.model_cache import find_repo, read_json
from voiceloop.worker_messages import RoleName

ROLE_KEYS: Mapping[RoleName, str] = {"engine": "llm", "recognizer": "stt", "voice": "tts"}

# model_type of config.json -> the loader of the role
LOADERS: Mapping[RoleName, Mapping[str, str]] = {
    "engine": {"llama": "", "mistral": "", "qwen2": "", "qwen3": ""},
    "recognizer": {
        "whisper": "whisper",
        "moonshine_streaming": "moonshine",
        "nemotron_asr_streaming": "transducer",
        "nemotron3_5_asr": "transducer",
    },
    "voice": {"pocket_tts": "pocket", "gradium_phonon_tts": "phonon", "vits": "vits"},
}
KOKORO_WEIGHTS = "kokoro-v1_0.pth"
# Any model: what transformers, CTranslate2 and Kokoro read, and no other format of the weights.
ANY_FILES = (*TRANSFORMERS_FILES, *CTRANSLATE2_FILES, KOKORO_WEIGHTS, "voices/*")
ANY_WEIGHTS = ("*.safetensors", "model.bin", KOKORO_WEIGHTS)
# A second copy of the same weights, which no loader here reads.
ANY_IGNORED = ("consolidated*", "*/consolidated*", "*.fp32-*")


@dataclass(frozen=True, slots=True)
class Seat:
    """One role's model, and where it lies.

    folder: None for a model that is in a package, or not on disk. parts: the folders that go with
    it, by the loader's option. missing: what is not on disk, or not whole.
    """

    model: Model
    folder: Path | None = None
    parts: Mapping[str, Path] = field(default_factory=dict)
    missing: tuple[Repo, ...] = ()


def seats(config: Config, preset: Preset, hub: Path) -> dict[RoleName, Seat]:
    """The local roles of this server; a role that has a URL is not among them.

    Raises:
        ConfigError: a role without a model and without a URL, or an override that names nothing.
    """
    found: dict[RoleName, Seat] = {}
    absent: list[str] = []
    for role, key in ROLE_KEYS.items():
        if getattr(config, f"{key}_url") is not None:
            continue
        name: str = getattr(config, f"{key}_model")
        if name:
            found[role] = named_seat(role, name, hub)
        elif role in preset.models:
            found[role] = find_seat(preset.models[role], hub)
        else:
            absent.append(f"{key}_url")
    if absent:
        raise ConfigError(f"preset {preset.name}: expected {', '.join(absent)}, found nothing")
    return found


def find_seat(model: Model, hub: Path) -> Seat:
    """A model of the catalog, on disk or not."""
    if model.repo is None:
        return Seat(model)
    own = find_repo(model.repo, hub)
    parts = {option: find_repo(repo, hub) for option, repo in model.parts.items()}
    missing = [] if own.is_whole else [model.repo]
    missing += [model.parts[option] for option, part in parts.items() if not part.is_whole]
    folders = {option: part.folder for option, part in parts.items() if part.folder is not None}
    return Seat(model, own.folder if own.is_whole else None, folders, tuple(missing))


def named_seat(role: RoleName, name: str, hub: Path) -> Seat:
    """What an override means. Raises: ConfigError, naming what was expected and found."""
    for model in MODELS:
        if model.name == name and model.role == role:
            return find_seat(model, hub)
    folder = Path(os.path.expanduser(name))  # Path's own raises where a user is not known
    if folder.is_dir():
        return _folder_seat(role, name, folder, hub)
    if name.startswith(("/", "~", ".")) or name.count("/") != 1:
        known = ", ".join(model.name for model in MODELS if model.role == role)
        raise ConfigError(
            f"{ROLE_KEYS[role]}_model: expected a folder, one of {known}, or an id owner/name, "
            f"found {name!r}"
        )
    repo = any_repo(name)
    found = find_repo(repo, hub)
    if found.folder is None or not found.is_whole:
        raise ConfigError(
            f"{ROLE_KEYS[role]}_model: expected {name} on disk, found none in {hub}: "
            f"voiceloop models pull {name}"
        )
    return _folder_seat(role, name, found.folder, hub)


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


def _folder_seat(role: RoleName, name: str, folder: Path, hub: Path) -> Seat:
    loader = loader_of(role, folder)
    model = Model(name, role, loader, licence="see its card", languages="see its card", why="")
    parts: dict[str, Path] = {}
    missing: list[Repo] = []
    like = next((m for m in MODELS if m.role == role and m.loader == loader and m.parts), None)
    if like is not None and not (folder / "audio_tokenizer").is_dir():
        beside = find_seat(like, hub)
        parts = dict(beside.parts)
        missing = [repo for repo in beside.missing if repo in like.parts.values()]
        model = replace(model, parts=like.parts)
    return Seat(model, folder, parts, tuple(missing))


def loader_of(role: RoleName, folder: Path) -> str:
    """The role's loader for what lies in a folder. Raises: ConfigError if none knows it."""
    if role == "recognizer" and not _lacks(folder, CTRANSLATE2_NEEDED):
        return "whisper"
    if role == "voice" and (folder / KOKORO_WEIGHTS).is_file():
        return "kokoro"
    kind = read_json(folder / "config.json").get("model_type")
    loader = LOADERS[role].get(str(kind))
    if loader is None:
        raise ConfigError(
            f"{ROLE_KEYS[role]}_model: expected config.json in {folder} with a model_type among "
            f"{', '.join(LOADERS[role])}, found {kind!r}"
        )
    return loader


def _lacks(folder: Path, needed: tuple[str, ...]) -> bool:
    return not all(any(folder.glob(pattern)) for pattern in needed)
