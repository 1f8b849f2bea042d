"""The values of charts and tables: use of providers, tokens by day, the reward curve, windows of the week."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final

from metaclaw.api.web.formats import moment, quantile
from metaclaw.domain.turn import TurnEnd
from metaclaw.store import ProviderCall

DAYS: Final = 14
"""How many days the page about cost shows."""


def provider_use(calls: Sequence[ProviderCall]) -> list[dict[str, Any]]:
    """Answers, errors and latency by provider."""
    groups: dict[str, list[ProviderCall]] = {}
    for one in calls:
        groups.setdefault(one.provider, []).append(one)
    found: list[dict[str, Any]] = []
    for name, group in groups.items():
        failed = [one for one in group if one.end is TurnEnd.FAILED]
        answered = [one for one in group if one.end is TurnEnd.COMPLETED]
        firsts = [one.first_byte_s for one in answered if one.first_byte_s is not None]
        found.append(
            {
                "name": name,
                "answers": len(group),
                "errors": len(failed),
                "last_error": failed[0].error if failed else None,
                "first_s": quantile(firsts, 0.5),
                "median_s": quantile([one.duration_s for one in answered], 0.5),
                "slow_s": quantile([one.duration_s for one in answered], 0.95),
                "used_models": sorted({one.model for one in group})[:6],
            }
        )
    return found


def cost_bars(days: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tokens of each day as bars for a chart, oldest first, days without any included; heights are percents of the highest."""
    if not days:
        return []
    today = date.fromisoformat(max((str(one["day"]) for one in days), default=date.today().isoformat()))
    known = {str(one["day"]): one for one in days}
    wanted = [(today - timedelta(days=back)).isoformat() for back in reversed(range(DAYS))]
    sums = [(day, _tokens(known.get(day), "learning"), _tokens(known.get(day), "traffic")) for day in wanted]
    most = max((own + agents for _, own, agents in sums), default=0) or 1
    return [
        {"day": day, "own": own, "agents": agents, "own_h": 100 * own / most, "agents_h": 100 * agents / most}
        for day, own, agents in sums
    ]


def _tokens(day: Mapping[str, Any] | None, purpose: str) -> int:
    return 0 if day is None else int(day[purpose]["input_tokens"] + day[purpose]["output_tokens"])


def curve_points(rewards: Sequence[float], width: float = 600.0, height: float = 120.0) -> str:
    """The points of a polyline through the rewards; empty where there are fewer than two."""
    if len(rewards) < 2:
        return ""
    low, high = min(0.0, *rewards), max(1.0, *rewards)
    step = width / (len(rewards) - 1)
    return " ".join(f"{at * step:.1f},{height - height * (one - low) / (high - low):.1f}" for at, one in enumerate(rewards))


def week_of(events: Sequence[tuple[datetime, str, Mapping[str, Any]]], now: datetime) -> list[dict[str, Any]]:
    """The windows of the last seven days: for each day the open stretches as percents of the day, and why they ended."""
    stretches: list[tuple[datetime, datetime, str]] = []
    for at, kind, told in events:
        opened = moment(told.get("opened"))
        if kind == "window.shut" and opened is not None:
            stretches.append((opened, at.astimezone(), str(told.get("why") or "")))
    days: list[dict[str, Any]] = []
    for back in range(7):
        begin = (now.astimezone() - timedelta(days=back)).replace(hour=0, minute=0, second=0, microsecond=0)
        end = begin + timedelta(days=1)
        mine = [(max(begin, one[0]), min(end, one[1]), one[2]) for one in stretches if one[0] < end and one[1] > begin]
        days.append(
            {
                "day": begin,
                "windows": [
                    {
                        "from": since,
                        "to": until,
                        "why": why,
                        "x": 100 * (since - begin).total_seconds() / 86_400,
                        "w": max(0.4, 100 * (until - since).total_seconds() / 86_400),
                    }
                    for since, until, why in reversed(mine)
                ],
            }
        )
    return days
