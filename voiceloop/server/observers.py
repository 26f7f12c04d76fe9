"""The observers of each call beside its metrics: a collector of traces, a folder of recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from starlette.routing import Route

from voiceloop.access.keys import KeyRing
from voiceloop.agent import AgentConfig
from voiceloop.config import Config
from voiceloop.recording.recorder import Recorder, deletion_route
from voiceloop.telemetry.metrics import Metrics
from voiceloop.telemetry.tap import Recordings
from voiceloop.telemetry.traces import Traces, open_traces


class CallObservers(NamedTuple):
    """The observers of one server's calls. close: writes and sends what is left; may block for some
    seconds.
    """

    traces: Traces
    recordings: Recordings
    routes: Sequence[Route]
    close: Callable[[], None]


def open_observers(
    config: Config, agent: AgentConfig, keys: KeyRing, metrics: Metrics, clock: Callable[[], float]
) -> CallObservers:
    """Open the observers that the configuration names. Raises: ConfigError, MissingExtra."""
    asked, origins = config.traces, config.allowed_origins
    traces = open_traces(asked.url, clock, with_words=asked.words) if asked.url else Traces()
    if config.recording.folder is None:
        return CallObservers(
            traces,
            Recordings(),
            (deletion_route(keys, origins, None),),
            traces.close,
        )
    recorder = Recorder(config, agent, clock, metrics.observe_recording)

    def close() -> None:
        traces.close()
        recorder.close()

    return CallObservers(traces, recorder, (deletion_route(keys, origins, recorder),), close)
