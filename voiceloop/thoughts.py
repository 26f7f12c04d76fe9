"""A model's hidden reasoning, taken out of its text.

Owns the marks by which models wrap their thoughts, and the rule that no thought is passed on: not
to a voice, a transcript or a history. However the text is cut into pieces, the same of it is passed
on. Pure.

Sources: the chat templates of DeepSeek-R1, QwQ, Qwen3, Magistral, Seed-OSS, Kimi and Gemma;
OpenAI, "Harmony response format".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# What opens a thought, and what closes it; in any case.
PAIRS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|channel>thought": "<channel|>",
    "[think]": "[/think]",
    "◁think▷": "◁/think▷",
}
# Harmony names the channel of what follows in a header; `final` alone is for the listener.
START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CHANNEL_ENDS = ("<|end|>", "<|return|>", "<|call|>")
# Where a service strips Harmony's marks, the channels' names stay in the text, without a space.
BARE_ANALYSIS, BARE_FINAL = "analysis", "assistantfinal"
MARKS = (*PAIRS, *PAIRS.values(), START, CHANNEL, MESSAGE, *CHANNEL_ENDS)
LONGEST_MARK = max(map(len, MARKS))
MOST_HEADER_CHARACTERS = 200  # of a channel's header: far more than any has


def _any_of(marks: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)))


ANY_MARK = _any_of(MARKS)


def opens_thought(prompt: str) -> bool:
    """Whether a reply to this prompt begins inside a thought, as by some chat templates."""
    return prompt.rstrip().lower().endswith(tuple(PAIRS))


class Thoughts:
    """One reply's text without its thoughts: `feed` each piece, `finish` at the end. An answer
    does not begin with the spaces behind a thought.

    begins_inside: the prompt has opened a thought, so the text begins with one. Where the text
    closes none although it came to its end, it was the answer, and `finish` returns it.
    """

    def __init__(self, *, begins_inside: bool = False) -> None:
        self.has_thought = False
        self.closes_unopened = False  # it closed a thought that it had not opened
        self.was_answer = False  # what was read as a thought from the beginning was none
        self._unread = ""
        self._is_first = True  # nothing but spaces was read
        self._is_bare = True  # nothing but spaces was passed on
        self._marks, self._any_mark = MARKS, ANY_MARK
        self._assumed: str | None = "" if begins_inside else None  # read inside, as yet unclosed
        self._closers: list[str] = []  # of the thoughts that are open, the innermost last
        self._header: str | None = None  # of a message, so far
        self._is_channel = False  # the header names a channel

    def feed(self, piece: str) -> str:
        """Take a piece of the text. Returns what may be passed on by now."""
        self._unread += piece
        return self._read(is_end=False)

    def begin_answer(self) -> None:
        """Begin the answer: thoughts came apart from the text, so the text begins with none."""
        if not self._assumed:
            self._assumed = None

    def finish(self, *, is_cut: bool = False) -> str:
        """The reply ends here. Returns the rest that may be passed on.

        is_cut: it was as long as it may be, so its thought may have had no time to close.
        """
        passed = self._read(is_end=True)
        if self._assumed is not None and not is_cut:
            passed, self._assumed, self.was_answer = self._assumed, None, True
        return passed

    def _read(self, *, is_end: bool) -> str:
        if self._is_first and self._may_be_harmony(is_end=is_end):
            return ""
        passed, at = "", 0
        text = self._unread
        lowered = text.lower()
        if len(lowered) != len(text):  # a letter whose lower case is two: marks have none
            lowered = text
        for mark in self._any_mark.finditer(lowered):
            passed += self._take(text[at : mark.start()])
            at = mark.end()
            if not self._obey(mark[0]):
                passed = ""  # it was a thought
        n_begun = 0 if is_end else _n_of_begun_mark(lowered[at:], self._marks)
        n_whole = len(text) - n_begun
        passed += self._take(text[at:n_whole])
        self._unread = text[n_whole:]
        return passed

    def _may_be_harmony(self, *, is_end: bool) -> bool:
        """Look at the first word. Returns whether too little of it is there to tell."""
        begun = self._unread.lstrip()
        if not begun:
            return False
        if not is_end and BARE_ANALYSIS.startswith(begun):
            return True
        self._is_first = False
        if begun.startswith(BARE_ANALYSIS) and begun[len(BARE_ANALYSIS) :][:1].isupper():
            self._marks, self._any_mark = (*MARKS, BARE_FINAL), _any_of((*MARKS, BARE_FINAL))
            self._open(BARE_FINAL)  # "analysisThe caller wants": no word that a reply begins with
        return False

    def _take(self, text: str) -> str:
        """Plain text between marks. Returns it where it may be passed on."""
        if self._header is not None:
            self._header = (self._header + text)[:MOST_HEADER_CHARACTERS]
        elif self._assumed is not None and not self._closers:
            self._assumed += text
        elif not self._closers:
            if self._is_bare and self.has_thought:
                text = text.lstrip()
            self._is_bare = self._is_bare and not text.strip()
            return text
        return ""

    def _open(self, closer: str) -> None:
        self._closers.append(closer)
        self.has_thought = True

    def _obey(self, mark: str) -> bool:
        """Follow a mark. False: what stands before it was a thought that nothing had opened."""
        if mark in PAIRS:
            self._open(PAIRS[mark])
        elif mark in (START, CHANNEL, *CHANNEL_ENDS):
            if CHANNEL in self._closers:
                self._close(CHANNEL)
            self._header = None if mark in CHANNEL_ENDS else ""
            self._is_channel = mark == CHANNEL
        elif mark == MESSAGE:
            name, self._header = self._header, None
            if name is not None and self._is_channel and not name.strip().startswith("final"):
                self._open(CHANNEL)
        elif mark in self._closers:
            self._close(mark)
        elif self._assumed is not None and not self._closers:
            self._assumed, self.has_thought = None, True
        elif not self._closers:
            self.closes_unopened = self.has_thought = self._is_bare = True
            return False
        return True

    def _close(self, closer: str) -> None:
        """End the thought, and what was opened in it and never closed."""
        while self._closers.pop() != closer:
            pass


def _n_of_begun_mark(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of the text may be the beginning of a mark."""
    for n in range(min(LONGEST_MARK - 1, len(text)), 0, -1):
        if any(mark.startswith(text[-n:]) for mark in marks):
            return n
    return 0
