"""Sentences callers say: user turns of the dialogue data, spelled as a recognizer hears them."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from ..errors import AudioError
from ..normalize import spoken_words

# How much a turn of each source counts. Orders and bookings are the job; `tm4` (coffee orders)
# is small and the closest to it; `selfdlg` is chat between people, for the rest of English.
SOURCE_WEIGHTS = {
    "tm4": 6.0, "tm3": 1.0, "sgd": 0.5, "star": 0.5, "ohf": 1.0, "mschat": 0.5, "selfdlg": 0.1,
    "webq": 0.3,
}  # fmt: skip


def read_user_turns(data: Path, split: str) -> Iterator[tuple[str, list[str]]]:
    """(source, words) of each user turn of a split of `data`/dialogues. Raises: AudioError."""
    folder = data / "dialogues"
    if not folder.is_dir():
        raise AudioError(f"expected the folder {folder} of dialogue data, found none")
    for source in SOURCE_WEIGHTS:
        with gzip.open(folder / f"{source}.jsonl.gz", "rt") as lines:
            for line in lines:
                dialogue = json.loads(line)
                if dialogue["split"] != split:
                    continue
                for turn in dialogue["turns"]:
                    if turn["role"] == "user" and (words := spoken_words(turn["text"])):
                        yield source, words
