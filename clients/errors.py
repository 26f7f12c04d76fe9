"""Errors on the caller's side of the wire.

``clients`` meets the server only over its socket and imports nothing of it, so it has its own
small tree. Each message is one sentence naming what was expected and what was found; the command
line prints it and exits with code 2.
"""

from __future__ import annotations


class ClientError(Exception):
    """Root of the tree; its message is fit to be shown to the person who ran the command."""


class RecordingError(ClientError):
    """A recording is missing, is not audio, or has a shape that cannot be used."""


class OutputError(ClientError):
    """A result that cannot be written to the chosen place."""


class CallScriptError(ClientError):
    """A call script names what does not exist or leaves out what it must have."""


class ScenarioError(ClientError):
    """A file of scenarios leaves out what it must have, or asks for what cannot be played."""


class ConnectionFailed(ClientError):
    """No Realtime server answered at the address given, or it hung up before the session began."""


class DeviceMissing(ClientError):
    """The machine has no microphone, no speaker, or no library to reach them."""


class ServerDidNotStart(ClientError):
    """The server process ended, or was not ready in time."""


class ConformanceError(ClientError):
    """The conformance suite was asked for a check it does not have."""


class EndpointError(ClientError):
    """A chat endpoint did not answer, refused, or answered with something else than a reply."""


class BenchError(ClientError):
    """A benchmark was asked for something that is not to be had of that endpoint."""
