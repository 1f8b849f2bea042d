"""The dashboard shows only metrics that exist."""

import json
import re
from pathlib import Path

from prometheus_client import Metric

from metaclaw.proxy import Metrics, NoAttendant

FILE = Path(__file__).resolve().parents[3] / "docs" / "dashboards" / "grafana.json"
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def test_every_metric_of_the_dashboard_exists() -> None:
    panels = json.loads(FILE.read_text())["panels"]
    asked = " ".join(target["expr"] for panel in panels for target in panel.get("targets", ()))
    own: list[Metric] = list(Metrics(NoAttendant()).collect())
    there = {one.name + suffix for one in own for suffix in SUFFIXES[one.type]}
    assert (
        set(re.findall(r"\bmetaclaw_\w+(?=\[|\{|\))", re.sub(r"by \([^)]*\)", "", asked))) <= there
    )

    exported = {
        "gen_ai.client.operation.duration": "_seconds",
        "gen_ai.client.operation.time_to_first_chunk": "_seconds",
        "gen_ai.client.token.usage": "",
    }
    named = {name.replace(".", "_") + unit for name, unit in exported.items()}
    found = set(re.findall(r"\b(gen_ai_client_\w+?)_(?:bucket|sum|count)\b", asked))
    assert found == named
