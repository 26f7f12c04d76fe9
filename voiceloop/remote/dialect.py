"""What a chat service takes beyond OpenAI's fields: how urgent a request is, and whose it is.

vLLM, SGLang and llama.cpp's server name themselves as the owner of the models they list. vLLM
serves the lowest ``priority`` first and takes 0 where there is none; SGLang serves the highest
first, and a request without one last of all. Both read it only where they were started with
priority scheduling (MODELS.md has the options). ``cache_salt`` keeps the prompts of different
tenants apart in the prefix cache of either. Nobody else is sent a field it may refuse.

Sources: vLLM, "OpenAI-Compatible Server" and "Automatic Prefix Caching"; SGLang, "Server
Arguments" (--enable-priority-scheduling, --priority-scheduling-preemption-threshold).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Literal

from voiceloop.errors import BackendRefused

log = logging.getLogger(__name__)

PriorityOrder = Literal["auto", "low_first", "high_first", "none"]
SALTED = ("vllm", "sglang")


class Urgency(IntEnum):
    """The order of service; SGLang preempts what runs only where the distance is above ten."""

    COMMITTED = 0
    STAGED = 100
    PREEMPTIVE = 200
    BATCH = 300


class Dialect:
    """Of one service. ``owner``: what it lists as its models' owner; "" where it lists none.

    ``salt_of``: what a tenant is called there, by which nobody can tell whose key it is.
    """

    def __init__(
        self,
        owner: str = "",
        order: PriorityOrder = "auto",
        salt_of: Callable[[str], str] = lambda tenant: tenant,
    ) -> None:
        known: dict[str, PriorityOrder] = {"vllm": "low_first", "sglang": "high_first"}
        self._order = known.get(owner, "none") if order == "auto" else order
        self._is_salted = owner in SALTED
        self._salt_of = salt_of

    def fields(self, urgency: Urgency, tenant: str) -> dict[str, Any]:
        """To be added to the body of a request."""
        fields: dict[str, Any] = {}
        match self._order:
            case "low_first" if urgency:
                fields["priority"] = int(urgency)
            case "high_first":
                fields["priority"] = -int(urgency)
        if tenant and self._is_salted:
            fields["cache_salt"] = self._salt_of(tenant)
        return fields

    def gives_way(self, refusal: BackendRefused) -> bool:
        """Whether the request was refused for its priority; none carries one from then on.

        vLLM does so where it was started without priority scheduling.
        """
        if self._order == "none" or "priority" not in refusal.message.lower():
            return False
        log.info("requests carry no priority from now on: %s", refusal)
        self._order = "none"
        return True
