"""Who starts a server is told of a model that does not share the agent's language."""

from __future__ import annotations

from voiceloop.agent import AgentConfig
from voiceloop.models.catalog import EMBEDDED_AGENT, ESPEAK, HIBARI, WHISPER_SMALL
from voiceloop.models.presets import not_shared
from voiceloop.models.resolve import ResolvedModel

HEARS = ResolvedModel(WHISPER_SMALL)


def test_english_models_are_named_for_an_agent_of_another_language() -> None:
    taken = {"engine": ResolvedModel(EMBEDDED_AGENT), "voice": ResolvedModel(HIBARI)}
    told = not_shared(AgentConfig(language="de-AT"), taken | {"recognizer": HEARS})
    assert [HIBARI.name in one for one in told] == [False, True]
    assert EMBEDDED_AGENT.name in told[0] and "language = 'de-AT'" in told[0]
    assert not_shared(AgentConfig(language="en-GB"), taken) == []


def test_a_voice_of_many_languages_is_asked_for_the_agents_own() -> None:
    taken = {"recognizer": HEARS, "voice": ResolvedModel(ESPEAK)}
    [told] = not_shared(AgentConfig(language="de"), taken)
    assert told.endswith('voice = "de" speaks it')
    assert not_shared(AgentConfig(language="de", voice="de"), taken) == []
