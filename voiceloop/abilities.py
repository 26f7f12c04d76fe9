"""What this server's own models speak and hear, as far as that is known before they are asked.

Owns the comparison of a voice's or a language's name with that, for the agent file at the start and
for a session's settings. Pure but for a look into a voice's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from voiceloop.errors import expected

if TYPE_CHECKING:
    from voiceloop.seats import Seat
    from voiceloop.settings import SessionSettings
    from voiceloop.worker_messages import RoleName

# Stock clients name one of these; here each stands for the agent's own voice.
OPENAI_VOICES = frozenset(
    "alloy ash ballad cedar coral echo fable juniper marin nova onyx sage shimmer verse".split()
)
VOICE_FILES = (".safetensors", ".wav", ".pt")


@dataclass(frozen=True, slots=True)
class Abilities:
    """Empty ``voices`` or ``languages``: only the model itself or the service knows them."""

    voices: frozenset[str] = frozenset()
    voice_model: str = ""
    languages: tuple[str, ...] = ()
    recognizer: str = ""
    hears_regions: bool = False  # en-US where it lists en

    def voice_expected(self, voice: str) -> str | None:
        """What was expected in this voice's place; None where nothing speaks against it."""
        if not self.voices or voice in {"default", *self.voices, *OPENAI_VOICES}:
            return None
        return f"a voice of {self.voice_model} ({', '.join(sorted(self.voices))})"

    def language_expected(self, language: str) -> str | None:
        """The same of a language code."""
        known = language.lower().partition("-")[0] if self.hears_regions else language
        if not self.languages or known in self.languages:
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
        if wanted is not None:
            raise expected(where, wanted, language)

    def check(self, settings: SessionSettings) -> None:
        """Raises: InvalidRequest; ``param`` is the path in the session."""
        self.check_voice(settings.voice, "session.audio.output.voice")
        asked = settings.transcription
        if asked is not None and asked.language:
            self.check_language(asked.language, "session.audio.input.transcription.language")


def abilities(seats: Mapping[RoleName, Seat]) -> Abilities:
    """Of the models in these seats; a role without one is a service's."""
    voice, recognizer = seats.get("voice"), seats.get("recognizer")
    return Abilities(
        voices=known_voices(voice) if voice is not None else frozenset(),
        voice_model=voice.model.name if voice is not None else "",
        languages=recognizer.model.language_codes if recognizer is not None else (),
        recognizer=recognizer.model.name if recognizer is not None else "",
        # The recognizer in a package takes en-US too; one with weights its own names alone.
        hears_regions=recognizer is not None and not recognizer.model.repo,
    )


def known_voices(seat: Seat) -> frozenset[str]:
    """The voices of a model by its table or its folder's files; empty where neither tells."""
    names = set(seat.model.voices)
    folder = seat.folder / "voices" if seat.folder is not None else None
    if folder is not None and folder.is_dir():
        names |= {path.stem for path in folder.iterdir() if path.suffix in VOICE_FILES}
    return frozenset(names)
