"""Whether the agent's instructions and tools leave a caller room in what the language model takes.

Asked once the models are loaded, for only then is it known how they count. A server that no call
fits does not start.
"""

from __future__ import annotations

from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.config import Config
from voiceloop.errors import ConfigError, InvalidRequest
from voiceloop.realtime.window import TokenCount, Window

TURN_TOKENS = 32  # of a caller's sentence, twenty words, and the marks around it
KEYS = "engine.kv_tokens, engine.context_tokens or context_tokens"


def check_prompt_room(agent: AgentConfig, config: Config, backends: Backends) -> None:
    """agent: with the tools that MCP servers list. config: whose context leaves room for a reply.

    Raises:
        ConfigError: instructions and tools surely leave no room for a sentence.
    """
    settings = agent.session_settings()
    n_most = config.context_tokens or backends.capabilities.context_tokens
    count = TokenCount(backends.count_tokens())
    n_left = max(1, n_most - TURN_TOKENS) if n_most else 0
    window = Window.of(settings.truncation, n_left, settings.tools, count)
    if window is None:
        return
    try:
        window.check(settings.instructions)
    except InvalidRequest as error:
        told = f"agent {agent.name}: {error.message}, beside {TURN_TOKENS} of a caller's turn"
        raise ConfigError(f"{told}: shorten them, or raise {KEYS}") from None
