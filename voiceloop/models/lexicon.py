"""How words are spelled for the voice: names and terms that it would misread.

Owns the keys' check and a voice around any other. What is shown, kept in the history and cut at a
barge-in is the text as it was written: the positions of a voice's words are translated back.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from audio.phonemes import CLOSES, OPENS, sounds
from voiceloop.agent import AgentConfig
from voiceloop.backends import Speech, SpokenWord, Voice, VoiceEvent, VoiceOptions, VoiceStream
from voiceloop.config import Config
from voiceloop.errors import ConfigError

MOST_WORDS = 1_000  # of a lexicon; each is looked up, none is searched for
MOST_CHARACTERS = 100  # of a word, and of what is said for it
# A token's own marks are no part of the word: "(Nguyen's)," is "Nguyen" between them.
_CORE = re.compile(
    r"(?P<before>[^\w]*)(?P<word>.*?)(?P<owner>['\u2019]s)?(?P<after>[^\w]*)", re.DOTALL
)
_TOKEN = re.compile(r"\S+")


def read_lexicon(given: Mapping[str, Any], where: str) -> dict[str, str]:
    """A table of words and what is said for them, words in lower case.

    Raises: ConfigError: too many words, one of several words, or nothing to say for one.
    """
    if len(given) > MOST_WORDS:
        raise ConfigError(f"{where}: expected at most {MOST_WORDS} words, found {len(given)}")
    found: dict[str, str] = {}
    for word, spelling in given.items():
        core = _CORE.fullmatch(word)
        is_word = core is not None and core["word"] == word and 0 < len(word) <= MOST_CHARACTERS
        if not is_word or any(map(str.isspace, word)):
            found_word = repr(word[:MOST_CHARACTERS])
            raise ConfigError(f"{where}: expected one word, without marks, found {found_word}")
        spoken = spelling.strip() if isinstance(spelling, str) else ""
        if not any(map(str.isalnum, spoken)) or len(spoken) > MOST_CHARACTERS:
            raise ConfigError(
                f"{where}.{word}: expected a spelling of 1 to {MOST_CHARACTERS} characters, found "
                f"{str(spelling)[:MOST_CHARACTERS]!r}"
            )
        found[word.lower()] = _by_sounds(spoken, f"{where}.{word}") or spoken
    return found


def _by_sounds(spoken: str, where: str) -> str:
    """IPA between slashes as our voices take it, or "" where it is a spelling."""
    if len(spoken) < 3 or not (spoken.startswith("/") and spoken.endswith("/")):
        return ""
    ipa = spoken[1:-1]
    try:
        sounds(ipa)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    return f"{OPENS}{ipa}{CLOSES}"


def refuse_sounds(lexicon: Mapping[str, str]) -> None:
    """Raises: ConfigError: a word is given by its sounds, which a service does not read."""
    for word, spoken in lexicon.items():
        if spoken.startswith(OPENS):
            raise ConfigError(
                f"lexicon: the voice is a service: expected a spelling of {word!r}, found sounds"
            )


def lexicon_of(config: Config, agent: AgentConfig | None) -> dict[str, str]:
    """The server's words, and the agent's before them. Raises: ConfigError, as `read_lexicon`."""
    own = read_lexicon(agent.lexicon, "lexicon") if agent is not None else {}
    return read_lexicon(config.voice.lexicon, "voice.lexicon") | own


class Spelled:
    """Text deltas as they are given to the voice, and the way back.

    The last word of what came is kept until it is known to have ended.
    """

    def __init__(self, lexicon: Mapping[str, str]) -> None:
        self._lexicon = lexicon
        self._kept = ""
        self._n_written = self._n_spelled = 0
        # Where a word that was spelled anew begins and ends: spelled, and written.
        self._begins: list[int] = []
        self._changed: list[tuple[int, int, int, str]] = []  # spelled end, written begin, end, word

    def add(self, delta: str) -> str:
        """Return what may be spoken by now."""
        text = self._kept + delta
        n_whole = len(text)
        while n_whole and not text[n_whole - 1].isspace():
            n_whole -= 1
        if len(text) - n_whole > 2 * MOST_CHARACTERS:  # no word of a lexicon
            n_whole = len(text)
        self._kept = text[n_whole:]
        return self._spell(text[:n_whole])

    def rest(self) -> str:
        text, self._kept = self._kept, ""
        return self._spell(text)

    def _spell(self, text: str) -> str:
        pieces: list[str] = []
        taken = n_spelled = 0
        for token in _TOKEN.finditer(text):
            if token.end() - token.start() > 2 * MOST_CHARACTERS:
                continue
            core = _CORE.fullmatch(token.group())
            assert core is not None  # every part of it may be empty
            spelling = self._lexicon.get(core["word"].lower())
            if spelling is None:
                continue
            start, end = token.start() + core.start("word"), token.start() + core.end("word")
            pieces += text[taken:start], spelling
            begins = self._n_spelled + n_spelled + start - taken
            n_spelled += start - taken + len(spelling)
            taken = end
            self._begins.append(begins)
            self._changed.append(
                (
                    begins + len(spelling),
                    self._n_written + start,
                    self._n_written + end,
                    core["word"],
                )
            )
        pieces.append(text[taken:])
        self._n_written += len(text)
        spelled = "".join(pieces)
        self._n_spelled += len(spelled)
        return spelled

    def written(self, n_spelled: int) -> int:
        """Characters of the text that are spoken once so many spelled ones are.

        Within a spelling nothing of its word is spoken.
        """
        index = bisect_right(self._begins, n_spelled - 1) - 1
        if index < 0:
            return n_spelled
        spelled_end, start, end, _ = self._changed[index]
        return start if n_spelled < spelled_end else end + n_spelled - spelled_end

    def word_ending(self, after: int, n_spelled: int) -> str:
        """The word whose spelling ends behind `after` and at n_spelled at the latest, or ""."""
        index = bisect_right(self._begins, n_spelled - 1) - 1
        if index < 0:
            return ""
        spelled_end, _, _, word = self._changed[index]
        return word if after < spelled_end <= n_spelled else ""


class LexiconVoice:
    """``Voice`` around another, which is given each word of a lexicon as it is spelled there."""

    def __init__(self, voice: Voice, lexicon: Mapping[str, str]) -> None:
        self._voice = voice
        self._lexicon = lexicon

    @property
    def rate_hz(self) -> int:
        return self._voice.rate_hz

    @property
    def utilization(self) -> float:
        return float(getattr(self._voice, "utilization", 0.0))

    async def open(self, stream_id: str, options: VoiceOptions) -> VoiceStream:
        return _Stream(await self._voice.open(stream_id, options), Spelled(self._lexicon))


class _Stream:
    def __init__(self, stream: VoiceStream, spelled: Spelled) -> None:
        self._stream = stream
        self._spelled = spelled
        self._n_spoken = 0  # spelled characters

    def feed(self, text: str) -> None:
        if spelled := self._spelled.add(text):
            self._stream.feed(spelled)

    def finish(self) -> None:
        if rest := self._spelled.rest():
            self._stream.feed(rest)
        self._stream.finish()

    async def events(self) -> AsyncIterator[VoiceEvent]:
        async for event in self._stream.events():
            if isinstance(event, Speech) and event.words:
                words = tuple(map(self._as_written, event.words))
                event = msgspec.structs.replace(event, words=words)
            yield event

    def _as_written(self, word: SpokenWord) -> SpokenWord:
        written = self._spelled.word_ending(self._n_spoken, word.text_end)
        self._n_spoken = word.text_end
        text_end = self._spelled.written(word.text_end)
        return msgspec.structs.replace(word, text_end=text_end, text=written or word.text)

    async def close(self) -> None:
        await self._stream.close()
