"""A trace of what a worker's models do, by torch's profiler, for so many seconds of its loop.

Asked for by an operator: the process that runs torch is another one than the server's, so no
profiler attached to that would see a kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from voiceloop.workers.messages import Profile, Profiled


class StepProfile:
    """One recording, from its construction until `finish`. Raises: ImportError without torch."""

    def __init__(self, asked: Profile, now_s: float) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._path = asked.path
        self._ends_s = now_s + asked.seconds
        self._recording: Any = profile(activities=activities)
        self._recording.start()

    def is_over(self, now_s: float) -> bool:
        return now_s >= self._ends_s

    def finish(self) -> Profiled:
        """Write the trace; blocks the process for some five times as long as was recorded.

        On a thread it would be no better: torch holds the interpreter until the file is there.
        """
        try:
            self._recording.stop()
            self._recording.export_chrome_trace(self._path)
            n_bytes = os.path.getsize(self._path)  # a file it could not write is no error to it
        except (OSError, RuntimeError) as error:
            return Profiled(self._path, f"expected to write a trace, found {error}")
        return Profiled(self._path, "" if n_bytes else "expected a trace, found an empty file")


class Profiling:
    """The recording of one worker, where one is under way."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._recording: StepProfile | None = None

    def begin(self, asked: Profile, *, is_here: bool) -> Profiled | None:
        """Returns why not, None where it has begun. is_here: asked for by who started the worker,
        for it names a file of this machine.
        """
        if not is_here:
            text = "expected a profile to be asked for where the worker runs, found a gateway"
            return Profiled(asked.path, text)
        try:
            self._recording = StepProfile(asked, self._clock())
        except (ImportError, RuntimeError) as error:
            text = f"expected torch and its profiler in this worker, found: {error}"
            return Profiled(asked.path, text)
        return None

    def end(self) -> Profiled | None:
        """What came of a recording whose time is over; None before, and where there is none."""
        recording = self._recording
        if recording is None or not recording.is_over(self._clock()):
            return None
        self._recording = None
        return recording.finish()
