"""A trace of what a worker's models do, by torch's profiler, for so many seconds of its loop.

Asked for by an operator: the process that runs torch is another one than the server's, so no
profiler attached to that would see a kernel.
"""

from __future__ import annotations

import os
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
