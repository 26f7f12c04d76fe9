"""Owns the engine's public face: load a model, branch a conversation, step.

Every call enqueues and returns at once; `step()` does a bounded amount of work and returns what
came of it. One thread drives an engine; nothing here blocks, sleeps or knows about asyncio.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from .types import EngineConfig, Event, SamplingParams


class Text:  # moves to text.py
    """Tokenizer and chat template of one checkpoint."""

    end_of_turn_id: int

    def encode_chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        *,
        open_user: str | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Token ids of a conversation; `open_user` appends a user turn that has no end yet."""
        raise NotImplementedError

    def decode(self, tokens: Sequence[int]) -> str:
        raise NotImplementedError


class Branch:  # moves to branch.py
    """One turn in the making: private KV on top of the shared committed prefix."""

    branch_id: str

    def stage(self, tokens: Sequence[int]) -> None:
        """Replace the open turn (role header first, no end of turn) -> `Staged`."""
        raise NotImplementedError

    def speculate(self, tail_tokens: Sequence[int], params: SamplingParams) -> str:
        """Draft a reply to what is staged, when nothing else is due -> `DraftDelta`, `DraftDone`.

        Returns the draft's id for `commit`. A new `stage` keeps the draft for salvage but stops
        its generation; a new `speculate` replaces it.
        """
        raise NotImplementedError

    def commit(
        self, tokens: Sequence[int], params: SamplingParams, draft: str | None = None
    ) -> None:
        """Answer the finished turn, first in line -> `TextDelta`..., `ToolCall`..., `Done`.

        After `Done` the turn and the reply are history: the branch can stage and commit again.
        """
        raise NotImplementedError

    def cancel(self) -> None:
        """End the reply under way with `Done("cancelled")`; the branch stays usable."""
        raise NotImplementedError

    def close(self) -> None:
        """Give everything back. Idempotent in every state; no event follows."""
        raise NotImplementedError


class Engine:
    """One model, one KV pool, many branches."""

    text: Text
    context_length: int

    @classmethod
    def load(
        cls,
        model_dir: Path,
        config: EngineConfig | None = None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> "Engine":
        """Read a Hugging Face folder. Raises: CheckpointError, ConfigError, TemplateError."""
        raise NotImplementedError

    def branch(self, branch_id: str, history_tokens: Sequence[int] = (), salt: str = "") -> Branch:
        """Fork the committed prefix `history_tokens`; branches of different salts share nothing."""
        raise NotImplementedError

    def step(self) -> list[Event]:
        """Advance what is due, most urgent class first, and return what came of it."""
        raise NotImplementedError

    def has_work(self) -> bool:
        raise NotImplementedError

    def check_integrity(self) -> None:
        """Raises: IntegrityError."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Totals since the start, by metric name."""
        raise NotImplementedError
