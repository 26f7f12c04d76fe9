"""All that a reply is made from, decided before anything of it is said.

Owns the resolution of a response's (or a session's) settings into one immutable plan. Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from voiceloop.agent import AgentConfig
from voiceloop.backends import ChatMessage, GenerateParams, Tool, VoiceOptions
from voiceloop.realtime.response import ResponseHandle
from voiceloop.realtime.settings import AudioFormat, SessionSettings
from voiceloop.reply.margins import TOP
from voiceloop.reply.routing import OWN_ALONE, Route, Router

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


def plan_of(
    asked: ResponseHandle | SessionSettings,
    agent: AgentConfig,
    prompt: tuple[ChatMessage, ...],
    router: Router,
) -> ReplyPlan:
    """The plan of a response, or of one that leaves everything to the session's settings."""
    limits, n_asked, choice = agent.limits, asked.max_output_tokens, asked.tool_choice
    n_most = limits.max_reply_tokens
    route = router.route(prompt, asked.reasoning_effort)
    params = GenerateParams(
        logprobs=TOP if route.least_margin else None,
        max_tokens=n_most if n_asked == "inf" else min(int(n_asked), n_most),
        temperature=limits.temperature if asked.temperature is None else asked.temperature,
        tool_choice=choice if isinstance(choice, str) else json.dumps(choice),
        within_ms=agent.waiting.first_token_ms if asked.speaks else 1000 * GENERATE_DEADLINE_S,
    )
    return ReplyPlan(
        prompt, asked.tools, params, asked.speaks, asked.output_format, voice_options_of(asked),
        route,
    )  # fmt: skip


def voice_options_of(asked: ResponseHandle | SessionSettings) -> VoiceOptions:
    """How a response, or a session, is spoken."""
    return VoiceOptions(asked.voice, asked.speed)
