"""How a session at an upstream server is set up, and whether it stays so.

Owns its settings: no turn detection there, for the turns are found here; PCM both ways; no words of
the caller, which are recognized here. What the server changes by itself is logged, once each.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from audio.frames import VOICE_HZ
from voiceloop.backends import ChatMessage, GenerateParams, Tool
from voiceloop.errors import BackendRefused

log = logging.getLogger(__name__)

SETTINGS = "settings"  # the event id of what sets a session up
PCM: Mapping[str, Any] = {"type": "audio/pcm", "rate": VOICE_HZ}
LEAST_HZ, MOST_HZ = 8_000, 48_000


class Session:
    """The session on one connection after the other of a call. rate_hz: of the sound that the
    server sends.
    """

    def __init__(self, service: str, voice: str) -> None:
        self.rate_hz = VOICE_HZ
        self._service = service
        self._voice = voice
        self._known: dict[str, Any] = {}  # what the server has said of the session, by name
        self._has_changed: set[str] = set()

    def begin(self) -> None:
        """Another connection."""
        self._known = {}
        self.rate_hz = VOICE_HZ

    def settings(self, instructions: str, tools: Sequence[Tool]) -> dict[str, Any]:
        """The event that sets it up."""
        output: dict[str, Any] = {"format": PCM}
        if self._voice:
            output["voice"] = self._voice
        session = {
            "type": "realtime", "instructions": instructions, "output_modalities": ["audio"],
            "tools": [
                {"type": "function", "name": tool.name, "description": tool.description,
                 "parameters": tool.parameters}
                for tool in tools
            ],
            "audio": {"input": {"format": PCM, "turn_detection": None}, "output": output},
        }  # fmt: skip
        return {"type": "session.update", "session": session}

    def response(
        self, instructions: str, messages: Sequence[ChatMessage], params: GenerateParams
    ) -> dict[str, Any]:
        """Return what is asked of a response besides. What stands behind the caller's words, for
        the model alone, stands behind the instructions: their sound has no place for it.
        """
        asked: dict[str, Any] = {}
        if behind := "\n".join(message.behind for message in messages if message.behind):
            asked["instructions"] = f"{instructions}\n{behind}"
        if params.tool_choice != "auto":
            choice = params.tool_choice
            asked["tool_choice"] = json.loads(choice) if choice.startswith("{") else choice
        return asked

    def observe(self, told: Mapping[str, Any], *, is_told: bool) -> None:
        """Take in the server's report about the session. is_told: after our settings.

        Raises: BackendRefused: it sends sound that cannot be read.
        """
        audio = told.get("audio") or {}
        output, heard = audio.get("output") or {}, audio.get("input") or {}
        form: Mapping[str, Any] = output.get("format") or PCM
        rate_hz = form.get("rate") or VOICE_HZ
        is_pcm = form.get("type") == "audio/pcm" and LEAST_HZ <= rate_hz <= MOST_HZ
        if is_told and not is_pcm:
            found = f"{form.get('type')} at {rate_hz}"
            raise BackendRefused(f"expected audio/pcm of {self._service}, found {found}"[:200])
        if is_told:
            self.rate_hz = int(rate_hz)
            self.note("rate", VOICE_HZ, self.rate_hz)
            if heard.get("turn_detection"):
                self.note("turn detection", "none", "its own")
        wanted = {"voice": self._voice if is_told else "", "model": ""}
        for name, now in (("voice", output.get("voice")), ("model", told.get("model"))):
            if isinstance(now, str) and now:
                self.note(name, wanted[name] or self._known.get(name, now), now)
                self._known[name] = now

    def note(self, name: str, wanted: object, found: object) -> None:
        """Log what the server does by itself, once a name."""
        if wanted != found and name not in self._has_changed:
            self._has_changed.add(name)
            log.warning(
                "%s has changed its session: expected %s %s, found %s",
                self._service, name, str(wanted)[:64], str(found)[:64],
            )  # fmt: skip
