"""Keys that a configuration or an agent file had once, and what to do instead.

Owns the table. A file, a variable or a flag that still names such a key ends the start with its
sentence. Who removes a key adds its row here: the path as it stood in the file, and a sentence
that says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# "engine.x" names one key; a table's own name, as "canary", names all keys of the table. Keys of
# an agent file stand here in the same way; those of a list of tables as "tools.x".
REMOVED: Mapping[str, str] = {
    "canary.shadow": "Give the canary a share of the calls: canary.share.",
    "knowledge.embeddings": "Leave it out, or put a service that searches by vectors behind "
    "knowledge.url (KNOWLEDGE.md).",
    "knowledge.embeddings_headers": "Leave it out: folders are searched by words and their sound.",
    "knowledge.embedding_model": "Leave it out: folders are searched by words and their sound.",
    "knowledge.least_score": "Leave it out: folders are searched by words and their sound.",
    "knowledge.kind": "Name a service that answers as KNOWLEDGE.md says in knowledge.url; "
    "a few lines in front of Qdrant are one.",
    "remote_key": "Name the key of each service: stt_key, llm_key, tts_key.",
    "engine.calibration_text": "Leave it out: it made int4 no better. Finer weights are "
    "engine.weights = 'int8', or a checkpoint that was quantized with AWQ.",
    "engine.fused_launches": "Leave it out: a GPU's steps have one set of kernels.",
    "engine.prompt_activations": "Leave it out: a prompt's inputs are multiplied in bf16.",
}

_INDEX = re.compile(r"\[\d+\]")


def instead_of(path: str) -> str | None:
    """What to do instead of a key that is gone; None where none of this name was ever removed.

    path: as an error names it: ``engine.kv``, ``tools[0].late``.
    """
    return _instead(_INDEX.sub("", path), ".", {name: name for name in REMOVED})


def instead_of_variable(name: str, prefix: str) -> str | None:
    """The same for a variable of the environment, as ``VOICELOOP_ENGINE_KV``."""
    return _instead(name, "_", {prefix + _plain(key).upper(): key for key in REMOVED})


def instead_of_flag(option: str) -> str | None:
    """The same for a flag, as ``--engine-kv`` or ``--no-engine-kv=1``."""
    flag = option.partition("=")[0].replace("--no-", "--", 1)
    return _instead(flag, "-", {"--" + _plain(key).replace("_", "-"): key for key in REMOVED})


def _plain(key: str) -> str:
    return key.replace(".", "_")


def _instead(found: str, mark: str, keys: Mapping[str, str]) -> str | None:
    """keys: of each name in this form the key; the longest that ``found`` lies in is meant."""
    meant: Iterable[str] = (n for n in keys if found == n or found.startswith(n + mark))
    longest = max(meant, key=len, default=None)
    return None if longest is None else REMOVED[keys[longest]]
