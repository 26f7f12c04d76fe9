"""Who speaks in a call: the bundled script, people, or people who say a telephone number."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from audio.frames import RECOGNIZER_HZ
from benchmarks.calls.human_turns import WAIT_MS, human_turns, utterance_of
from benchmarks.harness.data_folder import data_with
from benchmarks.recognizers.clips import read_audio
from clients.call.script import ScriptedTurn, Utterance, load_call, load_utterances
from clients.connection import RATE_HZ
from clients.recording import Recording

PEOPLE, NUMBER = "people", "number"
N_PEOPLE = 40  # turns
TURNS_OF_A_CALL = 8
NUMBERS = "speech/slots.jsonl"
N_DIGITS = 10
DIGITS = {
    name: str(value)
    for value, name in enumerate("zero one two three four five six seven eight nine".split())
} | {"oh": "0", "o": "0"}


def utterances_of(voice: str) -> tuple[Utterance, ...]:
    """voice: of the bundled call, or ``people:2`` and ``number:5``, so many of that kind."""
    kind, _, number = voice.partition(":")
    if kind == PEOPLE:
        first = TURNS_OF_A_CALL * int(number)
        turns = human_turns("plain", N_PEOPLE)[first : first + TURNS_OF_A_CALL]
        return tuple(utterance_of(turn) for turn in turns)
    if kind == NUMBER:
        return (said_numbers()[int(number)][0],)
    return load_utterances(load_call(), voice, RATE_HZ)


def said_numbers() -> list[tuple[Utterance, str]]:
    """People who say a telephone number of ten digits, and the number.

    Raises: DataMissing: the shared data is not here.
    """
    folder = data_with(NUMBERS) / "speech"
    lines = (folder / Path(NUMBERS).name).read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [
        (_utterance(folder / one["file"], one), one["value"])
        for one in records
        if one["kind"] == "phone" and len(one["value"]) == N_DIGITS
    ]


def _utterance(file: Path, record: dict[str, object]) -> Utterance:
    script = ScriptedTurn(file.stem, str(record["text"]), file.stem, "agent", WAIT_MS, 0.0, ())
    recording = Recording(read_audio(file), RECOGNIZER_HZ).at_rate(RATE_HZ)
    onset, end = (int(float(str(record[f"{side}_of_speech_ms"])) * RATE_HZ / 1000.0)
                  for side in ("start", "end"))  # fmt: skip
    return Utterance(script, recording, onset, end, ())


def digits_of(text: str) -> str:
    """The digits that a text says, as figures or as words; a late agent's "One moment" has none."""
    words: Sequence[str] = re.findall(r"[a-z]+|\d", text.lower().replace("one moment", ""))
    return "".join(DIGITS.get(word, word if word.isdecimal() else "") for word in words)
