"""What the parts of the engine's benchmark share: which model, which words, how a reply is run."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.branch import Branch
from engine.engine import Engine
from engine.types import Done, EngineConfig, Event, SamplingParams

N_REPLY = 48  # tokens of a measured reply
TAIL = 5  # tokens a commit adds to what is staged: end of turn and assistant header

# What callers say, for the parts whose figures depend on what a trained model answers.
CALLERS = (
    "hi i would like to book a table for four on friday evening",
    "what time do you close on sundays",
    "my number is zero five five one seven seven two could you read that back to me",
    "do you have anything without nuts",
    "can you move my booking to half past eight please",
    "how much is the large one and how long does it take",
    "i need to cancel my appointment for tomorrow morning",
    "which of the two would you recommend for a child",
)


@dataclass(frozen=True, slots=True)
class Setting:
    model_dir: Path
    is_trained: bool
    threads: int
    repeats: int
    seed: int
    notes: list[str] = field(default_factory=list)  # what a part has to say beside its bars

    def tell(self, line: str) -> None:
        print(f"  {line}", flush=True)
        self.notes.append(line)

    def engine(self, **changes: object) -> Engine:
        config = {"quant": "int8", "threads": self.threads, "kv_tokens": 32768, **changes}
        return Engine.load(self.model_dir, EngineConfig(**config))  # type: ignore[arg-type]

    def words(self, n_tokens: int, salt: int) -> list[int]:
        """Token ids that stand for somebody's words; every salt gives others."""
        chance = random.Random(self.seed * 1000 + salt)
        return [chance.randrange(16, 256) for _ in range(n_tokens)]

    def question(self, engine: Engine, index: int) -> list[int]:
        """A prompt worth an answer; of random words where the model is random too."""
        if not self.is_trained:
            return self.words(60, index)
        said = CALLERS[index % len(CALLERS)]
        messages = [
            {"role": "system", "content": "You answer the phone of a small business. Be brief."},
            {"role": "user", "content": CALLERS[(index * 5 + 1 + index // 8) % len(CALLERS)]},
            {"role": "assistant", "content": "One moment, please. Is there anything else?"},
            {"role": "user", "content": said},
        ]
        return engine.text.encode_chat(messages, add_generation_prompt=True)


def drain(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while engine.has_work():
        events += engine.step()
    return events


def stage_words(engine: Engine, branch: Branch, prompt: list[int]) -> None:
    """Have all of a prompt but its tail read, as a caller's words are while they are spoken."""
    branch.stage(prompt[: max(1, len(prompt) - TAIL)])
    drain(engine)


def reply_of(engine: Engine, branch: Branch, tokens: list[int], n_reply: int = N_REPLY) -> Done:
    """Commit and run to the end."""
    branch.commit(tokens, SamplingParams(max_tokens=n_reply, ignore_eos=True))
    return next(event for event in drain(engine) if isinstance(event, Done))


def ms_per_token(done: Done) -> float:
    """Of the tokens after the first: the mean, what the whole reply took to decode a token."""
    decode_ms = done.timings.total_ms - done.timings.ttft_ms
    return decode_ms / max(1, done.usage.output_tokens - 1)


def paired(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Median of the rounds' own ratios: what slows the machine for a while slows both."""
    return median([a / b for a, b in zip(numerators, denominators, strict=True)])


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
