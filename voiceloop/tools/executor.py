"""The executor of a tool's calls, and the error of one that failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from voiceloop.errors import BackendError
from voiceloop.python_agent import HandOff
from voiceloop.tools.caller import Caller

# One call's result as text, or whom a class's method hands the caller to; raises ToolFailed where
# there is none. Cancelled, it stops as soon as it can: it has no deadline of its own. Several calls
# of one tool may be under way. The first argument is a key: the same for every try of this call,
# and for no other call of any session.
Run = Callable[[str, Mapping[str, Any], Caller], Awaitable[str | HandOff]]


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
