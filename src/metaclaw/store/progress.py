"""Sums by local day for the page Progress: answers of providers, results of rules, and failures that
came again or were prevented.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from itertools import pairwise
from time import localtime

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Table,
    case,
    cast,
    exists,
    func,
    or_,
    select,
    true,
    type_coerce,
)

from metaclaw.domain.compliance import RuleResult
from metaclaw.domain.ids import SkillName
from metaclaw.domain.status import SERVED
from metaclaw.domain.turn import TurnEnd
from metaclaw.store.database import Database, Queries
from metaclaw.store.dialects import committed
from metaclaw.store.episodes import AVOIDED, FAILED
from metaclaw.store.schema import (
    episodes,
    forgotten,
    rule_counts,
    rule_results,
    sessions,
    spending,
    turns,
)

_DAY_US = 86_400_000_000
_WIDTH = 100_000
"""More than there are classes of durations."""
_MOST_COUNTED = 16
_LATE = timedelta(days=1)
"""A turn is recorded at most so long after its request."""


@dataclass(frozen=True, slots=True)
class ProgressFilter:
    """What is counted; empty is everything. `project` and `person` are those of the session."""

    agent: str = ""
    model: str = ""
    project: str = ""
    person: str = ""


@dataclass(frozen=True, slots=True)
class DayOfAnswers:
    """Answers of a provider on one day that took about as long. None: they failed."""

    day: date
    provider: str
    seconds: float | None
    times: int
    tokens: int


@dataclass(frozen=True, slots=True)
class DayOfRule:
    """How often a rule, with this text and check, had this result with an agent on one day."""

    day: date
    rule: SkillName
    hash: str
    agent: str
    result: RuleResult
    times: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """A failure that had come in an earlier session, or would have: its lesson prevented it."""

    at: datetime
    signature: str
    is_prevented: bool


@dataclass(frozen=True, slots=True)
class FilterChoices:
    """The values that a filter may have."""

    agents: Sequence[str]
    models: Sequence[str]
    projects: Sequence[str]
    people: Sequence[str]


@dataclass(slots=True)
class _Counted:
    """Sums of the answers up to a turn, so that only new ones are read: counting 100,000 takes too
    long to be done for each look.
    """

    upto: int
    sums: dict[tuple[int, str], list[int]] = field(default_factory=dict)


class SqlProgress(Queries):
    """Reads sums by day, from a day on. Raises StoreError. For a `user` others' turns are left out."""

    def __init__(self, database: Database, *, user: str | None = None) -> None:
        super().__init__(database, user=user)
        self._lock = threading.Lock()
        self._counted: dict[tuple[object, ...], _Counted] = {}

    def answers(self, since: date, wanted: ProgressFilter) -> list[DayOfAnswers]:
        """The answers by day, provider and duration, which is exact to 1 ms below 0.2 s, to
        0.05 s below 2 s, to 0.25 s below 20 s, and to 2 s beyond. Cancelled answers are left out.
        """
        day, began = _day_of(turns.c.received_us, since, self._clock()), _midnight(since)
        number = (day * _WIDTH + _duration_class()).label("number")
        query = (
            select(number, turns.c.provider, func.count(), func.sum(_TOKENS))
            .where(
                turns.c.received_us >= began,
                turns.c.outcome != TurnEnd.CANCELLED,
                self._of_user(turns),
                *_of_session(turns, wanted),
                *_equal(turns.c.agent, wanted.agent),
                *_equal(turns.c.model, wanted.model),
            )
            .group_by(number, turns.c.provider)
        )
        newest = select(func.max(turns.c.seq)).where(committed(self._database.kind, turns))
        deleted = select(func.count()).select_from(forgotten), select(func.min(turns.c.seq))
        with self._lock, self._database.reading("counting answers") as connection:
            key = (since, wanted, *map(connection.scalar, deleted))
            if key not in self._counted:
                if len(self._counted) >= _MOST_COUNTED:
                    self._counted.clear()
                self._counted[key] = _Counted(_first_since(connection, began - _LATE) - 1)
            counted = self._counted[key]
            upto = connection.scalar(newest) or 0
            for row in connection.execute(
                query.where(turns.c.seq > counted.upto, turns.c.seq <= upto)
            ):
                sums = counted.sums.setdefault((row[0], row[1]), [0, 0])
                sums[0] += row[2]
                sums[1] += int(row[3])
            counted.upto = max(upto, counted.upto)
            return [
                DayOfAnswers(
                    _EPOCH + timedelta(days=number // _WIDTH),
                    provider,
                    _seconds(number % _WIDTH),
                    *sums,
                )
                for (number, provider), sums in counted.sums.items()
            ]

    def rules(self, since: date, wanted: ProgressFilter) -> list[DayOfRule]:
        """The results of rules by day, rule and agent."""
        key = rule_counts.c["day", "rule", "hash", "agent", "result"]
        query = select(*key, func.sum(rule_counts.c.times))
        if wanted.project or wanted.person or self._user is not None:
            query = select(*key, func.count()).select_from(rule_counts)
            query = query.join(rule_results).join(turns, turns.c.seq == rule_results.c.turn)
            query = query.where(self._of_user(turns), *_of_session(turns, wanted))
        query = query.where(
            rule_counts.c.day >= since.isoformat(),
            rule_counts.c.times > 0,
            *_equal(rule_counts.c.agent, wanted.agent),
            *_equal(rule_counts.c.model, wanted.model),
        )
        return self._database.read(
            "counting results of rules",
            query.group_by(*key),
            lambda row: DayOfRule(
                date.fromisoformat(row[0]), row[1], row[2], row[3], row[4], int(row[5])
            ),
        )

    def repeats(self, since: date, wanted: ProgressFilter) -> list[Repeat]:
        """The failures that came again, and those that were prevented."""
        earlier, same = episodes.alias("earlier"), episodes.c["user_id", "workspace_id"]
        came_before = exists().where(
            earlier.c.signature == episodes.c.signature,
            earlier.c.seq < episodes.c.seq,
            earlier.c.outcome == FAILED,
            earlier.c.session != episodes.c.session,
            *(column.is_not_distinct_from(earlier.c[column.name]) for column in same),
        )
        of_model = exists().where(
            turns.c.session == episodes.c.session, *_equal(turns.c.model, wanted.model)
        )
        is_prevented = episodes.c.outcome == AVOIDED
        query = (
            select(*episodes.c["at_us", "signature"], is_prevented)
            .join(sessions)
            .where(
                episodes.c.at_us >= _midnight(since),
                or_(is_prevented, came_before),
                self._of_user(episodes),
                of_model if wanted.model else true(),
                *_of_session(episodes, wanted),
                *_equal(sessions.c.agent, wanted.agent),
            )
            .order_by(episodes.c.seq)
        )
        return self._database.records("counting failures", query, Repeat)

    def choices(self) -> FilterChoices:
        """Agents, projects and people of sessions; the models of all turns, which are no user's."""
        columns = sessions.c["agent", "workspace_id", "user_id"]
        query = select(*columns).where(self._of_user(sessions)).distinct()
        models = select(spending.c.model).where(spending.c.purpose == SERVED).distinct()
        named = [] if self._user else self._database.records("listing models", models, str)
        rows = self._database.rows("listing sessions", query)
        agents, projects, people = (sorted({row[at] for row in rows if row[at]}) for at in range(3))
        return FilterChoices(
            agents, sorted({name.partition("/")[2] for name in named}), projects, people
        )


_EPOCH = date(1970, 1, 1)
_TOKENS = func.coalesce(turns.c.input_tokens, 0) + func.coalesce(turns.c.output_tokens, 0)


def _equal(column: ColumnElement[str], value: str) -> list[ColumnElement[bool]]:
    return [column == value] if value else []


def _of_session(table: Table, wanted: ProgressFilter) -> list[ColumnElement[bool]]:
    project, person = table.c["workspace_id"], table.c["user_id"]
    return [*_equal(project, wanted.project), *_equal(person, wanted.person)]


def _midnight(day: date) -> datetime:
    """The instant at which a local day begins."""
    return datetime.combine(day, time()).astimezone()


def _day_of(column: ColumnElement[datetime], since: date, now: datetime) -> ColumnElement[int]:
    """The local day of an instant, as a number of days since 1970."""
    at, began = type_coerce(column, BigInteger), int(_midnight(since).timestamp())
    changes: list[tuple[int, int]] = []  # of the clocks: from when on, and seconds east of UTC
    for second in range(began, int(now.timestamp()) + 3600, 3600):
        offset = localtime(second).tm_gmtoff
        if not changes or changes[-1][1] != offset:
            changes.append((second, offset))
    local = at + changes[-1][1] * 1_000_000
    if len(changes) > 1:
        before = (
            (at < until * 1_000_000, at + offset * 1_000_000)
            for (_, offset), (until, _) in pairwise(changes)
        )
        local = case(*before, else_=local)
    return local // _DAY_US


def _duration_class() -> ColumnElement[int]:
    """A number for each class of durations; 0 for failed answers."""
    took = turns.c.duration_s
    fine = (took < 0.2, took * 1000), (took < 2, 196 + took * 20), (took < 20, 228 + took * 4)
    finer = case(*fine, else_=298 + took / 2)
    is_failed = turns.c.outcome == TurnEnd.FAILED
    return case((is_failed, 0), else_=1 + cast(func.round(finer), Integer))


def _seconds(duration_class: int) -> float | None:
    number = duration_class - 1
    if number < 0:
        return None
    if number <= 200:
        return number / 1000
    if number <= 236:
        return (number - 196) / 20
    return (number - 228) / 4 if number <= 308 else (number - 298) * 2.0


def _first_since(connection: Connection, at: datetime) -> int:
    """The number of the first turn since an instant. There is no index of times; numbers grow with
    them.
    """
    low, high = 1, 1 + (connection.scalar(select(func.max(turns.c.seq))) or 0)
    while low < high:
        middle = (low + high) // 2
        next_one = turns.c.seq >= middle
        query = select(turns.c.received_us).where(next_one).order_by(turns.c.seq).limit(1)
        if connection.execute(query).scalar_one() < at:
            low = middle + 1
        else:
            high = middle
    return low
