"""Compliance: the results of each turn for the rules that applied to it, and their sums.

A turn is counted once: its results, the events about them and the cursor are written in one
transaction."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    delete,
    func,
    insert,
    select,
    true,
    tuple_,
)

from metaclaw.domain.chat import Json
from metaclaw.domain.compliance import (
    COMPARED_DAYS,
    Compliance,
    CountedResult,
    MeasuredTurn,
    RuleOutcome,
    RuleRecord,
    RuleResult,
    Violation,
    add_up,
    reminder_effect,
)
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.turn import (
    ATTEMPT,
    EnforcedRule,
    Enforcement,
    ShownCall,
    TrueAnswer,
    Turn,
)
from metaclaw.store.database import Queries, writes
from metaclaw.store.dialects import insert_into
from metaclaw.store.rows import (
    ResultRow,
    Values,
    pack_json,
    pack_text,
    record,
    unpack_json,
)
from metaclaw.store.schema import (
    events,
    held_rules,
    memberships,
    rule_counts,
    rule_results,
    true_answers,
    turn_attempts,
    turns,
)
from metaclaw.store.usage import present, read_cursor, write_cursor

_CURSOR = "compliance"
_DAYS_SHOWN = 14
_FAILED_DAYS = 7
_KEYS = ("rule", "hash", "agent", "model", "day", "result", "reminder")
_IS_BAD = rule_counts.c.result.in_((RuleResult.BROKEN, RuleResult.HELD))


class SqlCompliance(Queries):
    """Results by turn and rule. One reader of the ledger calls `record`, in order; turns are not
    counted twice.
    """

    def cursor(self) -> int | None:
        """The last turn that was counted; None if counting has not begun."""
        with self._database.reading("reading a cursor") as connection:
            return read_cursor(connection, _CURSOR)

    @writes
    def record(self, measured: Sequence[MeasuredTurn], upto: int) -> None:
        """Count the results of these turns, announce broken rules, and move the cursor to `upto`;
        all or nothing.
        """
        with self._database.writing("counting how rules are followed") as connection:
            done = read_cursor(connection, _CURSOR) or 0
            found = [(turn, out) for turn in measured if turn.seq > done for out in turn.outcomes]
            # Turns that were forgotten meanwhile are not counted, and neither are forgotten rules.
            recorded = present(connection, turns.c.seq, {turn.seq for turn, _ in found})
            known = present(connection, memberships.c.name, {out.rule for _, out in found})
            found = [
                (turn, out) for turn, out in found if turn.seq in recorded and out.rule in known
            ]
            self._add(connection, found)
            write_cursor(connection, _CURSOR, max(done, upto))

    @writes
    def settle(self, turn: MeasuredTurn) -> bool:
        """Replace unknown results of a turn by a judge's. False if there is nothing to replace any
        more.
        """
        with self._database.writing("counting how a rule is followed") as connection:
            settled = []
            for outcome in turn.outcomes:
                key = _key(turn, outcome) | {"result": RuleResult.UNKNOWN}
                unknown = select(rule_counts.c.seq).where(
                    *(rule_counts.c[name] == value for name, value in key.items())
                )
                mine = rule_results.c.turn == turn.seq, rule_results.c.count.in_(unknown)
                if connection.execute(delete(rule_results).where(*mine)).rowcount:
                    settled.append((turn, outcome))
            self._add(connection, settled)
            return bool(settled)

    def counted(
        self, rules: Collection[SkillName] | None = None, since: str = ""
    ) -> list[CountedResult]:
        """The sums of the days from `since` on, of these rules or of all."""
        query = (
            select(*rule_counts.c[*_KEYS, "times"])
            .where(
                rule_counts.c.day >= since,
                rule_counts.c.times > 0,
                true() if rules is None else rule_counts.c.rule.in_(rules),
            )
            .order_by(rule_counts.c.day.desc(), rule_counts.c.seq)
        )
        return self._database.records("reading how rules are followed", query, CountedResult)

    def last_broken(self, since: str = "") -> dict[tuple[SkillName, str], int]:
        """The last turn that broke each text of a rule, from this day on, by rule and hash."""
        text = rule_counts.c["rule", "hash"]
        query = (
            _results_with(*text, func.max(rule_results.c.turn))
            .where(rule_counts.c.day >= since, _IS_BAD)
            .group_by(*text)
        )
        rows = self._database.rows("reading where rules were broken last", query)
        return {(rule, hash_): last for rule, hash_, last in rows}

    def totals(self, hashes: Mapping[SkillName, str]) -> dict[SkillName, dict[str, Compliance]]:
        """The compliance of the rules with these hashes, by agent; empty for a rule that never
        applied.
        """
        found: dict[SkillName, dict[str, Compliance]] = {}
        counted = [one for one in self.counted(hashes) if hashes.get(one.rule) == one.hash]
        for name in hashes:
            mine = [one for one in counted if one.rule == name]
            found[name] = _grouped(mine, lambda one: one.agent)
        return found

    def of_rule(self, rule: SkillName, hash_: str) -> RuleRecord:
        """The compliance record of this text of a rule."""
        counted = [one for one in self.counted([rule]) if one.hash == hash_]
        since = (self._clock() - timedelta(days=COMPARED_DAYS)).date().isoformat()
        by_day = _grouped(counted, lambda one: one.day)
        return RuleRecord(
            add_up(counted),
            _grouped(counted, lambda one: one.agent),
            _grouped(counted, lambda one: one.model),
            {day: by_day[day] for day in sorted(by_day, reverse=True)[:_DAYS_SHOWN]},
            reminder_effect(one for one in counted if one.day >= since),
            tuple(self.violations(rule, hash_)),
        )

    def violations(self, rule: SkillName, hash_: str, limit: int = 10) -> list[Violation]:
        """The last turns that broke this text of a rule, newest first."""
        query = (
            _results_with(
                *turns.c["id", "received_us"],
                *rule_counts.c["agent", "model"],
                rule_counts.c.result == RuleResult.HELD,
                func.coalesce(rule_results.c.reason, ""),
            )
            .join(turns, turns.c.seq == rule_results.c.turn)
            .where(rule_counts.c.rule == rule, rule_counts.c.hash == hash_, _IS_BAD)
            .order_by(rule_results.c.turn.desc())
            .limit(limit)
        )
        return self._database.records("reading where a rule was broken", query, Violation)

    def failed_checks(self, hashes: Mapping[SkillName, str]) -> dict[SkillName, str]:
        """The rules with these hashes whose check failed on the last turn of the last days, and
        why.
        """
        since = (self._clock() - timedelta(days=_FAILED_DAYS)).date().isoformat()
        is_mine = rule_counts.c.rule.in_(hashes), rule_counts.c.day >= since
        text, turn = rule_counts.c["rule", "hash"], rule_results.c.turn
        last = _results_with(*text, func.max(turn)).where(*is_mine).group_by(*text)
        query = _results_with(*text, rule_results.c.reason).where(
            tuple_(*text, turn).in_(last),
            rule_counts.c.result == RuleResult.UNKNOWN,
            rule_results.c.reason.is_not(None),
        )
        rows = self._database.rows("reading which checks failed", query)
        return {rule: reason for rule, hash_, reason in rows if hashes[rule] == hash_}

    def broken_in(self, turn: TurnId) -> list[tuple[SkillName, str]]:
        """The rules that a turn broke and that were not held, with the reasons."""
        query = (
            _results_with(rule_counts.c.rule, func.coalesce(rule_results.c.reason, ""))
            .join(turns, turns.c.seq == rule_results.c.turn)
            .where(turns.c.id == turn, rule_counts.c.result == RuleResult.BROKEN)
            .order_by(rule_counts.c.rule)
        )
        rows = self._database.rows("reading which rules a turn broke", query)
        return [(rule, reason) for rule, reason in rows]

    def _add(
        self, connection: Connection, outcomes: Sequence[tuple[MeasuredTurn, RuleOutcome]]
    ) -> None:
        """Count results, in few statements, because every other writer waits meanwhile."""
        if not outcomes:
            return
        self._announce(connection, outcomes)
        keys = [tuple(_key(turn, outcome).values()) for turn, outcome in outcomes]
        begun = insert_into(rule_counts, connection.dialect.name).on_conflict_do_nothing()
        rows = [dict(zip(_KEYS, key, strict=True)) | {"times": 0} for key in dict.fromkeys(keys)]
        connection.execute(begun, rows)
        query = select(*rule_counts.c["seq", *_KEYS]).where(
            rule_counts.c.rule.in_({outcome.rule for _, outcome in outcomes}),
            rule_counts.c.day.in_({turn.day for turn, _ in outcomes}),
        )
        counts = {tuple(key): seq for seq, *key in connection.execute(query)}
        results = [
            {"turn": turn.seq, "count": counts[key], "reason": outcome.reason or None}
            for (turn, outcome), key in zip(outcomes, keys, strict=True)
        ]
        connection.execute(insert(rule_results), results)

    def _announce(
        self, connection: Connection, outcomes: Sequence[tuple[MeasuredTurn, RuleOutcome]]
    ) -> None:
        """Append an event for each broken rule that was in the prompt, and a notice for the first
        event of a rule on a day.
        """
        broken = [(turn, one) for turn, one in outcomes if one.result is RuleResult.BROKEN]
        if not any(outcome.is_shown for _, outcome in broken):
            return
        key = rule_counts.c["rule", "day"]
        query = select(*key, func.sum(rule_counts.c.times).label("times")).where(
            rule_counts.c.rule.in_({outcome.rule for _, outcome in broken}),
            rule_counts.c.result == RuleResult.BROKEN,
        )
        times = Counter[tuple[str, str]]()
        for row in connection.execute(query.group_by(*key)):
            times[row.rule, row.day] = int(row.times)
        at, told = self._clock(), list[dict[str, object]]()
        for turn, outcome in broken:
            rule = outcome.rule
            if outcome.is_shown:
                so_far = sum(count for (name, _), count in times.items() if name == rule)
                is_first = not times[rule, turn.day]
                told += (
                    {"at_us": at, "kind": kind, "data": pack_json(data)}
                    for kind, data in _events_of(turn, outcome, so_far + 1, is_first=is_first)
                )
            times[rule, turn.day] += 1
        connection.execute(insert(events), told)


def _results_with(*columns: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    """A query of the results of turns, each with its rule."""
    return select(*columns).select_from(rule_results).join(rule_counts)


def _events_of(
    turn: MeasuredTurn, outcome: RuleOutcome, times: int, *, is_first: bool
) -> list[tuple[str, dict[str, Json]]]:
    """The event of a broken rule, and a notice if it is the first on a day."""
    data: dict[str, Json] = {
        "rule": outcome.rule,
        "turn": turn.turn,
        "agent": turn.agent,
        "model": turn.model,
    }
    data |= {"times": times, "reason": outcome.reason}
    if not is_first:
        return [("rule_broken", data)]
    often = "" if times == 1 else f", for the {_ordinal(times)} time"
    words = (
        f"The rule {outcome.rule} was in the prompt and was broken by {turn.agent}{often}. metaclaw"
        f" why {turn.turn} explains it."
    )
    return [("rule_broken", data), ("notice", {"skill": outcome.rule, "text": words})]


def _key(turn: MeasuredTurn, outcome: RuleOutcome) -> dict[str, str]:
    return {
        "rule": outcome.rule,
        "hash": outcome.hash,
        "agent": turn.agent,
        "model": turn.model,
        "day": turn.day,
        "result": outcome.result,
        "reminder": outcome.reminded,
    }


def _grouped(
    counted: Sequence[CountedResult], key: Callable[[CountedResult], str]
) -> dict[str, Compliance]:
    groups: dict[str, list[CountedResult]] = {}
    for one in counted:
        groups.setdefault(key(one), []).append(one)
    return {name: add_up(group) for name, group in sorted(groups.items())}


def _ordinal(number: int) -> str:
    ending = (
        "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"


_MOST_LOADED = 50_000


IS_ATTEMPT = turns.c.kind_reason == ATTEMPT
_RULES = (
    select(*held_rules.c["rule", "attempts", "outcome", "reason"])
    .where(held_rules.c.turn == bindparam("seq"))
    .order_by(held_rules.c.place)
)
_ATTEMPTS = (
    select(turns)
    .join(turn_attempts, turn_attempts.c.turn == turns.c.seq)
    .where(turn_attempts.c.parent == bindparam("seq"))
    .order_by(turn_attempts.c.place)
)
_ANSWER = select(true_answers).where(true_answers.c.turn == bindparam("seq"))


def attempts_of(turn: Turn) -> tuple[Turn, ...]:
    """The attempts at a turn's answer, which are recorded before it."""
    return () if turn.enforcement is None else turn.enforcement.attempts


def enforcement_rows(
    seq: int, enforcement: Enforcement, numbers: Mapping[TurnId, int]
) -> tuple[list[Values], list[Values], list[Values]]:
    """The rows of turn `seq`: the rules that held, the turns that are attempts at its answer, and
    what the provider really said."""
    rules: list[Values] = [
        (seq, place, pack_text(one.rule), one.attempts, one.end, pack_text(one.reason))
        for place, one in enumerate(enforcement.rules)
    ]
    attempts: list[Values] = [
        (numbers[attempt.id], seq, place) for place, attempt in enumerate(enforcement.attempts)
    ]
    answer = enforcement.answer
    if answer is None:
        return rules, attempts, []
    calls = pack_json({"calls": [[call.id, call.arguments] for call in answer.calls]})
    texts = (calls, pack_text(answer.mark), pack_text(answer.answer_id), pack_text(answer.last_id))
    return rules, attempts, [(seq, answer.wire, *texts, answer.messages, answer.rest)]


def enforcement_of(
    connection: Connection, seq: int, read_turn: Callable[[ResultRow], Turn]
) -> Enforcement | None:
    """The record of turn `seq`; None if no rule held and no tool of ours was called."""
    rules = tuple(EnforcedRule(*row) for row in connection.execute(_RULES, {"seq": seq}))
    attempts = tuple(read_turn(row) for row in connection.execute(_ATTEMPTS, {"seq": seq}).all())
    if not attempts:
        return None
    answer = connection.execute(_ANSWER, {"seq": seq}).one_or_none()
    return Enforcement(rules, attempts, None if answer is None else _answer(answer))


class StoredAnswer(NamedTuple):
    """A true answer with its turn, session and user."""

    turn: TurnId
    session: SessionId
    user: str | None
    answer: TrueAnswer


class SqlTrueAnswers(Queries):
    """Reads true answers. Blocks; raises StoreError."""

    def newest(
        self, session: SessionId | None = None, limit: int = _MOST_LOADED
    ) -> Iterable[StoredAnswer]:
        """The newest true answers, of this session if given, without their messages, newest
        first.
        """
        is_wanted = true() if session is None else turns.c.session == session
        columns = [column for column in true_answers.c if column.name not in ("messages", "rest")]
        query = select(*turns.c["id", "session", "user_id"], *columns).join(turns).where(is_wanted)
        rows = self._database.rows(
            "reading true answers", query.order_by(true_answers.c.turn.desc()).limit(limit)
        )
        return [
            StoredAnswer(row.id, row.session, row.user_id, _answer(row, has_messages=False))
            for row in rows
        ]

    def read(self, turn: TurnId) -> TrueAnswer | None:
        """The true answer of a turn; None if there is none, or it was forgotten."""
        query = select(true_answers).join(turns).where(turns.c.id == turn)
        return self._database.read_one("reading a true answer", query, lambda row: _answer(row))


def _answer(row: ResultRow, *, has_messages: bool = True) -> TrueAnswer:
    stored = unpack_json(row.calls)["calls"]
    calls = stored if isinstance(stored, list) else []
    return record(
        TrueAnswer,
        row,
        calls=tuple(ShownCall(str(one[0]), str(one[1])) for one in calls if isinstance(one, list)),
        messages=bytes(row.messages) if has_messages else b"",
        rest=bytes(row.rest) if has_messages else b"",
    )
