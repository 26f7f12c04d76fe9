"""What a gateway tells of itself to whoever started it: ``voiceloop gateway --json``."""

from __future__ import annotations

from voiceloop.cluster.control.reports import ProcessReport, ProcessState
from voiceloop.server.app import Gateway


def report_of(gateway: Gateway, url: str) -> ProcessReport:
    """How much of the gateway is used: of its places, and of the room that its load leaves."""
    most = gateway.config.limits.max_sessions
    used = max(
        gateway.n_sessions / most, gateway.n_talking / max(1, gateway.load_watch.room.n_calls)
    )
    trouble = gateway.not_ready()
    state: ProcessState = "ready" if trouble is None else "loading"
    return ProcessReport(
        "draining" if gateway.admission.is_draining else state,
        url,
        used=round(min(1.0, used), 3),
        n_streams=gateway.n_sessions,
        queue_age_s={one.name: round(one.oldest_s, 3) for one in gateway.workers() if one.oldest_s},
        trouble=trouble or "",
        canary=gateway.metrics.trial.report(),
    )
