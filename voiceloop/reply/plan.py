"""What a reply is made from, all of it, before anything of it is said.

Owns the resolution of a response's (or a session's) settings into one immutable plan. A reply that
was drafted ahead of the endpoint can answer where its plan differs in nothing but the last words;
whether it is the one that is said after it, the branch that drafted it tells. Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from voiceloop.agent import AgentConfig
from voiceloop.backends import ChatMessage, GenerateParams, Tool
from voiceloop.realtime.response import ResponseHandle
from voiceloop.realtime.settings import AudioFormat, Json, SessionSettings


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """The prompt, how to answer it, and how to say it."""

    prompt: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...]
    params: GenerateParams
    speaks: bool
    output_format: AudioFormat
    voice: str
    speed: float


def plan_of_response(response: ResponseHandle, agent: AgentConfig) -> ReplyPlan:
    params = _params(agent, response.max_output_tokens, response.temperature, response.tool_choice)
    return ReplyPlan(
        response.messages(),
        response.tools,
        params,
        response.speaks,
        response.output_format,
        response.voice,
        response.speed,
    )


def plan_of_settings(
    settings: SessionSettings, agent: AgentConfig, prompt: tuple[ChatMessage, ...]
) -> ReplyPlan:
    """The plan of a response that names nothing itself."""
    params = _params(agent, settings.max_output_tokens, settings.temperature, settings.tool_choice)
    return ReplyPlan(
        prompt,
        settings.tools,
        params,
        settings.speaks,
        settings.output_format,
        settings.voice,
        settings.speed,
    )


def _params(
    agent: AgentConfig,
    max_tokens: int | Literal["inf"],
    temperature: float | None,
    tool_choice: str | Json,
) -> GenerateParams:
    limit = agent.limits.max_reply_tokens
    return GenerateParams(
        max_tokens=limit if max_tokens == "inf" else min(int(max_tokens), limit),
        temperature=agent.limits.temperature if temperature is None else temperature,
        seed=agent.limits.seed,
        tool_choice=tool_choice if isinstance(tool_choice, str) else json.dumps(tool_choice),
    )
