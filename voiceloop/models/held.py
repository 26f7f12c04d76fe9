"""A worker's report of its models to gateways, and what these make of it.

A gateway has none of the files that its own presets would be read from: voices, languages, context
and the rest come from the worker that has the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from voiceloop.backends import RoleName
from voiceloop.capabilities import Capabilities
from voiceloop.config import Config
from voiceloop.models.gates import Formats
from voiceloop.models.machine import installed_version
from voiceloop.models.presets import context_length, model_dir, plan, prompt_tokens
from voiceloop.models.resolve import ResolvedModel, capabilities_of
from voiceloop.workers.messages import HeldModel, WorkerSpec

# Of each file its length, its beginning and its end: the weights of 8 GB are told apart in
# milliseconds. It tells models apart that were put there; it is no proof against a forged one.
SAMPLE_BYTES = 64 * 1024
MAX_FILES = 4096
DIGEST_BYTES = 8


def describe_models(config: Config, spec: WorkerSpec) -> WorkerSpec:
    """The spec of a worker with what there is to know of each of its models."""
    config, preset, taken = plan(config)
    known = capabilities_of(taken)

    def held(role: RoleName, options: Mapping[str, Any]) -> HeldModel:
        resolved = taken[role]
        told = HeldModel(resolved.model.name, digest_of(resolved))
        match role:
            case "voice":
                return msgspec.structs.replace(told, voices=tuple(sorted(known.voices)))
            case "recognizer":
                return msgspec.structs.replace(told, languages=known.languages)
        formats = Formats.of(resolved.weights_name, options)
        return msgspec.structs.replace(
            told,
            formats=f"{formats.weights} weights, {formats.kv} keys and values",
            context_tokens=context_length(config, preset, resolved),
            n_streams=options.get("max_branches", 0),
            reads_turn_ends=known.reads_turn_ends,
        )

    roles = (msgspec.structs.replace(one, model=held(one.role, one.options)) for one in spec.roles)
    return msgspec.structs.replace(spec, roles=tuple(roles))


def with_held(known: Capabilities, held: Mapping[RoleName, HeldModel]) -> Capabilities:
    """Return what a server can do beside what its own models can: by the models that workers
    hold.
    """
    if (voice := held.get("voice")) is not None:
        known = replace(known, voices=frozenset(voice.voices), voice_model=voice.name)
    if (recognizer := held.get("recognizer")) is not None:
        known = replace(
            known,
            languages=recognizer.languages,
            recognizer=recognizer.name,
        )
    if (engine := held.get("engine")) is not None:
        known = replace(
            known,
            language_model=engine.name,
            reads_turn_ends=engine.reads_turn_ends,
            context_tokens=prompt_tokens(engine.context_tokens),
        )
    return known


def with_service(known: Capabilities, name: str, n_tokens: int) -> Capabilities:
    """The same beside a language model behind a URL. n_tokens: its window, 0 if not known."""
    n_prompt = prompt_tokens(n_tokens) or known.context_tokens
    return replace(known, language_model=name, context_tokens=n_prompt)


def digest_of(resolved: ResolvedModel) -> str:
    """Tells apart models of one name, by what of them lies on disk or by their package."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    model = resolved.model
    package = model.requires.partition("==")[0]
    digest.update(f"{model.name}\0{model.loader}\0{package}".encode())
    digest.update((installed_version(package) or "").encode() if package else b"")
    for folder in (model_dir(resolved), resolved.adapter):
        for path in _files(folder) if folder is not None else ():
            _sample(path, digest)
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
        return
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    yield from found[:MAX_FILES]


def _sample(path: Path, digest: hashlib.blake2b) -> None:
    n_bytes = path.stat().st_size
    digest.update(f"\0{path.name}\0{n_bytes}\0".encode())
    with path.open("rb") as file:
        digest.update(file.read(SAMPLE_BYTES))
        if n_bytes > SAMPLE_BYTES:
            file.seek(max(SAMPLE_BYTES, n_bytes - SAMPLE_BYTES))
            digest.update(file.read(SAMPLE_BYTES))
