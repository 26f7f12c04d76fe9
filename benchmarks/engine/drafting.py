"""What speculative decoding gains as it is served: the drafters of `voiceloop serve` beside none.

A variant's figure is all of its time over all of its tokens, so that replies in which a try lost
count in full. Replies are the same with drafters and without; only the time is not. A caller's
words are staged before they are committed, as in a call, and drafters read them then. Two and four
callers who are answered at once are told of beside the bars.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from benchmarks.engine.models import embedded_model
from benchmarks.engine.setting import N_REPLY, Setting, drain, stage_words
from benchmarks.harness.harness import Bar, interleaved
from engine.drafting.speculation import Speculation
from engine.engine import Engine
from engine.reply import Reply
from engine.sequence import Sequence
from engine.types import Done, SamplingParams

# What the caller ordered, so that the answer repeats it: a read-back, or a tool's arguments.
ORDERS = (
    "two large cappuccinos with oat milk and a blueberry muffin",
    "three small lattes, one of them decaf, and an almond croissant",
    "a pot of earl grey tea, a cheese scone and a slice of carrot cake",
    "four espressos, two orange juices and a ham and cheese toastie",
    "an iced americano with vanilla syrup and a chocolate brownie",
    "one hot chocolate with whipped cream and two cinnamon rolls",
)
READ_BACK = "You take orders by phone. Read every order back word for word before anything else."
ARGUMENTS = {
    "type": "object",
    "properties": {
        "order": {"type": "string", "maxLength": 120},
        "pickup_or_delivery": {"enum": ["pickup", "delivery"]},
        "number_of_guests": {"type": "integer"},
    },
    "required": ["order", "pickup_or_delivery", "number_of_guests"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
TOOLS = json.dumps([{"name": "place_order", "parameters": ARGUMENTS}])
LONGEST_CALL = 96  # tokens of a tool call

Asked = tuple[list[int], SamplingParams]


class AlwaysWrong:
    """The worst drafter: as many guesses as it may make, and none of them stands."""

    name = "an always wrong one"

    def propose(self, branch_id: str, target: Sequence, reply: Reply, n_most: int) -> list[int]:
        return [0] * n_most  # a control token, which no reply says

    def stage(self, branch_id: str, target: Sequence) -> bool:
        return False

    def forget(self, branch_id: str, committed: list[int]) -> None:
        pass


def drafting(setting: Setting) -> list[Bar]:
    """Replies of calls, then read-backs and tool calls: tokens a second with drafters over none."""
    engines = _engines(setting)
    calls = _ms_per_token(setting, engines, _call, "calls")
    repeated = _ms_per_token(setting, engines, _repetition, "read-backs and tool calls")
    both = {name: engines[name] for name in ("off", "as served")}
    for n_together in (2, 4):
        for ask, name in ((_call, "calls"), (_repetition, "read-backs and tool calls")):
            _ms_per_token(setting, both, ask, f"{n_together} at once, {name}", n_together)
    worst = max(calls["wrong"] / calls["off"], repeated["wrong"] / repeated["off"])
    gains = [ms["off"] / ms["as served"] for ms in (calls, repeated)]
    return [
        Bar("speculation on over off, tokens/s: replies of calls", gains[0], 1.25, "x", True),
        Bar("the same: read-backs and tool calls", gains[1], 1.5, "x", True),
        Bar("ms/token with a drafter that always errs over none", worst, 1.02, "x"),
    ]


def _engines(setting: Setting) -> dict[str, Engine]:
    is_embedded = setting.model_dir == embedded_model()
    served = {"ngram_draft": True, "draft_dir": embedded_model("draft") if is_embedded else None}
    engines = {
        "off": setting.engine(max_draft_tokens=0),
        "as served": setting.engine(**served),
        "wrong": setting.engine(),
    }
    wrong = engines["wrong"]
    wrong.speculation = Speculation([AlwaysWrong()], wrong.config.max_draft_tokens, wrong.clock)
    return engines


def _call(setting: Setting, engine: Engine, index: int) -> Asked:
    params = SamplingParams(max_tokens=2 * N_REPLY, ignore_eos=not setting.is_trained)
    return setting.question(engine, index), params


def _repetition(setting: Setting, engine: Engine, index: int) -> Asked:
    """In turn an order to read back and one to pass to a tool: its arguments, at the least."""
    order = ORDERS[index // 2 % len(ORDERS)]
    messages = [
        {"role": "system", "content": READ_BACK},
        {"role": "user", "content": f"i would like {order} please"},
    ]
    prompt = engine.text.encode_chat(messages, add_generation_prompt=True)
    if index % 2 and engine.notation is not None:
        return prompt, SamplingParams(max_tokens=LONGEST_CALL, forced_tools=TOOLS)
    if index % 2:  # its template knows no calls
        return prompt, SamplingParams(max_tokens=LONGEST_CALL, json_schema=json.dumps(ARGUMENTS))
    return prompt, SamplingParams(max_tokens=2 * N_REPLY, ignore_eos=not setting.is_trained)


def _ms_per_token(
    setting: Setting,
    engines: Mapping[str, Engine],
    ask: Callable[[Setting, Engine, int], Asked],
    name: str,
    n_together: int = 1,
) -> dict[str, float]:
    """By variant, of the tokens after the first; of several replies at once the last one's."""
    decode_ms, n_tokens = dict.fromkeys(engines, 0.0), dict.fromkeys(engines, 0)
    guessed, stood = dict.fromkeys(engines, 0), dict.fromkeys(engines, 0)
    for turn in interleaved(list(engines), 4 * setting.repeats, warm_up=1):
        engine = engines[turn.variant]
        asked = [ask(setting, engine, n_together * turn.index + i) for i in range(n_together)]
        branches = [engine.branch(f"b{turn.index}{turn.is_warm_up}-{i}") for i in range(n_together)]
        for branch, (prompt, _) in zip(branches, asked, strict=True):
            stage_words(engine, branch, prompt)
        for branch, (prompt, params) in zip(branches, asked, strict=True):
            branch.commit(prompt, params)
        done = [event for event in drain(engine) if isinstance(event, Done)]
        for branch in branches:
            branch.close()
        if not turn.is_warm_up:
            decode_ms[turn.variant] += max(one.timings.total_ms for one in done)
            decode_ms[turn.variant] -= max(one.timings.ttft_ms for one in done)
            n_tokens[turn.variant] += sum(one.usage.output_tokens - 1 for one in done)
            guessed[turn.variant] += sum(one.usage.guessed_tokens for one in done)
            stood[turn.variant] += sum(one.usage.confirmed_tokens for one in done)
    ms = {variant: decode_ms[variant] / max(1, n_tokens[variant]) for variant in engines}
    for variant in engines:
        setting.tell(
            f"{name}, {variant}: {ms[variant]:.2f} ms/token, "
            f"{stood[variant]} of {guessed[variant]} guesses stood"
        )
    return ms
