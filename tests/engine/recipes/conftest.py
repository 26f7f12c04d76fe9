"""A few made-up dialogues of each source, in files as the shared ones."""

import gzip
import json
from pathlib import Path

import pytest

from engine.recipes.conversations.dialogues import SOURCES

DEMO_TURN = "How much is the carrot cake?"
USER_TURNS = (
    ("Hi. A table for two, please!", "It's for Friday, at 7:30.", "Great, thank you. Bye."),
    ("Sure", "Two lattes and ... one muffin, please", "Sure."),
    ("I need a ride to the station.", DEMO_TURN, "That is all."),
    ("What do you sell? Anything sweet?", f"{DEMO_TURN} I have five dollars.", "No thanks."),
)
REPLY = "Sure. Two lattes, please? No: how can I help?"


@pytest.fixture(scope="session")
def dialogues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder: every source has the same dialogues in all splits."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "dialogues").mkdir()
    for source in SOURCES:
        with gzip.open(folder / "dialogues" / f"{source}.jsonl.gz", "wt") as lines:
            for number, said in enumerate(USER_TURNS):
                turns = [
                    {"role": role, "text": text}
                    for turn in said
                    for role, text in (("user", turn), ("assistant", REPLY))
                ]
                for split in ("train", "valid", "test"):
                    record = {
                        "id": f"{source}/{split}/{number}",
                        "source": source,
                        "domain": "restaurants",
                        "split": split,
                        "turns": turns,
                    }
                    lines.write(json.dumps(record) + "\n")
    return folder
