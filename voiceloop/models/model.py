"""A model: where it comes from, at which commit, and what is known of it.

Owns the shape of a row of ``catalog.py``. Each is pinned: everybody who takes the model by its name
has the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from voiceloop.backends import RoleName

TRANSFORMERS_FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja", "tokenizer.model")
TRANSFORMERS_NEEDED = ("config.json", "*.safetensors", "tokenizer.json")
CTRANSLATE2_FILES = ("*.json", "model.bin", "vocabulary.*")
CTRANSLATE2_NEEDED = ("config.json", "model.bin", "vocabulary.*")
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Repo:
    """One repository of the Hugging Face hub.

    revision: a commit. A branch moves; it stands only for an id that a person gives without a
    commit. files: patterns of what is fetched, without those of ignored. needed: each must match
    something, else the model cannot be loaded. weights: of a repository that no table knows, where
    one of them must match.
    """

    id: str
    revision: str = "main"
    files: tuple[str, ...] = TRANSFORMERS_FILES
    needed: tuple[str, ...] = TRANSFORMERS_NEEDED
    size_mb: int = 0
    weights: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def is_pinned(self) -> bool:
        return COMMIT.fullmatch(self.revision) is not None

    @property
    def label(self) -> str:
        return f"{self.id}@{self.revision[:7] if self.is_pinned else self.revision}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model. ``loader`` is its name in the role; a model without ``repo`` is in a package.

    options: of its loader, in place of the preset's.
    requires: the distribution that a model is in, "name" or "name==1.0"; where another or none is
    installed, fallback takes its place in a preset.
    file: of a language model that is one file, where it lies in its repository or, of a package,
    among the installed ones. install:
    the command that brings it, where `pip install` and its name would bring more than is needed.
    adapter: of a language model, the folder of engine/embedded with what it is taught by.
    language_codes, voices: all that a recognizer or a voice takes, where it is known here.
    """

    name: str
    role: RoleName
    licence: str
    languages: str
    loader: str = ""
    repo: Repo | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    language_codes: tuple[str, ...] = ()
    voices: tuple[str, ...] = ()
    requires: str = ""
    file: str = ""
    install: str = ""
    adapter: str = ""
    fallback: Model | None = None

    @property
    def repos(self) -> tuple[Repo, ...]:
        return (self.repo,) if self.repo is not None else ()

    @property
    def size_mb(self) -> int:
        return sum(repo.size_mb for repo in self.repos)
