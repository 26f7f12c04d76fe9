"""The measures of the embedded agent that need replies, and the cases they are taken on.

Every case comes from test dialogues or from the generator with held-out names, items and questions;
replies are greedy, each on the gold history before it.
"""

from __future__ import annotations

import random
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.end_of_turn import end_ids, probability, read_head
from engine.load.source import adapted, open_source
from engine.text.text import Text

from ..conversations.call import Call
from ..conversations.calls import generate_call
from ..conversations.dialogues import as_messages, data_directory
from ..conversations.plain_questions import BUSINESSES, Questions, read_questions
from ..conversations.skills.talk import off_topic_question
from ..model.chat_format import CALL_OPEN
from ..model.decoding import generate_replies, load_agent
from ..training.corpus import Corpus
from . import measures
from .plain_answers import Answer, Reply, ask

_ROOT = Path(__file__).resolve().parents[3]


@dataclass(slots=True)
class Figure:
    """One line of the table; `bar` is what it must reach, `at_most` turns the comparison."""

    name: str
    value: float
    bar: float | None = None
    at_most: bool = False
    cases: int = 0

    @property
    def holds(self) -> bool:
        if self.bar is None:
            return True
        return self.value <= self.bar if self.at_most else self.value >= self.bar


@dataclass(slots=True)
class Case:
    """A prompt for one reply, and what the reply is measured by."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    kind: str
    words: tuple[str, ...] = ()
    tool: dict[str, Any] | None = None
    gold: str = ""
    reply: str = field(default="", compare=False)
    tokens: tuple[list[int], list[int]] = field(default=([], []), compare=False)  # prompt, reply


class Evaluation:
    """Runs the measures on one exported model."""

    def __init__(
        self,
        folder: Path,
        data: Path | None,
        n_calls: int,
        seed: int,
        adapter: Path | None = None,
        served: Reply | None = None,
    ) -> None:
        """served: what replies in the place of the weights alone."""
        self.model, self.encoder = load_agent(folder, adapter)
        source = open_source(folder)
        if adapter is not None:
            source = adapted(source, adapter)
        head = read_head(source.folder, self.model.config.hidden_size, "cpu")
        text = Text(source.text, source.config.eos_ids)
        self._end_ids, self._head = end_ids(text), head
        self.directory = data_directory(data)
        self.corpus = Corpus(self.directory)
        self.test = Corpus(self.directory, "test")
        self.test.noise = self.corpus.noise
        self.n_calls, self.seed = n_calls, seed
        self.replies: list[Case] = []
        self._served = served

    def p_end(self, states: Tensor, logits: Tensor) -> Tensor:
        """P(end of turn) [rows] as the engine reads it, of [rows, hidden] and [rows, vocab]."""
        return (
            probability(logits, self._end_ids) if self._head is None else self._head(states)[:, 0]
        )

    def answer(self, cases: list[Case]) -> list[Case]:
        """Fill in the replies and keep them for the measure of degenerate ones."""
        self.replies += cases
        if self._served is not None:
            for case in cases:
                case.reply = self._served(case.messages, case.tools)
            return cases
        prompts = [
            self.encoder.tokenizer.encode(
                self.encoder.format.render(case.messages, case.tools, True),
                add_special_tokens=False,
            ).ids
            for case in cases
        ]
        decode = self.encoder.tokenizer.decode
        replies = generate_replies(self.model, prompts, self.encoder.end)
        for case, prompt, reply in zip(cases, prompts, replies, strict=True):
            case.reply = decode(reply, skip_special_tokens=True).strip()
            case.tokens = (prompt, reply)
        return cases

    def calls(self, kind: str) -> list[Call]:
        """Held-out calls of one kind."""
        return [
            generate_call(
                f"evaluation/{self.seed}/{kind}/{index}",
                self.corpus.noise,
                self.test.chatter,
                held_out=True,
                kind=kind,
            )
            for index in range(self.n_calls)
        ]

    def cases_of(self, call: Call, kinds: tuple[str, ...]) -> list[Case]:
        return [
            Case(
                call.messages[: check.index],
                call.tools,
                check.kind,
                check.words,
                check.tool,
                str(call.messages[check.index]["content"]),
            )
            for check in call.checks
            if check.kind in kinds
        ]

    def obedience(self) -> list[Figure]:
        """Facts of the system prompt, on unseen values; false refusals come out of it too."""
        calls = self.calls("place")
        cases = self.answer([case for call in calls for case in self.cases_of(call, ("fact",))])
        right = [measures.says_all(case.reply, case.words) for case in cases]
        answerable = [case for case in cases if not measures.is_refusal(case.gold)]
        refused = [measures.is_refusal(case.reply) for case in answerable]
        return [
            Figure("obeys the system prompt's facts", mean(right), 0.90, cases=len(cases)),
            Figure("false refusals in domain", mean(refused), 0.02, True, len(refused)),
        ]

    def tools(self) -> list[Figure]:
        """Right tool, right arguments, valid under the schema; and replies that use the result."""
        calls = self.calls("tools")
        cases = self.answer(
            [case for call in calls for case in self.cases_of(call, ("tool", "tool_result"))]
        )
        called, used = [], []
        for case in cases:
            if case.tool is None:
                used.append(measures.says_all(case.reply, case.words))
                continue
            found = measures.parse_tool_call(case.reply)
            called.append(
                found is not None
                and measures.fits_schema(found, case.tools)
                and measures.same_call(found, case.tool)
            )
        return [
            Figure("right tool call with right arguments", mean(called), 0.85, cases=len(called)),
            Figure("reply uses the tool's result", mean(used), 0.85, cases=len(used)),
        ]

    def repetition(self, n_dialogues: int) -> list[Figure]:
        """Caller's words that the gold reply repeats, on the test dialogues of the task sources."""
        wanted = found = 0
        rng = random.Random(f"repetition/{self.seed}")
        cases: list[Case] = []
        for source in ("tm4", "sgd", "star"):
            dialogues = [
                d
                for d in self.test.dialogues[source]
                if source != "sgd" or "restaurants" in d.domain.split("/")
            ]
            rng.shuffle(dialogues)
            for dialogue in dialogues[:n_dialogues]:
                cases += _reply_cases(as_messages(dialogue, rng, self.corpus.noise), source)
        for case in self.answer(cases):
            caller = [str(m["content"]) for m in case.messages if m["role"] == "user"]
            n_wanted, n_found = measures.repeated_words(case.gold, case.reply, caller)
            wanted, found = wanted + n_wanted, found + n_found
        return [
            Figure(
                "repeats the caller's words that gold repeats",
                found / max(1, wanted),
                0.60,
                cases=wanted,
            )
        ]

    def refusals(self) -> list[Figure]:
        """WebQuestions of the test split and generated questions, in calls of unseen places."""
        rng = random.Random(f"refusals/{self.seed}")
        cases = []
        for question in (*self.test.chatter.questions, *[None] * 100):
            call = generate_call(
                rng.randrange(1 << 40),
                self.corpus.noise,
                self.test.chatter,
                held_out=True,
                kind="place",
            )
            cut = rng.choice(
                [index for index, m in enumerate(call.messages) if m["role"] == "user"]
            )
            text = question or off_topic_question(call)
            if rng.random() < 0.5:
                text = self.corpus.noise.clean(text, rng)
            cases.append(
                Case([*call.messages[:cut], {"role": "user", "content": text}], [], "refusal")
            )
        right = [measures.refuses_and_redirects(case.reply) for case in self.answer(cases)]
        return [
            Figure(
                "refuses and redirects out-of-scope questions", mean(right), 0.90, cases=len(right)
            )
        ]

    def scripted_call(self, n_noisy: int = 6) -> list[Figure]:
        """The bundled call of `voiceloop demo` as text: clean and with recognizer errors."""
        script = _ROOT / "clients" / "call" / "call.toml"
        agent = _ROOT / "voiceloop" / "agents" / "cafe.toml"
        if not (script.exists() and agent.exists()):
            return []
        turns = tomllib.loads(script.read_text())["turns"]
        persona = tomllib.loads(agent.read_text())
        good: list[bool] = []
        rng = random.Random(f"script/{self.seed}")
        for attempt in range(n_noisy + 1):
            messages = [
                {"role": "system", "content": persona["instructions"].strip()},
                {"role": "assistant", "content": persona["greeting"]},
            ]
            for turn in turns:
                text = turn["text"].replace("| ", "")
                noise = self.corpus.noise
                said = noise.noisy(text, rng, 0.06) if attempt else noise.clean(text, rng)
                messages.append({"role": "user", "content": said})
                case = self.answer([Case(list(messages), [], "script")])[0]
                messages.append({"role": "assistant", "content": case.reply})
                heard = _join_digits(case.reply)
                good.append(all(any(word in heard for word in words) for words in turn["expect"]))
                if attempt == 0:
                    print(f"  {said}\n    -> {case.reply}  [{'ok' if good[-1] else 'MISSING'}]")
        return [Figure("scripted call: expected words", mean(good), 0.90, cases=len(good))]

    def plain_questions(self) -> list[Figure]:
        """Typed questions to the shipped cafe; and to two other businesses, in one call each."""
        good: dict[str, list[bool]] = {}
        for business in BUSINESSES:
            answers = self.plain_answers(read_questions(business))
            good[business] = [answer.is_good for answer in answers]
            for answer in answers:
                if not answer.is_good:
                    print(f"  {business}: {answer.question.text}\n    -> {answer.reply}")
        other = good["pizzeria"] + good["dentist"]
        return [
            Figure(
                "plain questions to the cafe", mean(good["cafe"]), 0.96, cases=len(good["cafe"])
            ),
            Figure("another business by its agent file", mean(other), 0.80, cases=len(other)),
        ]

    def plain_answers(self, questions: Questions) -> list[Answer]:
        return ask(
            questions, lambda said, tools: self.answer([Case([*said], tools, "plain")])[0].reply
        )

    def degenerate(self) -> list[Figure]:
        """Over every reply generated so far."""
        spoken = [case for case in self.replies if CALL_OPEN not in case.reply]
        bad = [measures.is_degenerate(case.reply) for case in spoken]
        return [Figure("replies that loop, are empty or too long", mean(bad), 0.01, True, len(bad))]


def mean(values: list[bool]) -> float:
    return sum(values) / max(1, len(values))


def _reply_cases(messages: list[dict[str, Any]], kind: str) -> list[Case]:
    return [
        Case(messages[:at], [], kind, gold=str(message["content"]))
        for at, message in enumerate(messages)
        if message["role"] == "assistant" and at and messages[at - 1]["role"] == "user"
    ]


def _join_digits(text: str) -> str:
    """Lower-case words, with runs of spoken digits joined: `five five` -> `55`."""
    figures = {
        word: str(value)
        for value, word in enumerate("zero one two three four five six seven eight nine".split())
    } | {"oh": "0"}
    plain = " ".join(measures.words_of(text))
    joined = " ".join(figures.get(word, word) for word in plain.split())
    return f"{plain} " + re.sub(r"(?<=\d) (?=\d)", "", joined)
