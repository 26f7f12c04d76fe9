"""End-of-turn (EOT) probability after the words of a pause, from an engine on one checkpoint.

Owns the questions put to it, a folder or a GGUF file; its answers are kept on disk by the digest of
the checkpoint, that of its end-of-turn head included, and of the engine's files.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from engine.engine import Engine
from engine.kept_files import code_files
from engine.types import EngineConfig, Staged
from voiceloop.listening.recipes.disk_cache import cached, digest

INSTRUCTIONS = "You are a friendly voice assistant. Answer in short sentences."
SHARDS = "*.safetensors"
ENGINE_LAG_MS = 20.0  # staging a pause's last words, the hop included: measured 10-20 ms in calls

Messages = tuple[tuple[str, str], ...]


class EndProbability:
    """Asks one checkpoint. Raises: engine.types.CheckpointError where there is none."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir
        weights = hashlib.sha1(usedforsecurity=False)
        for shard in [model_dir] if model_dir.is_file() else sorted(model_dir.glob(SHARDS)):
            weights.update(shard.read_bytes())
        self.checkpoint = weights.hexdigest()[:12]
        self._read_by = digest(*(path.read_bytes() for path in code_files()))
        self._engine: Engine | None = None
        self._n_branches = 0

    def after(self, history: Messages, words: tuple[str, ...]) -> float:
        """EOT probability after these words of the caller, after these messages (role, text)."""
        key = digest(self.checkpoint, self._read_by, INSTRUCTIONS, repr(history), " ".join(words))
        return float(cached("p_end", key, lambda: self._ask(history, words)))

    def _ask(self, history: Messages, words: tuple[str, ...]) -> float:
        if self._engine is None:
            quant = "int4" if self._model_dir.is_file() else "int8"  # a GGUF file's own codes
            config = EngineConfig(quant=quant, threads=1, kv_tokens=16384)
            self._engine = Engine.load(self._model_dir, config)
        text = self._engine.text
        messages = [{"role": "system", "content": INSTRUCTIONS}]
        messages += [{"role": role, "content": content} for role, content in history]
        before = text.encode_chat(messages)
        whole = text.encode_chat(messages, open_user=" ".join(words))
        if whole[: len(before)] != before:
            raise ValueError("expected the open turn to continue the history's tokens")
        self._n_branches += 1
        branch = self._engine.branch(f"p_end {self._n_branches}", before)
        branch.stage(whole[len(before) :])
        found = None
        while self._engine.has_work():
            for event in self._engine.step():
                if isinstance(event, Staged):
                    found = event.p_end_of_turn
        branch.close()
        if found is None:
            raise ValueError("expected a staged turn, found none")
        return float(found)
