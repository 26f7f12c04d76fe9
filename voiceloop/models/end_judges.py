"""The judges of the end of a caller's turn in a server, and what is lost where one is missing.

Owns the two readers that stand beside models which cannot judge by themselves: of the words (the
embedded language model) and of the voice (the embedded recognizer's encoder). Each is a process of
its own, and a call goes on without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from voiceloop.backends import LANGUAGE, is_english
from voiceloop.config import Config
from voiceloop.models.catalog import EMBEDDED, MOONSHINE_TINY
from voiceloop.models.presets import embedded_model_dir, plan, preset_options
from voiceloop.models.resolve import has_end_head, is_installed
from voiceloop.workers.messages import RoleSpec, WorkerSpec

# Whoever reads the voice does so where it falls and at pauses; between them nothing is to be told.
VOICE_READER_UPDATE_MS = 10_000.0
END_READER = "voiceloop.workers.roles.end_of_words:load"
INSTALL = "pip install 'voiceloop[embedded]'"
OTHER_LANGUAGE = (
    "A turn's end in another language than English ({}) is judged by {}voice activity, silence and "
    "pace: callers wait longer"
)
NO_READING, OWN_READING = "", "what the language model makes of the words, by "


@dataclass(frozen=True, slots=True)
class EndJudges:
    """by_words, by_voice: whether each is judged. lacking: a sentence for each that is not."""

    by_words: bool
    by_voice: bool
    lacking: tuple[str, ...] = ()

    def at(self, *, words_ready: bool, voice_ready: bool) -> EndJudges:
        """The same at a moment at which a reader is ready or is not."""
        return replace(
            self,
            by_words=self.by_words and words_ready,
            by_voice=self.by_voice and voice_ready,
        )

    @property
    def told(self) -> str:
        """Return what judges the end: one of four."""
        judges = {"words": self.by_words, "voice": self.by_voice}
        return " and ".join(name for name, judged in judges.items() if judged) or "silence alone"


def end_judges(config: Config, languages: Iterable[str] = (LANGUAGE,)) -> EndJudges:
    """Return who judges the ends of turns in a server of this configuration, of agents that speak
    these.

    Raises: ConfigError as `plan` does.
    """
    lacks = [_lacks_words(config), _lacks_voice(config)]
    known = set(languages)
    others = sorted(one for one in known if not is_english(one))
    has_english = len(others) < len(known)
    # A model here without a head, which was fitted to nobody's language, reads by itself.
    reads_all = not config.llm_url and lacks[0] is None and _wants_end_reader(config)
    by_words, by_voice = (has_english and lack is None for lack in lacks)
    if others:
        told = OTHER_LANGUAGE.format(", ".join(others), OWN_READING if reads_all else NO_READING)
        lacks = [*(lacks if has_english else ()), told]
    return EndJudges(by_words or reads_all, by_voice, tuple(filter(None, lacks)))


def _lacks_words(config: Config) -> str | None:
    """Return why the words are not judged; None where they are."""
    lost = "A turn's end is judged without its words: callers wait longer, or are cut more often"
    if not config.anticipation.does("p_end"):
        return f"{lost} (p_end is in anticipation.off)."
    return None


def _lacks_voice(config: Config) -> str | None:
    """The same of the voice."""
    lost = "A turn's end is judged without its voice: callers wait longer, or are cut more often"
    if not config.anticipation.does("p_voice"):
        return f"{lost} (p_voice is in anticipation.off)."
    if not _wants_voice_reader(config):
        return None
    if not is_installed(MOONSHINE_TINY):
        return f"{lost}. The reader of the voice needs moonshine-voice: {INSTALL}"
    return None


def _wants_end_reader(config: Config) -> bool:
    """Whether the model that answers cannot judge. Workers elsewhere say what theirs do."""
    if config.llm_url:
        return True
    engine = plan(config)[2].get("engine")
    return engine is not None and not has_end_head(engine)


def _wants_voice_reader(config: Config) -> bool:
    if config.stt_url:
        return True
    hearing = plan(config)[2].get("recognizer")
    return hearing is not None and hearing.model != MOONSHINE_TINY


def end_reader_spec(config: Config) -> WorkerSpec | None:
    """The process that reads the words beside a model that cannot judge the end, if it is wanted
    and can be.

    Raises: ConfigError as `plan` does.
    """
    if _lacks_words(config) is not None or not _wants_end_reader(config):
        return None
    options = {"model_dir": str(embedded_model_dir())}
    return WorkerSpec("end reader", (RoleSpec("engine", options, END_READER),))


def voice_reader_spec(config: Config) -> WorkerSpec | None:
    """The process that reads the voice beside a recognizer that cannot, if it is wanted and can be.

    Raises: ConfigError as `plan` does.
    """
    if _lacks_voice(config) is not None or not _wants_voice_reader(config):
        return None
    options = {
        **preset_options(EMBEDDED, "recognizer"), "model": MOONSHINE_TINY.loader,
        "end_of_voice": True, "hears_words": False, "update_ms": VOICE_READER_UPDATE_MS,
    }  # fmt: skip
    return WorkerSpec("voice reader", (RoleSpec("recognizer", options),))
