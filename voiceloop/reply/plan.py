"""All that a reply is made from, decided before anything of it is said: `ReplyContext.plan_of`."""

from __future__ import annotations

from dataclasses import dataclass

from voiceloop.backends import ChatMessage, GenerateParams, Tool, VoiceOptions
from voiceloop.realtime.response import ResponseHandle
from voiceloop.realtime.settings import AudioFormat, SessionSettings
from voiceloop.reply.routing import OWN_ALONE, Route

# Prompt to last token of one round. Chosen: the longest reply that an agent file allows by default
# (160 tokens) at 5 a second; speech takes some 4, so a slower model could not feed a voice.
GENERATE_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """The prompt, who answers it and how, and how to say it."""

    prompt: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...]
    params: GenerateParams
    speaks: bool
    output_format: AudioFormat
    voice_options: VoiceOptions
    route: Route = OWN_ALONE


def voice_options_of(asked: ResponseHandle | SessionSettings) -> VoiceOptions:
    return VoiceOptions(asked.voice, asked.speed)
