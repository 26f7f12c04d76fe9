"""What runs a tool's calls: the one shape of all executors, and the error of a call that failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from voiceloop.errors import BackendError
from voiceloop.tools.caller import NOBODY, Caller


class ToolFailed(BackendError):
    """A call has no result.

    ``told``: what the model is told in its place, which the caller may come to hear: no address, no
    key, nothing of a traceback. The message, which goes to the log, says what failed by codes:
    a service may quote the caller, so none of its own words are in it.
    ``may_help``: whether the same call, made at once again, may succeed. ``is_unsent``: nothing of
    it has reached whoever executes it, so that it cannot have had an effect.
    """

    code = "tool_failed"

    def __init__(
        self, message: str, *, told: str, may_help: bool = False, is_unsent: bool = False
    ) -> None:
        super().__init__(message)
        self.told = told
        self.may_help = may_help
        self.is_unsent = is_unsent


class Executor(Protocol):
    """Runs the calls of one tool, several at a time."""

    async def start(self) -> None:
        """Be ready for calls. Raises: ConfigError where the agent file asks for what is not."""

    async def run(self, key: str, arguments: Mapping[str, Any], caller: Caller = NOBODY) -> str:
        """One call's result as text. Cancelled, it stops as soon as it can; it has no deadline of
        its own.

        key: the same for every try of this call, and for no other call of any session.

        Raises:
            ToolFailed: there is no result.
        """
        ...

    async def close(self) -> None:
        """Idempotent; calls still running fail."""
