"""The reader of words in a worker: whether callers' turns are over, and nothing else.

It takes the messages of a language model and answers the words that are staged. Whoever wants a
reply of it is refused: another model makes those. No torch is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from engine.end_reader.reader import EndReader
from engine.native.build import NotBuilt
from engine.types import EngineError, IntegrityError, PromptTooLong
from voiceloop.backends import Staged
from voiceloop.workers.messages import (
    Asked,
    OpenBranch,
    ReadAhead,
    Stage,
    StopPreemptive,
    StreamEvent,
    StreamFailed,
    ToRole,
)
from voiceloop.workers.roles.role import RoleBroken, RoleError, StreamError

WARM_UP = "warm_up.1"


class EndOfWordsRole:
    """One small model for every call of this worker."""

    rate_hz = 0
    tokenizer = b""
    tokens = ""
    served: Mapping[str, str] = MappingProxyType({})

    def __init__(self, reader: EndReader) -> None:
        self._reader = reader
        self.detail = f"ends of turns are read from words ({reader.forward.name})"

    def warm_up(self) -> None:
        self._reader.open(WARM_UP, [{"role": "assistant", "content": "Hello."}])
        self._reader.stage(WARM_UP, 1, "hello there")
        judged, failed = self._reader.step()
        if failed or not judged:
            raise RoleError(f"expected the reader to judge its first words, found {failed}")
        self._reader.close(WARM_UP)

    def receive(self, message: ToRole) -> None:
        match message:
            case OpenBranch():
                messages = [{"role": m.role, "content": m.content} for m in message.history]
                self._reader.open(message.stream_id, messages)
            case Stage():
                self._reader.stage(message.stream_id, message.stage_id, message.user_text)
            case StopPreemptive() | ReadAhead():
                pass
            case _:
                raise StreamError(f"expected words to be read, found {type(message).__name__}")

    def close(self, stream_id: str) -> None:
        self._reader.close(stream_id)

    def has_work(self) -> bool:
        return self._reader.has_work()

    def totals(self) -> Mapping[str, float]:
        return {}

    def step(
        self, asked: Callable[[], Sequence[Asked]] | None = None
    ) -> Sequence[StreamEvent | StreamFailed]:
        try:
            judged, failed = self._reader.step()
        except IntegrityError as error:
            raise RoleBroken(str(error)) from error
        events: list[StreamEvent | StreamFailed] = [
            StreamEvent(one.branch_id, Staged(one.stage_id, one.n_tokens, one.n_computed,
                                              one.p_end_of_turn))
            for one in judged
        ]  # fmt: skip
        for stream_id, reason in failed:
            told = StreamError(
                f"expected words that can be read, found {reason}",
                is_request=True, is_too_long=isinstance(reason, PromptTooLong),
            )  # fmt: skip
            events.append(told.told(stream_id))
        return events


def load(model_dir: str) -> EndOfWordsRole:
    """The embedded model's folder. Raises: RoleError."""
    try:
        return EndOfWordsRole(EndReader(Path(model_dir)))
    except (EngineError, NotBuilt) as error:
        raise RoleError(str(error)) from error
