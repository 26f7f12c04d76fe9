"""The language model in a worker: one engine for every conversation, and for what all begin with.

The gateway speaks of messages and of the caller's words so far; the engine of tokens. What becomes
of one conversation is in `chat_branch.py`.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.engine import Engine
from engine.load.description import describe, served_by
from engine.public_prefix import PrefixFiles, PublicPrefix
from engine.types import (
    DeviceFault,
    EngineConfig,
    EngineError,
    Event,
    IntegrityError,
    PromptTooLong,
    RequestError,
    TemplateError,
)
from voiceloop.backends import ChatMessage, Generated, GenerateParams, Staged
from voiceloop.workers.messages import (
    Asked,
    BeginPreemptive,
    Commit,
    Draft,
    OpenBranch,
    ReadAhead,
    Stage,
    StopPreemptive,
    StreamEvent,
    StreamFailed,
    ToRole,
    Verify,
)
from voiceloop.workers.roles.chat_branch import ChatBranch
from voiceloop.workers.roles.chat_template import History, RoleOrder, TurnFrame
from voiceloop.workers.roles.role import RoleBroken, RoleError, StreamError

log = logging.getLogger(__name__)

# Of a pass, for the words of all callers: a turn's first words have the whole conversation written,
# 1.6 ms at 120 messages. Who is not reached is first in the next pass, behind the engine's step.
STAGING_BUDGET_S = 0.005

WARM_UP_BRANCH = "warm_up"
WARM_UP_STEPS = 1000  # far more than a prompt of ten words and two tokens take
# A vocabulary of 260,000 words packs into some 8 MB. What is larger than any known is not sent: the
# gateway then guesses.
MAX_TOKENIZER_BYTES = 16 * 1024 * 1024
WARM_UP_HISTORY = (ChatMessage("system", "You are a helpful assistant."),)


@contextmanager
def _sound() -> Iterator[None]:
    """An engine whose KV is inconsistent, or whose device has failed, serves nobody any more."""
    try:
        yield
    except DeviceFault as error:
        raise RoleBroken(str(error), error.kind) from error
    except IntegrityError as error:
        raise RoleBroken(f"expected KV that adds up, found: {error}") from error


def _refused(error: RequestError | TemplateError) -> StreamError:
    is_too_long = isinstance(error, PromptTooLong)
    return StreamError(str(error), is_request=True, is_too_long=is_too_long)


class LanguageRole:
    """One engine for every conversation of this worker."""

    rate_hz = 0

    def __init__(
        self,
        model: Engine,
        detail: str,
        files: PrefixFiles | None = None,
        served: Mapping[str, str] | None = None,
    ) -> None:
        """files: where the operator's prefix is kept; None: in memory alone."""
        self.detail, self.served = detail, served or {}
        vocabulary = model.text.tokenizer.to_str().encode()
        packed = zlib.compress(vocabulary, level=1)
        told = vocabulary + b"\0" + model.text.template_source.encode()
        self.tokens = hashlib.blake2b(told, digest_size=16).hexdigest()
        self.tokenizer = packed if len(packed) <= MAX_TOKENIZER_BYTES else b""
        self._model, self._files = model, files
        self._public: PublicPrefix | None = None
        self._frame, self._order = TurnFrame.of(model.text), RoleOrder.of(model.text)
        self._streams: dict[str, ChatBranch] = {}
        self._due: dict[str, ChatBranch] = {}  # with words to be staged, who waits longest first

    def warm_up(self) -> None:
        """Stage and answer one short turn: each kernel and buffer is touched once."""
        params = GenerateParams(max_tokens=2)
        self.receive(OpenBranch(WARM_UP_BRANCH, WARM_UP_HISTORY))
        self.receive(Stage(WARM_UP_BRANCH, 0, "Hello"))
        for _ in range(WARM_UP_STEPS):
            for event in self.step():
                if isinstance(event, StreamFailed):
                    raise RoleError(f"the engine failed its first turn: {event.message}")
                if isinstance(event.event, Staged):
                    tail = (ChatMessage("user", "Hello there."),)
                    self.receive(Commit(WARM_UP_BRANCH, tail, params))
                if isinstance(event.event, Generated):
                    self.close(WARM_UP_BRANCH)
                    return
        raise RoleError("expected a reply to the first turn, found none")

    def receive(self, message: ToRole) -> None:
        with _sound():
            self._receive(message)

    def _receive(self, message: ToRole) -> None:
        try:
            match message:
                case OpenBranch():
                    stream = ChatBranch(message, self._model, self._frame, self._order)
                    self._streams[message.stream_id] = stream
                case ReadAhead():
                    self._read_ahead(message)
                case Stage():
                    stream = self._streams[message.stream_id]
                    stream.stage(message.stage_id, message.user_text)
                    self._due.setdefault(message.stream_id, stream)
                case BeginPreemptive():
                    self._streams[message.stream_id].begin_preemptive(
                        message.attempt, message.tail, message.params,
                        is_draft=isinstance(message, Draft),
                    )  # fmt: skip
                case Verify():
                    self._streams[message.stream_id].verify(message.attempt, message.tokens)
                case StopPreemptive():
                    self._streams[message.stream_id].stop_preemptive()
                case Commit():
                    self._streams[message.stream_id].commit(message.tail, message.params)
                case _:
                    raise StreamError(f"expected a language message, found {message}")
        except (RequestError, TemplateError) as error:
            raise _refused(error) from error

    def _read_ahead(self, message: ReadAhead) -> None:
        """Bring the operator's prefix into the pool, in the place of the one before.

        One that is refused is told of here: no stream of the gateway's waits for an answer.
        """
        try:
            history = History(message.history, message.tools, self._model.text, self._order)
            tokens = history.encode() if message.history else []
            if self._public is not None:
                if self._public.is_of(tokens):
                    return  # another gateway's, or the same one joined again
                self._public.close()
            branch_id = f"{message.stream_id}#1"
            self._public = PublicPrefix(self._model, branch_id, tokens, self._files)
        except (RequestError, TemplateError, StreamError) as error:
            log.warning("the operator's instructions are not read ahead: %s", error)
        except IntegrityError:
            raise
        except Exception:
            log.exception("the operator's instructions are not read ahead")

    def close(self, stream_id: str) -> None:
        stream = self._streams.pop(stream_id, None)
        self._due.pop(stream_id, None)
        if stream is not None:
            with _sound():
                stream.close()

    def has_work(self) -> bool:
        return self._model.has_work() or bool(self._due)

    def totals(self) -> Mapping[str, float]:
        return self._model.metrics()

    def step(
        self, asked: Callable[[], Sequence[Asked]] | None = None
    ) -> Sequence[StreamEvent | StreamFailed]:
        with _sound():
            return self._step(None if asked is None else lambda: self._gives_way(asked()))

    def _gives_way(self, asked: Sequence[Asked]) -> bool:
        """Whether a reply is asked for that the step under way is not made for. Where it is, that
        reply would only have it made again, from the first layer on. One that is made ahead takes
        along what its own words' step computes, unless that reads them.
        """
        served = {branch_id.rpartition("#")[0] for branch_id in self._model.serving}
        for one in asked:
            stream = self._streams.get(one.stream_id)
            is_its_own = served == {one.stream_id}
            if isinstance(one, BeginPreemptive):
                if stream is not None and is_its_own and stream.takes_words_along:
                    return True
            # One that is not open yet is opened by the message before its commit.
            elif stream is None or not (is_its_own and stream.awaits(one.tail)):
                return True
        return False

    def _step(self, interrupted: Callable[[], bool] | None) -> Sequence[StreamEvent | StreamFailed]:
        messages: list[StreamEvent | StreamFailed] = [*self._stage_due()]
        for event in self._model.step(interrupted):
            if self._public is not None and event.branch_id == self._public.branch_id:
                self._observe_public(self._public, event)
                continue
            stream_id = event.branch_id.rpartition("#")[0]
            owner = self._streams.get(stream_id)
            if owner is not None:
                messages += owner.events(event)
        return messages

    def _observe_public(self, public: PublicPrefix, event: Event) -> None:
        """Take in what no caller's turn depends on: where it fails, nobody else's step does."""
        try:
            public.observe(event)
        except IntegrityError:
            raise
        except Exception:
            log.exception("the operator's instructions are not kept")
            public.close()

    def _stage_due(self) -> Iterator[StreamFailed]:
        """Make tokens of callers' newest words, for as long as a pass has; who failed at it."""
        deadline = self._model.clock() + STAGING_BUDGET_S
        while self._due:
            stream_id = next(iter(self._due))
            stream = self._due.pop(stream_id)
            try:
                stream.advance()
            except (RequestError, TemplateError) as error:
                yield _refused(error).told(stream_id)
            except IntegrityError:
                raise
            except Exception as error:
                log.exception("staging failed the stream %s", stream_id)
                found = f"expected words to be staged, found {type(error).__name__}"
                yield StreamFailed(stream_id, found, retryable=False)
            if self._model.clock() >= deadline:
                return


def load(
    model_dir: str,
    prefix_file_bytes: int = 0,
    keys: Mapping[str, str] = MappingProxyType({}),
    **options: Any,
) -> LanguageRole:
    """Load a Hugging Face folder or a GGUF file; ``options`` are EngineConfig's fields.

    prefix_file_bytes: what the operator's prefixes may take on disk; 0: none is kept. keys: by
    fields of the options, the operator's, as an error is to name them.
    Raises: RoleError.
    """
    for key in ("draft_dir", "eagle_dir", "adapter_dir", "route_file"):
        if options.get(key) is not None:
            options[key] = Path(options[key])
    options["adapters"] = tuple(map(Path, options.get("adapters", ())))
    try:
        engine = Engine.start(Path(model_dir), EngineConfig(**options))
    except EngineError as error:
        field, colon, rest = str(error).partition(": ")
        told = f"the language model cannot be loaded: {keys.get(field, field)}{colon}{rest}"
        raise RoleError(told, getattr(error, "kind", "")) from error
    files = PrefixFiles.of(Path(model_dir), engine, prefix_file_bytes)
    kept = f", the agent's prompt kept in {files.folder}" if files is not None else ""
    detail = f"{Path(model_dir).name}: {describe(engine)}{kept}"
    return LanguageRole(engine, detail, files, served_by(engine))
