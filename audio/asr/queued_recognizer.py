"""The streams of a recognizer: what all recognizers do around their model.

Owns what was sent and not yet heard: sound and requests in one queue a caller, bounded, in the
order they were sent. A subclass hears the sound and answers the requests, in `step`.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ..errors import AudioError, UnknownStream
from ..frames import RECOGNIZER_HZ, Samples
from ..stream import Event, RecognizerOptions

MAX_WAITING = 600 * RECOGNIZER_HZ  # ten minutes: what the gateway lets a client send at once


@dataclass(frozen=True, slots=True)
class Flush:
    """The caller paused."""


@dataclass(frozen=True, slots=True)
class Finalize:
    """The segment is over."""


class QueuedStream(ABC):
    """One caller: the queue, and the request that waits for its answer."""

    def __init__(self, stream_id: str, options: RecognizerOptions) -> None:
        self.stream_id = stream_id
        self.options = options
        self.n_segment = 0
        self.request: Flush | Finalize | None = None
        self._inbox: deque[Samples | Flush | Finalize | RecognizerOptions] = deque()
        self._n_waiting = 0

    @property
    def has_waiting(self) -> bool:
        return bool(self._inbox)

    def put(self, item: Samples | Flush | Finalize | RecognizerOptions) -> None:
        """Raises: AudioError if ten minutes already wait to be heard."""
        if isinstance(item, np.ndarray):
            if self._n_waiting + len(item) > MAX_WAITING:
                raise AudioError(
                    f"expected at most {MAX_WAITING} samples waiting to be heard, found more"
                )
            self._n_waiting += len(item)
        self._inbox.append(item)

    def absorb(self) -> None:
        """Hears what waits up to the next request, or until no more sound is taken."""
        while self._inbox and self.request is None:
            head = self._inbox.popleft()
            if isinstance(head, np.ndarray):
                n_taken = self.hear(head)
                self._n_waiting -= n_taken
                if n_taken < len(head):
                    self._inbox.appendleft(head[n_taken:])
                    return
            elif isinstance(head, RecognizerOptions):
                self.options = head
            else:
                self.request = head

    @abstractmethod
    def hear(self, samples: Samples) -> int:
        """Take sound from the front of samples; how many were taken."""


StreamT = TypeVar("StreamT", bound=QueuedStream)


class QueuedRecognizer(ABC, Generic[StreamT]):
    """`RecognizerModel` of the given languages, every call of which only enqueues but `step`."""

    def __init__(self, languages: Sequence[str]) -> None:
        self.languages = tuple(languages)
        self._streams: dict[str, StreamT] = {}

    def open(self, stream_id: str, options: RecognizerOptions) -> None:
        """Raises: AudioError if the language is none of the model's, or the id is open."""
        if stream_id in self._streams:
            raise AudioError(f"expected a new stream id, found {stream_id!r} in use")
        self._check(options)
        self._streams[stream_id] = self._new_stream(stream_id, options)

    def feed(self, stream_id: str, samples: Samples) -> None:
        """Raises: UnknownStream; AudioError if ten minutes already wait to be heard."""
        stream = self._stream(stream_id)
        if len(samples):
            stream.put(samples)

    def flush(self, stream_id: str) -> None:
        self._stream(stream_id).put(Flush())

    def finalize(self, stream_id: str) -> None:
        self._stream(stream_id).put(Finalize())

    def set_options(self, stream_id: str, options: RecognizerOptions) -> None:
        self._check(options)
        self._stream(stream_id).put(options)

    def close(self, stream_id: str) -> None:
        self._streams.pop(stream_id, None)

    @abstractmethod
    def has_work(self) -> bool: ...

    @abstractmethod
    def step(self) -> list[Event]: ...

    @abstractmethod
    def _new_stream(self, stream_id: str, options: RecognizerOptions) -> StreamT: ...

    def _stream(self, stream_id: str) -> StreamT:
        stream = self._streams.get(stream_id)
        if stream is None:
            raise UnknownStream(stream_id)
        return stream

    def _check(self, options: RecognizerOptions) -> None:
        if options.language not in self.languages:
            raise AudioError(
                f"expected a language among {', '.join(self.languages)}, found {options.language!r}"
            )
