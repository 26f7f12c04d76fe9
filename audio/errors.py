"""Errors of the audio room: what came from outside (wire, file, package) and was not usable.

Each message is one sentence "expected X, found Y"; the gateway turns them into wire errors.
"""


class AudioError(Exception):
    """Audio data, an audio option or an audio stream is not what was expected."""


class MissingExtra(AudioError):
    """A package is not installed; the message names the remedy. extra: what brings it; "": nothing
    else.
    """

    def __init__(self, package: str, purpose: str, extra: str = "embedded") -> None:
        brought = f"voiceloop[{extra}]" if extra else package
        super().__init__(
            f"expected the package {package!r} for {purpose}, found none; "
            f"remedy: pip install '{brought}'"
        )
        self.package = package


class UnknownStream(AudioError):
    """A stream id that was never opened, or is closed already."""

    def __init__(self, stream_id: str) -> None:
        super().__init__(f"expected the id of an open stream, found {stream_id!r}")
