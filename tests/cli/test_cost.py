"""`metaclaw cost`: the day's budget, then days and purposes in tables."""

import json
from pathlib import Path
from typing import Any

from tests.cli.program import metaclaw
from tests.cli.scripted import scripted

SUM = {"turns": 0, "failures": 0, "estimated": 0, "cached_tokens": 0, "unpriced_tokens": 0}
FACTS: dict[str, Any] = {
    "budget": {
        "day": "2026-11-16",
        "limit": 300_000,
        "used": 300_000,
        "left": 0,
        "limit_cost": None,
        "used_cost": 0.0,
        "left_cost": None,
        "resets_at": "2026-11-17T00:00:00+01:00",
        "waiting": [{"purpose": "evolve", "count": 2}],
        "words": ["300,000 of 300,000 tokens used today (100%)", "learning waits: evolve (2)"],
    },
    "prices_as_of": "2025-11",
    "days": [
        {
            "day": "2026-11-16",
            "learning": {
                **SUM,
                "calls": 31,
                "input_tokens": 290_000,
                "output_tokens": 10_000,
                "cost": 1.5,
                "unpriced_tokens": 9,
            },
            "traffic": {
                **SUM,
                "turns": 85,
                "calls": 85,
                "input_tokens": 2_900_000,
                "output_tokens": 100_000,
                "cost": None,
            },
            "enforcement": {**SUM, "calls": 0, "input_tokens": 0, "output_tokens": 0, "cost": 0},
        }
    ],
    "calls": [
        {
            "day": "2026-11-16",
            "purpose": "judge",
            "model": "world/\x1b[1m",
            **SUM,
            "calls": 31,
            "input_tokens": 290_000,
        }
        | {"output_tokens": 10_000, "cost": None}
    ],
}


def test_what_learning_cost_is_shown_by_day_and_purpose(home: Path) -> None:
    with scripted(home, {"GET /api/cost?days=3": (200, FACTS)}):
        out = metaclaw("cost", "--days", "3").out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "300,000 of 300,000 tokens used today (100%)"
    assert lines[1] == "Learning waits: evolve (2)"
    assert "2026-11-16 31 300,000 $1.50 + unpriced – 85 3,000,000 10%" in lines
    assert "2026-11-16 judge world/\\x1b[1m 31 0 290,000 0 10,000 unpriced" in lines
    assert "Built-in prices are of 2025-11" in lines[-1]


def test_programs_get_the_same_as_json(home: Path) -> None:
    with scripted(home, {"GET /api/cost?days=7": (200, FACTS)}):
        assert json.loads(metaclaw("cost", "--json").out) == FACTS


def test_a_home_where_nothing_happened_says_so(home: Path) -> None:
    budget = {**FACTS["budget"], "words": ["0 of 300,000 tokens used today (0%)"]}
    with scripted(
        home,
        {"GET /api/cost?days=7": (200, {"budget": budget, "days": [], "calls": []})},
    ):
        out = metaclaw("cost").out
    assert "0 of 300,000 tokens used today (0%)" in out
    assert "No tokens were used and no turn was served" in out
