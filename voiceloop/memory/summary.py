"""The summary of what leaves the window: asked of a model, and kept only where it is borne out.

Owns its prompt and the check: a sentence stays only if all its telling words and all its numbers
stand in the transcript, for a model that has forgotten something makes it up. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from voiceloop.backends import ChatMessage, GenerateParams
from voiceloop.memory.facts import plain

MAX_TRANSCRIPT_CHARS = 12_000  # some 3,000 tokens, the newest: what a small context still holds
SUMMARY_PARAMS = GenerateParams(max_tokens=120, tool_choice="none", is_batch=True)
INSTRUCTIONS = (
    "You keep the notes of a telephone call. You are given a part of its transcript. Write two to "
    "four short sentences: what the caller wants, what was agreed, and what is still open. Use the "
    "words and the numbers of the transcript. Do not answer the caller, and add nothing."
)
SPEAKERS = {"user": "Caller", "assistant": "Agent"}
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+", re.IGNORECASE)
ENDINGS = ("ing", "ed", "es", "s", "d")  # of a word that the summary writes in another form
LEAST_STEM = 3
# What a summary says of its own: who speaks, that they spoke, and the closed classes of English.
OWN_WORDS = frozenset(
    "the a an and or but so if then than that this these those there here it its it's he she they "
    "them their his her him who whom whose which what when where why how of to in on at by for "
    "from with about into over after before as is are was were be been being am has have had do "
    "does did will would can could should may might must yes also still only just "
    "caller agent call said says say asked asks ask asking told tells tell wants want wanted would "
    "like likes liked needs need needed agreed agrees confirmed confirms confirm mentioned gave "
    "gives given provided open customer user assistant name named called their one both all any "
    "some more other another again already".split()
)


def summary_prompt(before: str, said: Sequence[tuple[str, str]]) -> tuple[ChatMessage, ...]:
    """before: the last summary. said: role and words, in order."""
    lines = [f"{SPEAKERS.get(role, role)}: {plain(text)}" for role, text in said]
    transcript = "\n".join(lines)[-MAX_TRANSCRIPT_CHARS:]
    known = f"Notes so far: {before}\n\n" if before else ""
    asked = f"{known}Transcript:\n{transcript}\n\nNotes:"
    return (ChatMessage("system", INSTRUCTIONS), ChatMessage("user", asked))


def borne_out(summary: str, before: str, said: Sequence[tuple[str, str]]) -> str:
    """The sentences of the summary that hold nothing but what was said."""
    known = {_stem(word) for _, text in said for word in _words(text)}
    known.update(_stem(word) for word in _words(before))
    kept = [one for one in SENTENCE_END.split(plain(summary)) if one and _is_known(one, known)]
    return " ".join(kept)


def _is_known(sentence: str, known: set[str]) -> bool:
    telling = [word for word in _words(sentence) if word not in OWN_WORDS]
    return bool(telling) and all(_stem(word) in known for word in telling)


def _words(text: str) -> list[str]:
    return [word.lower().removesuffix("'s") for word in WORD.findall(text)]


def _stem(word: str) -> str:
    """ "ordered", "orders" and "order" are one word here; numbers stay as they are."""
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= LEAST_STEM and word.isalpha():
            return word.removesuffix(ending)
    return word
