"""What the published runner, whose agent is OpenClaw, wants to find beside a benchmark: settings,
and what each day begins with.
"""

import datetime
import hashlib
import json
from collections.abc import Mapping

from metaclaw_bench.questions import Day

_PROVIDER = "metaclaw"
_MODEL = "${BENCHMARK_MODEL}"
_CONTEXT_TOKENS = 50_000


def config_of(base_url: str, agent: str) -> str:
    """OpenClaw's settings: one provider, one agent, no sandbox. The runner fills in what stands in
    braces.
    """
    model = {
        "id": _MODEL,
        "name": _MODEL,
        "input": ["text"],
        "contextWindow": _CONTEXT_TOKENS,
        "maxTokens": _CONTEXT_TOKENS,
    }
    provider = {
        "baseUrl": base_url,
        "apiKey": "${BENCHMARK_API_KEY}",
        "api": "openai-completions",
        "models": [model],
    }
    config = {
        "models": {"mode": "replace", "providers": {_PROVIDER: provider}},
        "agents": {
            "defaults": {"model": {"primary": f"{_PROVIDER}/{_MODEL}"}, "sandbox": {"mode": "off"}},
            "list": [{"id": agent, "default": True}],
        },
    }
    return json.dumps(config, indent=1) + "\n"


def transcript_of(day: Day, date: datetime.date) -> str:
    """The transcript that a day's session begins with: four lines about it, then what has been
    said.
    """
    start = datetime.datetime(date.year, date.month, date.day, 1, tzinfo=datetime.UTC)
    lines: list[Mapping[str, object]] = [
        {"type": "session", "version": 3, "id": day.session, "timestamp": _stamp(start)}
    ]
    parent: str | None = None
    for nth, (kind, more) in enumerate(_entries(day, start)):
        name = hashlib.sha256(f"{day.session}:{nth}".encode()).hexdigest()[:8]
        moment = start + datetime.timedelta(seconds=nth + 1)
        lines.append(
            {"type": kind, "id": name, "parentId": parent, "timestamp": _stamp(moment), **more}
        )
        parent = name
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _entries(day: Day, start: datetime.datetime) -> list[tuple[str, Mapping[str, object]]]:
    millis = int(start.timestamp() * 1000)
    snapshot = {
        "timestamp": millis,
        "provider": _PROVIDER,
        "modelApi": "openai-completions",
        "modelId": "model",
    }
    said = [
        (
            "message",
            {
                "message": {
                    "role": turn.role,
                    "content": [{"type": "text", "text": turn.text}],
                    "timestamp": millis,
                }
            },
        )
        for turn in day.opening
    ]
    return [
        ("model_change", {"provider": _PROVIDER, "modelId": "model"}),
        ("thinking_level_change", {"thinkingLevel": "low"}),
        ("custom", {"customType": "model-snapshot", "data": snapshot}),
        *said,
    ]


def _stamp(moment: datetime.datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
