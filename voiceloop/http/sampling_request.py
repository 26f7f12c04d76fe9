"""The sampling fields that the chat and the completions API share, read strictly. Pure.

What the engine cannot do is refused by name rather than ignored: an answer that only looks as
asked for would be worse than none. Fields that change nothing of the answer (``user``,
``metadata``, ``store``) are accepted. ``top_k``, ``ignore_eos`` and ``min_tokens`` are no fields of
OpenAI's but of the field's benchmark clients.
"""

from __future__ import annotations

import secrets
from typing import Any

from voiceloop.errors import InvalidRequest, expected
from voiceloop.realtime.settings import Json

MAX_REPLY_TOKENS = 4096
MAX_STOPS = 4
MAX_CHOICES = 8
MAX_LOGPROBS = 20
# Field -> the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "logit_bias": (None, {}),
    "repetition_penalty": (None, 1),
}


def refuse(raw: Json, unsupported: dict[str, tuple[Any, ...]]) -> None:
    """Raises: InvalidRequest where a field asks for what there is not."""
    for field, nothing in unsupported.items():
        if raw.get(field) not in nothing:
            raise InvalidRequest(
                f"{field}: expected nothing, for this server cannot do it, found a value",
                param=field,
                code="unsupported_parameter",
            )


def read_sampling(raw: Json, limit: int) -> dict[str, Any]:
    """Fields of ``GenerateParams``; ``limit`` is the most tokens. Raises: InvalidRequest."""
    refuse(raw, _UNSUPPORTED)
    seed = raw.get("seed")
    ignores_eos = flag(raw.get("ignore_eos"), "ignore_eos")
    if not ignores_eos and raw.get("min_tokens") not in (None, 0):
        raise expected("min_tokens", "0, or ignore_eos with it", raw["min_tokens"])
    temperature = number(raw.get("temperature"), "temperature", 0.0, 2.0, 1.0)
    top_p = number(raw.get("top_p"), "top_p", 0.0, 1.0, 1.0)
    return {
        "max_tokens": limit,
        # The likeliest token alone is what a top_p of 0 leaves.
        "temperature": temperature if top_p > 0 else 0.0,
        "top_p": top_p or 1.0,
        "top_k": 0 if raw.get("top_k") in (None, -1) else whole(raw["top_k"], "top_k", 0, 2**31),
        # Without a seed two answers may differ, as at the API that clients know.
        "seed": secrets.randbits(31) if seed is None else whole(seed, "seed", -(2**63), 2**63 - 1),
        "stop": read_stop(raw.get("stop")),
        "presence_penalty": number(raw.get("presence_penalty"), "presence_penalty", -2, 2, 0),
        "frequency_penalty": number(raw.get("frequency_penalty"), "frequency_penalty", -2, 2, 0),
        "ignore_eos": ignores_eos,
        "is_batch": True,
    }


def read_n(raw: Json) -> int:
    """How many choices."""
    return 1 if raw.get("n") is None else whole(raw["n"], "n", 1, MAX_CHOICES)


def read_usage_option(raw: Json) -> bool:
    """``stream_options.include_usage``."""
    options = raw.get("stream_options") or {}
    if not isinstance(options, dict):
        raise expected("stream_options", "an object", options)
    return flag(options.get("include_usage"), "stream_options.include_usage")


def read_stop(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise expected("stop", f"a string or at most {MAX_STOPS} of them", value)
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise expected("stop", "strings that are not empty", stop)
    return tuple(stops)


def text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise expected(where, "a string", value)
    return value


def flag(value: Any, where: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise expected(where, "true or false", value)
    return bool(value)


def whole(value: Any, where: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise expected(where, f"a whole number from {low} to {high}", value)
    return value


def number(value: Any, where: str, low: float, high: float, default: float) -> float:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise expected(where, f"a number from {low:g} to {high:g}", value)
    return float(value)
