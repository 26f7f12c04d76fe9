"""Callers made by flite: turns of held-out dialogues, in several voices, pitches and paces.

Owns the choice of texts and the voices. The dialogues' own ``split`` keeps the texts of the fit and
of the test apart, and the two have no voice in common. Nothing here is random between runs.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from audio.frames import RECOGNIZER_HZ
from clients.errors import CallScriptError
from clients.recording import Samples, read_wav

Part = Literal["fit", "test"]
VOICES: dict[Part, tuple[str, ...]] = {"fit": ("rms", "kal16"), "test": ("slt", "awb")}
SPLIT: dict[Part, str] = {"fit": "valid", "test": "test"}
PITCH_HZ = {"rms": 105.0, "kal16": 95.0, "slt": 175.0, "awb": 130.0}
SOURCES = ("sgd", "star", "tm4")
N_DIALOGUES = 14  # of each source and part
TURNS_OF_ONE = 3
MOST_WORDS = 16
N_SHORT = 24
N_NUMBERS = 16

NUMBER_CARRIERS = ("my number is {}", "it's {}", "sure {}", "{}", "the number is {}")
NUMBER_QUESTION = "What phone number can I reach you at?"
# Dialogues that were written hold too few of them: a call is full of them.
SHORT_ANSWERS = (
    "yes", "no", "yeah", "yes please", "no thanks", "sure", "okay", "that's right", "nope", "yep",
    "no thank you", "that's all", "yeah sure", "tomorrow", "two", "the first one", "correct",
    "medium", "at seven", "perfect", "a small one", "thank you", "yes it is", "i don't know",
)  # fmt: skip
YES_NO_QUESTION = "Would you like me to book it?"
OPEN_QUESTION = "Which one would you like?"
ASKED_OPEN = frozenset({"tomorrow", "two", "the first one", "medium", "at seven", "a small one"})
DIGIT_WORDS = "zero one two three four five six seven eight nine".split()


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """A caller's words, the voice, and the messages before them (role, text)."""

    name: str
    speaker: str
    voice: str
    pitch_hz: float
    stretch: float
    text: str
    history: tuple[tuple[str, str], ...]
    kind: Literal["turn", "short", "digits"]


def words_of(text: str) -> tuple[str, ...]:
    """Lower-case words without punctuation."""
    return tuple(re.findall(r"[a-z']+", text.lower()))


def scripted_turns(dialogues: Path, part: Part) -> list[ScriptedTurn]:
    """All turns of one part, always the same."""
    chance = random.Random(f"callers {part}")
    turns: list[ScriptedTurn] = []
    for source in SOURCES:
        chosen = list(_dialogues(dialogues / f"{source}.jsonl.gz", SPLIT[part]))
        chance.shuffle(chosen)
        for dialogue in chosen[:N_DIALOGUES]:
            places = [i for i, turn in enumerate(dialogue["turns"]) if _is_plain(turn, 3)]
            chance.shuffle(places)
            turns += _turns_of(dialogue, sorted(places[:TURNS_OF_ONE]), part, chance, "turn")
        short = [(d, i) for d in chosen for i, t in enumerate(d["turns"]) if _is_short(t)]
        chance.shuffle(short)
        for dialogue, place in short[: N_SHORT // len(SOURCES)]:
            turns += _turns_of(dialogue, [place], part, chance, "short")
    return turns + [_number(index, part, chance) for index in range(N_NUMBERS)]


def _dialogues(path: Path, split: str) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            dialogue = json.loads(line)
            if dialogue["split"] == split:
                yield dialogue


def said_in_training(dialogues: Path) -> frozenset[tuple[str, ...]]:
    """The words of every caller turn that a model may have learned from: of the train split."""
    return frozenset(
        words_of(turn["text"])
        for path in dialogues.glob("*.jsonl.gz")
        for dialogue in _dialogues(path, "train")
        for turn in dialogue.get("turns", ())  # pauses as text have none
        if turn["role"] == "user"
    )


def _is_plain(turn: dict[str, Any], at_least: int) -> bool:
    text = turn["text"]
    n_words = len(words_of(text))
    plain = re.fullmatch(r"[A-Za-z' ,.?!-]+", text) is not None
    return turn["role"] == "user" and plain and at_least <= n_words <= MOST_WORDS


def _is_short(turn: dict[str, Any]) -> bool:
    return _is_plain(turn, 1) and len(words_of(turn["text"])) <= 3


def _caller(part: Part, chance: random.Random) -> tuple[str, float, float]:
    voice = chance.choice(VOICES[part])
    pitch_hz = PITCH_HZ[voice] * chance.uniform(0.88, 1.15)
    return voice, round(pitch_hz, 1), round(chance.uniform(0.9, 1.15), 2)


def _turns_of(
    dialogue: dict[str, Any], places: list[int], part: Part, chance: random.Random, kind: str
) -> list[ScriptedTurn]:
    voice, pitch_hz, stretch = _caller(part, chance)
    found = []
    for place in places:
        before = dialogue["turns"][max(0, place - 6) : place]
        history = tuple((turn["role"], turn["text"]) for turn in before)
        text = dialogue["turns"][place]["text"]
        name = f"{dialogue['id']}#{place}"
        speaker = f"{voice} {dialogue['id']}"
        found.append(
            ScriptedTurn(name, speaker, voice, pitch_hz, stretch, text, history, kind)  # type: ignore[arg-type]
        )
    return found


def short_answers(part: Part) -> list[ScriptedTurn]:
    """Each short answer by two callers of the part."""
    chance = random.Random(f"short answers {part}")
    turns = []
    for index, text in enumerate(2 * SHORT_ANSWERS):
        voice, pitch_hz, stretch = _caller(part, chance)
        question = OPEN_QUESTION if text in ASKED_OPEN else YES_NO_QUESTION
        name = f"short/{part}{index}"
        history = (("assistant", question),)
        speaker = f"{voice} {name}"
        turns.append(
            ScriptedTurn(name, speaker, voice, pitch_hz, stretch, text + ".", history, "short")
        )
    return turns


def _number(index: int, part: Part, chance: random.Random) -> ScriptedTurn:
    voice, pitch_hz, stretch = _caller(part, chance)
    groups = [3, 4] if chance.random() < 0.6 else [3, 3, 4]
    spoken = ", ".join(" ".join(chance.choices(DIGIT_WORDS, k=size)) for size in groups)
    text = chance.choice(NUMBER_CARRIERS).format(spoken) + "."
    history = (("assistant", NUMBER_QUESTION),)
    name = f"number/{part}{index}"
    return ScriptedTurn(name, f"{voice} {name}", voice, pitch_hz, stretch, text, history, "digits")


def speak(turn: ScriptedTurn) -> Samples:
    """The turn as int16 [n] at 16 kHz. Raises: CallScriptError: flite is absent or failed."""
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "turn.wav"
        command = [
            "flite", "-voice", turn.voice,
            "--setf", f"int_f0_target_mean={turn.pitch_hz}",
            "--setf", f"duration_stretch={turn.stretch}",
            "-t", turn.text, "-o", str(wav),
        ]  # fmt: skip
        try:
            subprocess.run(command, capture_output=True, text=True, check=True)
        except FileNotFoundError as error:
            raise CallScriptError("expected flite, found none: apt-get install flite") from error
        except subprocess.CalledProcessError as error:
            raise CallScriptError(f"flite failed on {turn.text!r}: {error.stderr}") from error
        return read_wav(wav).at_rate(RECOGNIZER_HZ).samples
