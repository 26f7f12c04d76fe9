"""Reads the shared dialogues, masks real numbers and addresses, and frames them as calls."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .calls import is_held_out_turn
from .lexicon import FIRST_NAMES, WORDS, pick
from .recognizer_noise import RecognizerNoise
from .wording import expand

SOURCES = ("sgd", "star", "tm4", "tm3", "mschat", "ohf", "selfdlg", "webq")
_PHONE = re.compile(r"(?<!\d)\(?\+?\d[\d().\s-]{5,16}\d(?!\d)")
_ADDRESS = re.compile(
    r"\b\d{1,5}[a-z]?\s+(?:[NSEW]\.?\s+)?(?:[A-Z0-9][\w.']*\s+){1,4}(?:Street|St|Avenue|Ave|Road|Rd|"
    r"Drive|Dr|Boulevard|Blvd|Way|Lane|Ln|Place|Pl|Court|Ct|Highway|Hwy|Parkway|Pkwy|Plaza|Square|"
    r"Terrace|Circle|Embarcadero|Broadway)\b\.?(?:\s+(?:#|Suite|Ste|Unit)\s*\w+)?"
)
# What each domain's agent does, for the prompt in front of a dialogue that has none.
_JOBS: dict[str, str] = WORDS["jobs"]


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One record of the shared data: turns are (role, text)."""

    source: str
    domain: str
    turns: tuple[tuple[str, str], ...]
    context: str = ""


def data_directory(given: Path | None = None) -> Path:
    """The data folder: the given one, else $VOICELOOP_DATA, else ../shared/data of the checkout.

    Raises:
        FileNotFoundError: none of them holds `dialogues/`.
    """
    root = Path(__file__).resolve().parents[3]
    folder = given or Path(os.environ.get("VOICELOOP_DATA") or root.parent / "shared" / "data")
    if not (folder / "dialogues").is_dir():
        raise FileNotFoundError(f"expected a folder with dialogues/, found none at {folder}")
    return folder


def mask(text: str, rng: random.Random) -> str:
    """Replace telephone numbers and street addresses by invented ones."""

    def phone(match: re.Match[str]) -> str:
        digits = [c for c in match[0] if c.isdigit()]
        if len(digits) < 7:
            return match[0]
        return f"555-01{rng.randrange(100):02d}"

    text = _ADDRESS.sub(lambda _: f"{rng.randint(1, 99)} {rng.choice(FIRST_NAMES)} Street", text)
    return _PHONE.sub(phone, text)


def read_dialogues(folder: Path, source: str, split: str) -> list[Dialogue]:
    """Read one source and split (train, valid or test); masking is seeded by the record."""
    found = []
    with gzip.open(folder / "dialogues" / f"{source}.jsonl.gz", "rt") as lines:
        for line in lines:
            record = json.loads(line)
            if record["split"] != split:
                continue
            rng = random.Random(record["id"])
            turns = tuple((turn["role"], mask(turn["text"], rng)) for turn in record["turns"])
            found.append(Dialogue(source, record["domain"], turns, record.get("context", "")))
    return found


def prompt_for(dialogue: Dialogue, rng: random.Random) -> str:
    """A system prompt for a dialogue that came without one."""
    name = pick(rng, FIRST_NAMES, False)
    if dialogue.source == "ohf":
        lead = expand(
            rng,
            "you are {a}, the voice assistant of this home.|you are {a}. you control the home.",
            a=name,
        )
        return f"{lead} {dialogue.context}".strip()
    if dialogue.source in ("mschat", "selfdlg", "webq"):
        return expand(
            rng,
            "you are {a}(, a friendly voice assistant|). chat with the caller.|you are "
            "{a}. you (like to |)talk about anything.",
            a=name,
        )
    jobs = [_JOBS[part] for part in dialogue.domain.split("/") if part in _JOBS]
    job = rng.choice(jobs) if jobs else "helps callers"
    if len(jobs) > 1 and rng.random() < 0.7:
        job = " and ".join(dict.fromkeys(jobs[:3]))
    return expand(
        rng,
        "you are {a}, a (voice |phone |)assistant that {j}.( be brief.| look things up "
        "in the listings.|)|you are {a}. your service {j}.|a (voice |)assistant called {a} "
        "{j}.",
        a=name,
        j=job,
    )


def as_messages(
    dialogue: Dialogue,
    rng: random.Random,
    noise: RecognizerNoise,
    max_words: int = 300,
    style: str | None = None,
) -> list[dict[str, Any]]:
    """Frame a dialogue as a call; half of them with caller turns as a recognizer writes them.

    style: "written", "recognized" or "noisy", of all caller turns; None: drawn.
    """
    if style is None:
        style = rng.choices(("written", "recognized", "noisy"), weights=(45, 30, 25))[0]
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.9 or dialogue.context:
        messages.append({"role": "system", "content": prompt_for(dialogue, rng)})
    n_words = 0
    for role, text in dialogue.turns:
        n_words += len(text.split())
        if n_words > max_words or (role == "user" and is_held_out_turn(text)):
            break
        if role == "user" and style != "written":
            text = noise.clean(text, rng) if style == "recognized" else noise.noisy(text, rng, 0.07)
        if text:
            messages.append({"role": role, "content": text})
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    return messages


def open_talk(rng: random.Random, dialogues: dict[str, list[Dialogue]]) -> list[dict[str, Any]]:
    """Small talk and general questions under a prompt that allows them: short spoken answers."""
    name = pick(rng, FIRST_NAMES, False)
    prompt = expand(
        rng,
        "you are {a}(, a friendly voice assistant|). (answer in a few words|keep it short|be "
        "brief).|you are {a}. you (talk about|answer questions about) anything.",
        a=name,
    )
    messages: list[dict[str, Any]] = [{"role": "system", "content": prompt}]
    for _ in range(rng.choice((2, 3, 4, 5))):
        dialogue = rng.choice(dialogues[rng.choice(("webq", "webq", "mschat"))])
        (_, asked), (_, answered) = dialogue.turns[:2]
        if rng.random() < 0.5:
            asked = asked.lower().rstrip(".?!")
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": answered})
    return messages
