"""The caller's turn as a chat service hears it: its sound beside its words.

Owns the parts of such a message (``input_audio``, as OpenAI names them; vLLM and SGLang take the
same), and what is left of them where a service refuses some.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import re
import wave
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from audio.frames import BYTES_PER_SAMPLE, RECOGNIZER_HZ
from voiceloop.backends import ChatMessage

log = logging.getLogger(__name__)

# The words stand behind the sound: a service with a prefix cache then has the sound of all pauses
# but the last before the words are known.
RECOGNIZED = '(The caller says this. A recognizer wrote it down as: "{}")'
# vLLM names the limit on parts of a request; services of models without ears refuse the part.
REFUSES_SOUND = re.compile(
    r"audio|multi.?modal|modalit|content.{0,3}type|at most \d+ |expected a string|valid string",
    re.IGNORECASE,
)
# Of a second of sound a model that hears makes 12 to 25 tokens, some 100 characters.
CHARACTERS_PER_S = 100


class SoundForm(IntEnum):
    """How much of the sound a service takes; what it refused is not sent to it again."""

    NONE = 0
    WHOLE = 1  # in one part
    PIECES = 2  # in a part for each pause


def read_text(message: ChatMessage) -> str:
    """Return what a service reads of a message, its sound as so many characters of its own."""
    n = RECOGNIZER_HZ * BYTES_PER_SAMPLE // CHARACTERS_PER_S
    sound = (f"{hash(piece):x}".ljust(len(piece) // n, "~") for piece in message.sound)
    return "".join(sound) + message.content


def heard_message(message: ChatMessage, form: SoundForm) -> dict[str, Any]:
    """As the service is sent it."""
    chat = message.to_chat()
    if not message.sound or form is SoundForm.NONE:
        return chat
    pieces = message.sound if form is SoundForm.PIECES else (b"".join(message.sound),)
    words = RECOGNIZED.format(message.content) + message.behind
    chat["content"] = [*map(_part, pieces), {"type": "text", "text": words}]
    return chat


def with_text(content: str | list[dict[str, Any]], added: str) -> str | list[dict[str, Any]]:
    """A message's content with this behind its words."""
    if isinstance(content, str):
        return content + added
    return [*content[:-1], {"type": "text", "text": content[-1]["text"] + added}]


def less_sound(
    refusal: str, sent: Sequence[ChatMessage], form: SoundForm, url: str
) -> SoundForm | None:
    """Return what to send after a refusal; None where the sound was no reason for it."""
    pieces = [piece for message in sent for piece in message.sound]
    if not pieces or form is SoundForm.NONE or not REFUSES_SOUND.search(_reason(refusal)):
        return None
    is_whole = form is SoundForm.WHOLE or len(pieces) == 1
    less = SoundForm.NONE if is_whole else SoundForm.WHOLE
    told = "is sent words alone" if less is SoundForm.NONE else "is sent a turn's in one part"
    log.warning("%s refuses the caller's sound: from now on it %s", url, told)
    return less


def _reason(refusal: str) -> str:
    """The service's own sentence, without what it quotes of the request behind it."""
    try:
        error = json.loads(refusal).get("error", {})
        return str(error.get("message") if isinstance(error, dict) else error)[:400]
    except (ValueError, AttributeError):
        return refusal[:400]


def _part(samples: bytes) -> dict[str, Any]:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(BYTES_PER_SAMPLE)
        writer.setframerate(RECOGNIZER_HZ)
        writer.writeframes(samples)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
