"""The route that tries a rule's check on recorded answers."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final, cast

from metaclaw.api.home_routes import HomeRoutes
from metaclaw.api.router import ApiError, ApiRequest, RequestBody, route
from metaclaw.clock import utc_now
from metaclaw.domain.skill import Rule
from metaclaw.domain.verdict import Outcome
from metaclaw.learn import TriedTurn, WhatIf
from metaclaw.skills import RuleFields, can_hold

_DAYS: Final = 30
_TURNS: Final = 1_000
_MOST_S: Final = 20.0
_MOST_SHOWN: Final = 20
_MOST_ANSWER_CHARS: Final = 300
_ASKED: Final = RequestBody(
    {
        "rule": {"type": "string", "description": "The name of a rule that is in force"},
        "check": {"type": "string", "description": "A check, in the place of the rule's own"},
        "text": {"type": "string", "description": "The text of a rule that is not in force"},
        "when": {"type": "string", "description": "The situation that it is for [always]"},
        "workspace": {"type": "string", "description": "The project that it is for [all]"},
        "days": {"type": "integer", "minimum": 1, "maximum": 3650},
        "turns": {"type": "integer", "minimum": 1, "maximum": 10_000},
    }
)
_CARRIED: Final = ("kind", "when", "scope", "workspace", "channel")
_running = threading.Lock()


@dataclass(frozen=True, slots=True)
class WhatIfRoutes:
    """Tries checks on what is recorded."""

    home: HomeRoutes

    @route(
        "POST",
        "/api/whatif",
        "How often a check would have held calls, or found a rule broken, in recorded answers",
        body=_ASKED,
    )
    def _try(self, request: ApiRequest) -> object:
        rule, days = self._rule(request.said), request.said.get("days", _DAYS)
        if not _running.acquire(blocking=False):
            raise ApiError("another check is being tried now; ask again in a moment", 429)
        try:
            return _view(rule, days, *self._tried(rule, days, request.said.get("turns", _TURNS)))
        finally:
            _running.release()

    def _rule(self, said: Mapping[str, Any]) -> Rule:
        """The rule to try: one in force, or a new one."""
        known = self.home.rulebook.rule(said["rule"]) if "rule" in said else None
        if known is not None and said.keys().isdisjoint(("check", "text", "when", "workspace")):
            return known
        carried = {name: getattr(known, name) for name in _CARRIED} if known is not None else {}
        text = "A rule that is not in force." if known is None else known.body
        given = {name: said[name] for name in said.keys() - {"rule", "days", "turns"}}
        return self.home.rulebook.draft(cast(RuleFields, {"text": text, **carried, **given}))

    def _tried(self, rule: Rule, days: int, most: int) -> tuple[list[TriedTurn], str | None]:
        """The turns that were read, and why older ones were not, if so."""
        home, tried = self.home, list[TriedTurn]()
        trial = WhatIf(
            reader=home.reader, words=home.words, view=home.rulebook.library.view, teams=home.teams
        )
        until = time.monotonic() + _MOST_S
        for one in trial.turns(rule, utc_now() - timedelta(days=days)):
            if len(tried) == most:
                return tried, f"only the newest {most} turns were read"
            tried.append(replace(one, answer=one.answer[:_MOST_ANSWER_CHARS]))
            if time.monotonic() > until:
                return tried, f"only {len(tried)} turns could be read in {_MOST_S:g} s"
        return tried, None


def _view(rule: Rule, days: int, tried: list[TriedTurn], stopped: str | None) -> dict[str, Any]:
    applied = [one for one in tried if one.outcome is not None]
    broken = [one for one in applied if one.outcome is Outcome.FAIL]

    def counted(name: str) -> dict[str, dict[str, int]]:
        """The counts by this field, where most was broken first."""
        total, bad = (
            Counter(getattr(one, name) or "" for one in some) for some in (applied, broken)
        )
        order = sorted(total, key=lambda key: (-bad[key], key))
        return {key: {"applied": total[key], "broken": bad[key]} for key in order}

    return {
        "rule": rule.name,
        "check": rule.check,
        "can_hold": can_hold(rule),
        "days": days,
        "since": tried[-1].at.isoformat() if tried else None,
        "read": len(tried),
        "stopped": stopped,
        "applied": len(applied),
        "broken": len(broken),
        "unknown": sum(one.outcome is Outcome.UNKNOWN for one in applied),
        "by_agent": counted("agent"),
        "by_project": counted("workspace"),
        "turns": [{**asdict(one), "at": one.at.isoformat()} for one in broken[:_MOST_SHOWN]],
    }
