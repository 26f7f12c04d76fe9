"""The use of the language model, its speed, and its cost.

Owns the counts of its tokens and times, sliced by who asked (a call, or a request over HTTP) and by
the length of the prompt, in labels of which there are few; and the cost of them at the operator's
prices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram

from voiceloop.backends import OWN_MODEL, Usage
from voiceloop.operation import MAIN_MODEL

Surface = Literal["call", "http"]

# A short agent's prompt, a long agent's, a long call's, a document: each twice to eight times the
# one before, so that what grows with the prompt shows.
PROMPT_BOUNDS = ((512, "up to 512"), (2048, "up to 2048"), (8192, "up to 8192"))
LONGER = "over 8192"
TTFT_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.8, 1.5, 3.0, 8.0)
TOKEN_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.05, 0.1, 0.25)
MILLION = 1e6


def prompt_bucket(n_tokens: int) -> str:
    """The label of a prompt's length."""
    return next((label for most, label in PROMPT_BOUNDS if n_tokens <= most), LONGER)


def counted_of(usage: Usage) -> dict[str, int]:
    """Return its tokens by kind."""
    n_cached = min(usage.n_cached_tokens, usage.n_prompt_tokens)
    return {
        "prompt_cached": n_cached,
        "prompt_computed": usage.n_prompt_tokens - n_cached,
        "read_ahead": usage.n_read_ahead_tokens,
        "reply": usage.n_reply_tokens + usage.n_unheard_tokens,
        "discarded": usage.n_discarded_tokens,
    }


class ModelUse:
    """The use of one server's language models. prices: by name, as `[prices]`; who has none costs
    nothing.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        prices: Mapping[str, Sequence[float]],
    ) -> None:
        self._prices = prices
        sliced = ["surface", "prompt"]
        self.ttft = Histogram(
            "voiceloop_ttft_seconds",
            "From the end of a prompt to the first token of the reply.",
            sliced,
            buckets=TTFT_BUCKETS,
            registry=registry,
        )
        self.queue = Histogram(
            "voiceloop_model_queue_seconds",
            "From the end of a prompt to the first step that served it.",
            sliced,
            buckets=TTFT_BUCKETS,
            registry=registry,
        )
        self.token = Histogram(
            "voiceloop_token_seconds",
            "Mean time of a token behind the first, of replies that were not begun ahead.",
            sliced,
            buckets=TOKEN_BUCKETS,
            registry=registry,
        )
        self.tokens = Counter(
            "voiceloop_model_tokens",
            "Tokens of the language model: prompt_cached, prompt_computed, read_ahead, reply, "
            "discarded.",
            ["surface", "kind"],
            registry=registry,
        )
        self.cost = Counter(
            "voiceloop_cost",
            "What the tokens cost at the prices of `[prices]`, by part.",
            ["part"],
            registry=registry,
        )

        self.model_cost = Counter(
            "voiceloop_model_cost",
            "What the tokens of each language model cost, where the server has several.",
            ["model"],
            registry=registry,
        )

    def observe(
        self, usage: Usage, surface: Surface, used: Mapping[str, Usage] | None = None
    ) -> None:
        """One reply, whatever became of it; what it did not report is not counted.

        used: the part of each model, where several had one.
        """
        labels = {"surface": surface, "prompt": prompt_bucket(usage.n_prompt_tokens)}
        if usage.ttft_ms > 0.0:
            self.ttft.labels(**labels).observe(usage.ttft_ms / 1000.0)
            self.queue.labels(**labels).observe(usage.queue_ms / 1000.0)
        if usage.token_ms > 0.0:
            self.token.labels(**labels).observe(usage.token_ms / 1000.0)
        for kind, n_tokens in counted_of(usage).items():
            self.tokens.labels(surface=surface, kind=kind).inc(n_tokens)
        for model, part in (used or {OWN_MODEL: usage}).items():
            self._charge(model, part)

    def _charge(self, model: str, usage: Usage) -> None:
        name = model or MAIN_MODEL
        prompt, cached, reply = self._prices.get(name, (0.0, 0.0, 0.0))
        of_million = {
            "prompt_cached": cached, "prompt_computed": prompt, "read_ahead": prompt,
            "reply": reply, "discarded": reply,
        }  # fmt: skip
        for kind, n_tokens in counted_of(usage).items():
            if price := of_million[kind]:
                self.cost.labels(part=kind).inc(n_tokens * price / MILLION)
                self.model_cost.labels(model=name).inc(n_tokens * price / MILLION)
