"""The route that tries a rule's check on recorded answers."""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, cast

from metaclaw.api.home_routes import HomeRoutes
from metaclaw.api.router import ApiError, ApiRequest, RequestBody, route
from metaclaw.clock import utc_now
from metaclaw.domain.skill import Rule
from metaclaw.domain.verdict import Outcome
from metaclaw.learn import CheckTrial, TriedTurn
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


@dataclass(slots=True)
class _Count:
    """How many answers a check applied to, and how many of them broke it."""

    applied: int = 0
    broken: int = 0

    def add(self, one: TriedTurn) -> None:
        self.applied += 1
        self.broken += one.outcome is Outcome.FAIL


@dataclass(slots=True)
class _Tally:
    """What a check found in the turns that were read. `since` is the time of the oldest one."""

    read: int = 0
    unknown: int = 0
    since: datetime | None = None
    total: _Count = field(default_factory=_Count)
    groups: dict[str, defaultdict[str, _Count]] = field(
        default_factory=lambda: {name: defaultdict(_Count) for name in ("agent", "workspace")}
    )
    broken: list[TriedTurn] = field(default_factory=list)

    def add(self, one: TriedTurn) -> None:
        self.read += 1
        self.since = one.at
        if one.outcome is None:
            return
        self.unknown += one.outcome is Outcome.UNKNOWN
        self.total.add(one)
        for name, counts in self.groups.items():
            counts[getattr(one, name) or ""].add(one)
        if one.outcome is Outcome.FAIL and len(self.broken) < _MOST_SHOWN:
            self.broken.append(one)


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
            return _view(rule, days, *self._counted(rule, days, request.said.get("turns", _TURNS)))
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

    def _counted(self, rule: Rule, days: int, most: int) -> tuple[_Tally, str | None]:
        """What was found, and why older turns were not read, if so."""
        home, tally = self.home, _Tally()
        trial = CheckTrial(
            reader=home.reader, words=home.words, view=home.rulebook.library.view, teams=home.teams
        )
        until = time.monotonic() + _MOST_S
        for one in trial.turns(rule, utc_now() - timedelta(days=days)):
            if tally.read == most:
                return tally, f"only the newest {most} turns were read"
            tally.add(one)
            if time.monotonic() > until:
                return tally, f"only {tally.read} turns could be read in {_MOST_S:g} s"
        return tally, None


def _view(rule: Rule, days: int, tally: _Tally, stopped: str | None) -> dict[str, Any]:
    by_agent, by_project = (
        {
            name: {"applied": one.applied, "broken": one.broken}
            for name, one in sorted(counts.items(), key=lambda item: -item[1].broken)
        }
        for counts in tally.groups.values()
    )
    return {
        "rule": rule.name,
        "check": rule.check,
        "can_hold": can_hold(rule),
        "days": days,
        "since": tally.since and tally.since.isoformat(),
        "read": tally.read,
        "stopped": stopped,
        "applied": tally.total.applied,
        "broken": tally.total.broken,
        "unknown": tally.unknown,
        "by_agent": by_agent,
        "by_project": by_project,
        "turns": [
            {
                "turn": one.turn,
                "session": one.session,
                "at": one.at.isoformat(),
                "agent": one.agent,
                "workspace": one.workspace,
                "answer": one.answer[:_MOST_ANSWER_CHARS],
            }
            for one in tally.broken
        ],
    }
