"""The languages of this server's own models, as far as they are known before the models are asked.

Owns the comparison of a voice's or a language's name with that, for the agent file at the start and
for a session's settings. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from voiceloop.errors import expected

# Stock clients name one of these; here each stands for the agent's own voice.
OPENAI_VOICES = frozenset(
    "alloy ash ballad cedar coral echo fable juniper marin nova onyx sage shimmer verse".split()
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Empty ``voices`` or ``languages``: only the model itself or the service knows them.

    reads_turn_ends: the language model, or what reads beside a service, learned where turns end;
    of any other its P(end of turn) is no sign that the waits are fitted to. context_tokens: of a
    prompt, as far as the model itself bounds it; 0: not known. mcp_hosts: whose MCP servers a
    session may name. fills_slots: the agent has slots with a name, which are read from English
    words. made_for: the instructions that a small language model was trained on, which may garble
    others; empty: it was trained on none; None: of any other model.
    """

    voices: frozenset[str] = frozenset()
    voice_model: str = ""
    languages: tuple[str, ...] = ()
    recognizer: str = ""
    language_model: str = ""
    reduces_noise: bool = False
    reads_turn_ends: bool = True
    context_tokens: int = 0
    mcp_hosts: tuple[str, ...] = ()
    fills_slots: bool = False
    made_for: str | None = None

    def voice_expected(self, voice: str) -> str | None:
        """Return what was expected in this voice's place; None where nothing speaks against it."""
        if not self.voices or voice in {"default", *self.voices, *OPENAI_VOICES}:
            return None
        return f"a voice of {self.voice_model} ({', '.join(sorted(self.voices))})"

    def language_expected(self, language: str) -> str | None:
        """The same of a language code."""
        plain = language.lower().partition("-")[0]  # of en-US, where it lists en
        if not self.languages or plain in self.languages or language in self.languages:
            return None
        return f"a language of {self.recognizer} ({', '.join(self.languages)})"

    def check_voice(self, voice: str, where: str) -> None:
        """Raises: InvalidRequest."""
        wanted = self.voice_expected(voice)
        if wanted is not None:
            raise expected(where, wanted, voice)

    def check_language(self, language: str, where: str) -> None:
        """Raises: InvalidRequest."""
        wanted = self.language_expected(language)
        if wanted is None and self.fills_slots and language.lower().partition("-")[0] != "en":
            wanted = "en, the language of this agent's slots"
        if wanted is not None:
            raise expected(where, wanted, language)
