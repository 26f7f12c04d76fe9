"""The dashboard and the page of operations name all the metrics of the server and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.core import Metric

from tests.tables import each_row
from voiceloop.agent import AgentConfig
from voiceloop.config import Config
from voiceloop.server.app import Gateway
from voiceloop.telemetry.worker_load import SERVED

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = json.loads((ROOT / "voiceloop/deploy/grafana.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "voiceloop/docs/OPERATIONS.md").read_text(encoding="utf-8")
# Of every family that counts or measures, what a query may ask for.
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
WORDS = {"sum", "min", "max", "rate", "increase", "by", "le", "histogram_quantile", "ignoring"}
WORDS |= {"group_left", "job"}  # `job` is Prometheus' own label


def families() -> list[Metric]:
    """Of a server as it starts; nothing has been counted, so only names and labels are there."""
    gateway = Gateway(Config(), AgentConfig())
    return list(gateway.metrics.registry.collect())


def labels_of(gateway: Gateway) -> set[str]:
    # Of what workers tell, and of a canary, which a scrape makes anew.
    found = {"worker", "cause", "kind", "state", "variant", "measure", "bound", *SERVED}
    for value in (*vars(gateway.metrics).values(), *vars(gateway.metrics.model).values()):
        found.update(getattr(value, "_labelnames", ()))
    return found


def queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


@each_row("query", queries())
def test_a_query_asks_for_metrics_and_labels_that_there_are(query: str) -> None:
    known = {f.name + suffix for f in families() for suffix in SUFFIXES.get(f.type, ())}
    asked = re.findall(r"(?:voiceloop|process)_\w+", query)
    assert asked and set(asked) <= known, set(asked) - known
    rest = re.sub(r"(?:voiceloop|process)_\w+|\"[^\"]*\"|\[[^\]]*\]", " ", query)
    labels = set(re.findall(r"[a-z_]+", rest)) - WORDS
    assert labels <= labels_of(Gateway(Config(), AgentConfig())), labels


def test_the_dashboard_shows_every_metric() -> None:
    shown = set(re.findall(r"(?:voiceloop)_\w+", " ".join(queries())))
    shown = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in shown}
    ours = {family.name for family in families() if family.name.startswith("voiceloop_")}
    assert shown == ours


def test_the_page_explains_every_metric_and_no_other() -> None:
    explained = set(re.findall(r"^\| `(voiceloop_\w+)[`{]", PAGE, re.MULTILINE))
    counted = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in families()
        if family.name.startswith("voiceloop_")
    }
    assert explained == counted


def test_every_panel_has_a_place_of_its_own_a_unit_and_a_sentence() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
