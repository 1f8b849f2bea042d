"""The law of compliance: whatever is recorded, recorded again, judged and forgotten in any order,
the counts are those of the turns that are there."""

import tempfile
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import Finish, Wire
from metaclaw.domain.compliance import Compliance, MeasuredTurn, RuleOutcome, RuleResult
from metaclaw.domain.ids import SessionId, SkillName, new_turn_id
from metaclaw.domain.skill import Rule
from metaclaw.domain.turn import Exchange, Scope, Stamp, Times, Turn, TurnEnd, TurnKind
from metaclaw.store import LedgerReader, SqlCompliance, SqlForgetting, SqlGenerations, open_database
from metaclaw.store.turn_writer import TurnWriter
from tests.support.depth import tries

RULES = tuple(SkillName(f"rule-{number}") for number in range(3))
SESSIONS = tuple(SessionId(f"s_{number}") for number in range(3))
results = st.dictionaries(st.sampled_from(RULES), st.sampled_from(list(RuleResult)))
turns = st.lists(
    st.tuples(st.sampled_from(SESSIONS), st.sampled_from(("codex", "claude-code")), results),
    min_size=1,
    max_size=12,
)


def make_turn(session: SessionId, agent: str) -> Turn:
    return Turn(
        id=new_turn_id(),
        session=session,
        kind=TurnKind.MAIN,
        kind_reason="law",
        scope=Scope(),
        stamp=Stamp(1, 0, "h", RULES),
        agent=agent,
        wire=Wire.CHAT,
        path="/v1/chat/completions",
        stream=False,
        model="m",
        provider="p",
        provider_wire=Wire.CHAT,
        status=200,
        end=TurnEnd.COMPLETED,
        error=None,
        exchange=Exchange(b"{}", said=b"{}"),
        finish=Finish.STOP,
        usage=None,
        tokens=None,
        times=Times(datetime(2026, 6, 1, tzinfo=UTC), None, 0.1),
    )


@settings(max_examples=tries(12, nightly=300), deadline=None)
@given(turns, st.data())
def test_counts_are_those_of_the_turns_that_are_there(
    made: list[tuple[SessionId, str, dict[SkillName, RuleResult]]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_counts_hold(Path(folder), made, data)


def assert_counts_hold(
    folder: Path,
    made: list[tuple[SessionId, str, dict[SkillName, RuleResult]]],
    data: st.DataObject,
) -> None:
    database = open_database(f"sqlite:///{folder / 'ledger.db'}")
    try:
        SqlGenerations(database).publish(
            [
                Rule(
                    name,
                    "always",
                    "Do.",
                )
                for name in RULES
            ],
            "noted",
        )
        turn_writer, reader, compliance = (
            TurnWriter(database, 1 << 20),
            LedgerReader(database),
            SqlCompliance(database),
        )
        recorded = [make_turn(session, agent) for session, agent, _ in made]
        turn_writer.write(recorded)
        turn_writer.close()
        measured: list[MeasuredTurn] = []
        for turn, (_, agent, found) in zip(recorded, made, strict=True):
            row = reader.turn(turn.id)
            assert row is not None
            outcomes = tuple(RuleOutcome(rule, "h", result) for rule, result in found.items())
            measured.append(MeasuredTurn(row.seq, turn.id, agent, "m", "2026-06-01", outcomes))
        told, at = list(measured), 0
        while at < len(measured):
            # A kill after the commit makes the loop tell some turns again.
            begin, end = (
                data.draw(st.integers(0, at)),
                data.draw(st.integers(at + 1, len(measured))),
            )
            compliance.record(told[begin:end], told[end - 1].seq)
            at = end
        for number, one in enumerate(told):
            judged = tuple(
                replace(out, result=RuleResult.FOLLOWED)
                for out in one.outcomes
                if out.result is RuleResult.UNKNOWN and data.draw(st.booleans())
            )
            if judged:
                compliance.settle(replace(one, outcomes=judged))
                compliance.settle(replace(one, outcomes=judged))
                settled = {out.rule: out for out in judged}
                told[number] = replace(
                    one, outcomes=tuple(settled.get(out.rule, out) for out in one.outcomes)
                )
        gone = data.draw(st.sets(st.sampled_from(SESSIONS), max_size=2))
        for session in gone:
            SqlForgetting(database).forget_session(session)
        truth: Counter[tuple[SkillName, str, RuleResult]] = Counter()
        for one, (session, agent, _) in zip(told, made, strict=True):
            if session not in gone:
                truth.update((out.rule, agent, out.result) for out in one.outcomes)
        counted = {(one.rule, one.agent, one.result): one.times for one in compliance.counted()}
        assert counted == dict(truth)
        totals = compliance.totals(dict.fromkeys(RULES, "h"))
        for rule in RULES:
            mine = {
                result: sum(truth[rule, agent, result] for agent in ("codex", "claude-code"))
                for result in RuleResult
            }
            assert sum(totals[rule].values(), Compliance()) == Compliance.of(mine)
    finally:
        database.close()
