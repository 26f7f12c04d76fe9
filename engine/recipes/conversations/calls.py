"""Puts moves together into whole calls, seeded, for training and for evaluation."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .business import Business, random_business
from .call import Call, Draws
from .plain_questions import BUSINESSES, read_questions
from .recognizer_noise import RecognizerNoise
from .skills import booking, info, order, talk, tools
from .wording import expand, join

_DEMO_CALL = Path(__file__).resolve().parents[3] / "clients" / "call" / "call.toml"
_HELD_OUT_PLACES = ("juniper", "luna pizza", "bright smile")
_LEAST_WORDS = (
    3  # of a plain question that is held out: greetings cannot be kept out of any dialogue
)
_LEADS = re.compile(r"^((hi|hey|um|uh|well|okay|oh|so|alright|yeah|and|er|actually) )+")


def _plain(text: str) -> str:
    return " ".join(re.findall(r"[a-z']+", text.lower()))


@lru_cache(maxsize=1)
def demo_turns() -> frozenset[str]:
    """The caller turns of `voiceloop demo`, with and without a lead.

    A bare "yes" cannot be held out of any dialogue.
    """
    if not _DEMO_CALL.exists():
        return frozenset()
    turns = tomllib.loads(_DEMO_CALL.read_text())["turns"]
    texts = {_plain(str(turn["text"])) for turn in turns}
    return frozenset(
        text for whole in texts for text in (whole, _LEADS.sub("", whole)) if " " in text
    )


@lru_cache(maxsize=1)
def plain_turns() -> frozenset[str]:
    """The plain questions, without greetings and the like, which stand in every dialogue."""
    texts = {
        _plain(question.text)
        for business in BUSINESSES
        for question in read_questions(business).turns
    }
    long_texts = {text for text in texts if len(text.split()) >= _LEAST_WORDS}
    return frozenset(bare for text in long_texts for bare in (text, _LEADS.sub("", text)))


def is_demo_turn(text: str) -> bool:
    """Whether a caller turn is one of the demo's, written or recognized, with or without a lead."""
    plain = _plain(text)
    return plain in demo_turns() or _LEADS.sub("", plain) in demo_turns()


def is_held_out_turn(text: str) -> bool:
    """Whether no training data may hold a turn, written or recognized, with a lead or without."""
    plain = _plain(text)
    return is_demo_turn(text) or plain in plain_turns() or _LEADS.sub("", plain) in plain_turns()


@dataclass(frozen=True, slots=True)
class Chatter:
    """Real questions and small talk from the shared data that calls are sprinkled with."""

    small_talk: Sequence[tuple[str, str]] = ()
    questions: Sequence[str] = ()


Move = Callable[[Call], None]


def generate_call(
    seed: int | str,
    noise: RecognizerNoise,
    chatter: Chatter,
    held_out: bool = False,
    kind: str | None = None,
    said: str | None = None,
) -> Call:
    """Make one call. kind: "place", "tools" or "home"; drawn when not given.

    said: the seed of what is said behind the prompt; None: `seed` is that of all.
    """
    for attempt in range(100):
        whole = f"{seed}/{attempt}"
        rng = random.Random(whole) if said is None else Draws(whole, f"{said}/{attempt}")
        call = _draw_call(rng, noise, chatter, held_out, kind)
        if not holds_held_out(call):
            return call
    raise RuntimeError(f"expected a call without held-out turns, found none for seed {seed}")


def holds_held_out(call: Call) -> bool:
    """Whether a place or a caller turn that training must not see stands in a call.

    An evaluation call may ask what the plain questions ask, of another place.
    """
    prompt = str(call.messages[0]["content"]).lower()
    said = [str(m["content"]) for m in call.messages if m["role"] == "user"]
    if any(place in prompt for place in _HELD_OUT_PLACES):
        return True
    return any(is_demo_turn(text) if call.held_out else is_held_out_turn(text) for text in said)


def _draw_call(
    rng: random.Random,
    noise: RecognizerNoise,
    chatter: Chatter,
    held_out: bool,
    kind: str | None,
) -> Call:
    style = rng.choices(("written", "recognized", "noisy"), weights=(30, 35, 35))[0]
    call = Call(rng, noise, None, style, held_out)
    kind = kind or rng.choices(("place", "tools", "home"), weights=(58, 34, 8))[0]
    if kind == "home":
        _home_call(call, chatter)
    elif kind == "tools":
        _tool_call(call, chatter)
    else:
        _place_call(call, chatter)
    return call


def greeting(call: Call, place: Business) -> None:
    """The agent speaks first in many calls."""
    if call.rng.random() < 0.5:
        call.agent(
            "(hello|hi|welcome|good day|thanks for calling|thank you for calling)(,|!) (this is "
            "{a} (at|from) {n}|{n}, {a} speaking|you've reached {n}|welcome to {n}|I'm {a}).( "
            "(How can I help( you|)|What can I (do for|get) you)( today|)?|)",
            a=place.agent,
            n=place.name,
        )
    elif call.rng.random() < 0.3:
        talk.greet(call)


def _place_call(call: Call, chatter: Chatter) -> None:
    rng = call.rng
    place = call.place = random_business(rng, call.held_out)
    call.begin(place.prompt)
    silent = "silent" in place.facts
    greeting(call, place)
    moves: list[tuple[Move, float]] = [
        (info.hours_of_day, 0 if silent else 12),
        (info.hours_in_general, 0 if silent else 2),
        (info.price, 0 if silent else 7),
        (info.price_of_it, 0 if silent else 3),
        (info.is_there, 0 if silent else 4),
        (info.menu, 0 if silent else 9),
        (info.fact, 5),
        (info.unknown_fact, 2),
        (info.identity, 3),
        (order.digits, 6),
        (order.recall_number, 1),
        (talk.repeat, 2),
        (talk.half_turn, 2.5),
        (talk.interrupted, 4),
        (talk.thanks, 2),
        (lambda c: talk.refuse(c, chatter.questions), 6),
        (lambda c: talk.small_talk(c, chatter.small_talk), 2.5),
    ]
    if place.sells_food and not silent:
        moves += [
            (order.order, 12),
            (order.more, 2.5),
            (order.correct, 7),
            (order.confirm, 7),
            (order.unavailable, 3),
            (order.cost_of_order, 2),
        ]
    if place.films:
        moves.append((info.ticket, 12))
    if not silent:
        moves.append((booking.booking, 4 if place.sells_food else 14))
    run_moves(call, moves, rng.choice((2, 3, 4, 5, 6, 7, 8, 9)))
    if rng.random() < 0.45:
        if rng.random() < 0.4:
            talk.thanks(call)
        talk.goodbye(call)


def _tool_call(call: Call, chatter: Chatter) -> None:
    rng = call.rng
    place = call.place = random_business(rng, call.held_out)
    while not place.sells_food:
        place = call.place = random_business(rng, call.held_out)
    desk = tools.ToolDesk(call)
    facts = [sentence for _, sentence, _, _ in place.facts.values() if sentence]
    place.facts.pop("silent", None)
    items = join(list(place.items))
    call.begin(
        " ".join(
            filter(
                None,
                (
                    expand(
                        rng,
                        "you are {a}, the voice of {n}.|you are {a}. you (answer the phone|"
                        "take calls) (for|at) {n}.|you are the (voice |)assistant {a} (at|of) "
                        "{n}.",
                        a=place.agent,
                        n=place.name,
                    ),
                    expand(rng, "(menu|we sell|we serve|on the menu): {i}.", i=items)
                    if rng.random() < 0.8
                    else "",
                    *facts,
                    tools.tool_instruction(rng),
                ),
            )
        )
    )
    greeting(call, place)
    run_moves(
        call,
        [
            (lambda _: desk.act(), 24),
            (info.fact if facts else info.identity, 3),
            (info.identity, 1),
            (talk.thanks, 2),
            (order.digits, 1),
            (talk.repeat, 1),
            (lambda c: talk.refuse(c, chatter.questions), 3),
            (lambda c: talk.small_talk(c, chatter.small_talk), 1),
            (talk.half_turn, 1),
        ],
        rng.choice((2, 2, 3, 3, 4, 5)),
    )
    if rng.random() < 0.4:
        talk.goodbye(call)


def _home_call(call: Call, chatter: Chatter) -> None:
    rng = call.rng
    prompt, states = booking.home_prompt(call)
    call.begin(prompt)
    run_moves(
        call,
        [
            (lambda c: booking.home_request(c, states), 20),
            (lambda c: booking.home_list(c, states), 3),
            (talk.thanks, 2),
            (talk.repeat, 1),
            (lambda c: talk.refuse(c, chatter.questions), 4),
            (lambda c: talk.small_talk(c, chatter.small_talk), 1),
            (talk.half_turn, 1),
        ],
        rng.choice((2, 3, 4, 5, 6)),
    )


def run_moves(call: Call, moves: Sequence[tuple[Move, float]], n_moves: int) -> None:
    """Draw moves by weight until enough were made or the call grows too long."""
    functions = [move for move, _ in moves]
    weights = [weight for _, weight in moves]
    for _ in range(n_moves):
        call.rng.choices(functions, weights=weights)[0](call)
        if sum(len(str(m["content"])) for m in call.messages) > 1500:
            break
    if (
        call.messages[-1]["role"] != "assistant"
        or call.pending_prefix
        or (len(call.messages) - 1 in call.unlearned)
    ):
        # An interruption needs what the caller said next.
        call.rng.choices(functions[:1])[0](call) if call.place is None else talk.thanks(call)
