"""The measurements of one turn.

Owns `TurnRecord`: the marks of a turn in monotonic seconds, the stages between them, which sum
exactly, and what else is known of it. The call writes it, and decides nothing by it. Observers
(metrics, traces, the budget of waste, the client, a canary's trial) read it once it is finished.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from voiceloop.backends import RouteSigns, Usage

Outcome = Literal["completed", "incomplete", "failed", "cancelled"]


class Mark(StrEnum):
    """A moment of a turn, by its name on the wire. `STAGES` says which stage ends at it."""

    SPEECH_END = "speech_end"  # arrival of the last sample the detector calls speech
    FIRST_LOW_FRAME = "first_low_frame"
    ENDPOINT_DECISION = "endpoint_decision"
    TRANSCRIPT_FINAL = "transcript_final"
    CLASS_ASKED = "class_asked"  # where the agent's class has `before_reply`
    PASSAGES_KNOWN = "passages_known"  # where the agent has documents
    PROMPT_COMMITTED = "prompt_committed"
    TOOLS_ANSWERED = "tools_answered"  # of the last round that only called tools, nothing said yet
    THOUGHTS_OVER = "thoughts_over"  # of a model that thought before its first word
    FIRST_TOKEN = "first_token"
    FIRST_CLAUSE = "first_clause"
    FIRST_AUDIO_FRAME = "first_audio_frame"
    FIRST_AUDIO_QUEUED = "first_audio_queued"
    FIRST_BYTE_ON_WIRE = "first_byte_on_wire"
    TURN_END = "turn_end"


# Each mark and the stage that ends at it, in the order in which a reply comes about. What an
# anticipated turn did ahead of time has marks before the decision: its stages are then 0 long.
STAGES: tuple[tuple[Mark, str], ...] = (
    (Mark.SPEECH_END, ""),
    (Mark.FIRST_LOW_FRAME, "vad lag"),
    (Mark.ENDPOINT_DECISION, "silence wait"),
    (Mark.TRANSCRIPT_FINAL, "final transcript"),
    (Mark.CLASS_ASKED, "before reply"),
    (Mark.PASSAGES_KNOWN, "retrieval"),
    (Mark.PROMPT_COMMITTED, "prompt"),
    (Mark.TOOLS_ANSWERED, "tools"),
    (Mark.THOUGHTS_OVER, "thinks"),
    (Mark.FIRST_TOKEN, "first token"),
    (Mark.FIRST_CLAUSE, "first clause"),
    (Mark.FIRST_AUDIO_FRAME, "synthesis"),
    (Mark.FIRST_AUDIO_QUEUED, "playout"),
    (Mark.FIRST_BYTE_ON_WIRE, "writer"),
)


class Endpoint(msgspec.Struct):
    """The cause that decided that the turn was over. A field that does not apply is unset, and not
    sent.

    needed_ms, silence_ms: of silence, wanted and found. early: whether the reply began before; set
    when the turn ends, also for the record of a reply that began and is taken back after that.
    late: judges of the end that had not answered by then, "words" or "voice". why: what the wait
    was made of, as a sentence. The others are the evidence, as `listening.evidence` has it.
    """

    reason: str | UnsetType = UNSET
    needed_ms: float | UnsetType = UNSET
    silence_ms: float | UnsetType = UNSET
    p_end: float | None | UnsetType = UNSET
    p_voice: float | None | UnsetType = UNSET
    asked: str | None | UnsetType = UNSET
    words_are_full: bool | UnsetType = UNSET
    tail_level_db: float | None | UnsetType = UNSET
    early: bool | UnsetType = UNSET
    late: tuple[str, ...] | UnsetType = UNSET
    why: str | UnsetType = UNSET


class Lookup(msgspec.Struct, frozen=True):
    """The passages found in documents for the turn. fate: as `knowledge.prefetch.Fate`."""

    fate: str
    n_searches: int
    n_passages: int
    searched_ms: float
    waited_ms: float


class ToolUse(msgspec.Struct, frozen=True):
    """A call that the server made. ms: to its end; None: under way when the reply went on.

    hidden_ms: how much of that had passed when the turn was over.
    """

    name: str
    fate: str
    ms: float | None
    hidden_ms: float


class HookUse(msgspec.Struct, frozen=True):
    """A hook of the agent's class was asked. fate: answered, late or failed."""

    name: str
    ms: float
    fate: str


class Speaker(msgspec.Struct, frozen=True):
    """The model that made the reply's text from a character on, on a server with several language
    models.

    model: of `[[models]]`, or "main", the server's own. part: in the cascade. reason: what chose
    it.
    """

    model: str
    part: Literal["small", "large"] | None
    reason: str
    from_char: int


class Draft(msgspec.Struct, frozen=True):
    """Tokens of the reply that the small model drafted, and how many of them the large one kept.

    n_kept: None while it has not verified them.
    """

    n_tokens: int
    n_kept: int | None = None


class WindowSlide(msgspec.Struct, frozen=True):
    """The window of the conversation moved on before this turn, or in it.

    n_items: no longer shown. n_facts: known of all that has left.
    """

    slid: Literal["in silence", "in the turn"]
    n_items: int
    n_facts: int


class Work(msgspec.Struct, frozen=True):
    """How much of a turn was done ahead of it; see `Usage` for the tokens.

    draft: "released" as it was held, "salvaged" where it had to be verified first, else "none".
    n_discarded_tokens: of drafts, and of a reply taken back before any of it was heard.
    wasted_audio_ms: also what was not heard any more of a reply that the caller interrupted.
    """

    draft: str
    n_turn_tokens: int
    n_turn_resident: int
    n_left_to_prefill: int
    n_reply_tokens: int
    n_discarded_tokens: int
    n_unheard_tokens: int
    n_drafted_tokens: int
    n_accepted_tokens: int
    wasted_audio_ms: float

    @classmethod
    def of(cls, usage: Usage, wasted_audio_ms: float, draft: str) -> Work:
        return cls(
            draft,
            usage.n_turn_tokens,
            usage.n_turn_resident,
            max(0, usage.n_prompt_tokens - usage.n_cached_tokens),
            usage.n_reply_tokens,
            usage.n_discarded_tokens,
            usage.n_unheard_tokens,
            usage.n_drafted_tokens,
            usage.n_accepted_tokens,
            round(wasted_audio_ms, 1),
        )


class TurnEnd(msgspec.Struct, frozen=True):
    """How a reply ended, what it cost, and what was said. Observers read it; nothing sends it.

    n_wrong_tool_calls: of those that the model wrote, what could not be made as written. heard: the
    caller's words; said: those of the agent that were heard. used: the part of each language model,
    by name, where the server has several.
    """

    outcome: Outcome
    usage: Usage = Usage()
    wasted_audio_ms: float = 0.0
    n_tool_calls: int = 0
    n_wrong_tool_calls: int = 0
    window: WindowSlide | None = None
    heard: str = ""
    said: str = ""
    used: Mapping[str, Usage] = {}


class TurnFacts:
    """The facts of a turn besides its marks; None, until it is noted, is not told.

    The client sees these names, in the order in which they were noted: no `__slots__`, for `vars`
    keeps that order.
    """

    endpoint: Endpoint | None = None
    waiting_line: str | None = None  # that was said while the reply was late
    opener: str | None = None  # that the small model of a cascade said for the large one
    answered_by: str | None = None  # which table of the agent file answered, without a model
    retrieval: Lookup | None = None
    fade_in_ms: float | None = None  # of a reply that started early
    draft_buffered_ms: float | None = None  # sound that was held when the turn was over
    held_ms: float | None = None  # the same, when the first sound was sent
    tools: tuple[ToolUse, ...] | None = None
    hooks: tuple[HookUse, ...] | None = None  # of the agent's class, since the turn before
    speakers: tuple[Speaker, ...] = ()
    route: RouteSigns | None = None  # as the route head of a cascade has read the turn
    draft: Draft | None = None  # by the small model of a cascade, for the large one to verify
    cut: Literal["soft", "hard"] | None = None  # the caller had not finished
    cut_over_ms: float | None = None  # of the reply, heard over the caller who goes on
    outcome: Outcome | None = None
    window: WindowSlide | None = None
    anticipation: Work | None = None


class TurnRecord:
    """The marks of one turn, each set once by whoever saw it first, and its facts.

    speech_end_ms: where the detector heard the caller end, on the session's audio clock.
    response_ids: of all responses that the reply is said in; the first names the turn.
    draft: as of `Work`.
    """

    def __init__(self, turn_id: str, speech_end_ms: float | None = None) -> None:
        self.turn_id = turn_id
        self.speech_end_ms = speech_end_ms
        self.response_ids: list[str] = []
        self.marks: dict[Mark, float] = {}
        self.facts = TurnFacts()
        self.draft: Literal["none", "released", "salvaged"] = "none"
        self._end: TurnEnd | None = None

    # --- written, while the turn lasts ---

    def note_response(self, response_id: str) -> None:
        """The reply goes on in this response: behind tool calls, or a false interruption."""
        self.response_ids.append(response_id)
        self.turn_id = self.response_ids[0]

    def mark(self, mark: Mark, at_s: float) -> None:
        self.marks.setdefault(mark, at_s)

    def note_calls(self, calls: Iterable[ToolUse], at_s: float) -> None:
        """The server's tools have answered these calls; a stage where nothing was said before."""
        self.facts.tools = (*(self.facts.tools or ()), *calls)
        if not self.marks.keys() & {Mark.FIRST_TOKEN, Mark.FIRST_AUDIO_FRAME}:
            self.marks[Mark.TOOLS_ANSWERED] = at_s  # of several rounds the last

    def note_first_token(self, at_s: float, *, has_thought: bool) -> None:
        """Something is there to be said: a word, or a line that covers the wait for one."""
        if has_thought and Mark.FIRST_TOKEN not in self.marks:
            self.marks[Mark.THOUGHTS_OVER] = at_s
        self.mark(Mark.FIRST_TOKEN, at_s)

    def note_speaker(self, speaker: Speaker) -> None:
        """Note that from here on this model makes the reply."""
        self.facts.speakers = (*self.facts.speakers, speaker)

    def note_draft(self, fate: Literal["released", "salvaged"], held_ms: float) -> None:
        """The reply was made ahead, and so much of its sound is held."""
        self.draft, self.facts.draft_buffered_ms = fate, round(held_ms, 1)

    def note_held(self, held_ms: float) -> None:
        """Note how much sound was there before the first of it was sent."""
        if self.facts.held_ms is None:
            self.facts.held_ms = round(held_ms, 1)

    def before_sound(self) -> TurnRecord:
        """The same as it was before anything was sent, which has been taken back."""
        sent = (Mark.FIRST_AUDIO_QUEUED, Mark.FIRST_BYTE_ON_WIRE)
        before = TurnRecord("preemptive", self.speech_end_ms)
        before.marks = {mark: at_s for mark, at_s in self.marks.items() if mark not in sent}
        return before

    def take_over(self, ahead: TurnRecord) -> None:
        """The turn is answered by what was done ahead: that is marked here too."""
        for mark, at_s in ahead.marks.items():
            self.mark(mark, at_s)
        if ahead.facts.fade_in_ms is not None:
            self.facts.fade_in_ms = ahead.facts.fade_in_ms

    def note_cut(self, cut: Literal["soft", "hard"], over_ms: float) -> None:
        """The caller had not finished, and the reply was heard over what followed for so long."""
        self.facts.cut, self.facts.cut_over_ms = cut, round(over_ms, 1)

    def finish(self, end: TurnEnd) -> None:
        """The turn is over. Where it is answered anew, a reply follows that was not made ahead."""
        self._end, facts, draft = end, self.facts, self.draft
        self.draft = "none"
        facts.outcome = end.outcome
        if end.window is not None:
            facts.window = end.window
        facts.anticipation = Work.of(end.usage, end.wasted_audio_ms, draft)

    # --- read, by observers alone ---

    @property
    def end(self) -> TurnEnd:
        """How it ended: of a record that is finished."""
        assert self._end is not None
        return self._end

    def stages(self) -> list[tuple[str, float]]:
        """(stage, milliseconds) in order; they sum to last mark minus first, exactly as marked.

        A mark that is missing leaves its time to the next stage that has one.
        """
        found: list[tuple[str, float]] = []
        before_s: float | None = None
        for mark, stage in STAGES:
            at_s = self.marks.get(mark)
            if at_s is None:
                continue
            if before_s is not None:
                found.append((stage, 1000.0 * max(0.0, at_s - before_s)))
            before_s = at_s if before_s is None else max(before_s, at_s)
        return found

    @property
    def gap_ms(self) -> float | None:
        """Server's part of the gap: arrival of the last speech sample to the first byte sent."""
        return self._between_ms(Mark.SPEECH_END, Mark.FIRST_BYTE_ON_WIRE)

    @property
    def answer_ms(self) -> float | None:
        """The part of the gap after the decision that the caller has finished; what comes before
        is mostly the wait that was meant."""
        return self._between_ms(Mark.ENDPOINT_DECISION, Mark.FIRST_BYTE_ON_WIRE)

    def _between_ms(self, first: Mark, last: Mark) -> float | None:
        if first not in self.marks or last not in self.marks:
            return None
        return 1000.0 * (self.marks[last] - self.marks[first])

    def payload(self) -> dict[str, Any]:
        """The `voiceloop.timeline` event: marks in monotonic seconds of the server's machine."""
        return {
            "turn_id": self.turn_id,
            "response_ids": self.response_ids,
            "speech_end_ms": self.speech_end_ms,
            "marks": {mark.value: round(at_s, 6) for mark, at_s in self.marks.items()},
            "stages": [{"name": name, "ms": round(ms, 3)} for name, ms in self.stages()],
            "gap_ms": self.gap_ms,
            **{name: msgspec.to_builtins(fact) for name, fact in vars(self.facts).items()},
        }
