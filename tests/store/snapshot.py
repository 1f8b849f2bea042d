"""Writes `snapshots/<revision>.sql` and `.json`: a small database at the newest schema, and the
turns it holds.

    python tests/store/snapshot.py

Run once for each new revision and commit what it wrote; older snapshots are never written again.
The story is the same in every snapshot but for what older schemas had no place for, so that a test
can open databases of all schemas and read it."""

import asyncio
import sqlite3
import sys
import tempfile
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import msgspec

from metaclaw.domain.candidate import (
    Candidate,
    CandidateId,
    Certificate,
    Change,
    Proposal,
    Standing,
)
from metaclaw.domain.chat import Finish, SampledTokens, Usage, Wire
from metaclaw.domain.compliance import MeasuredTurn, Reminded, RuleOutcome, RuleResult
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.policy import Comparison, GateReport, Weights
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.turn import (
    Draw,
    Exchange,
    Placement,
    Scope,
    Splice,
    Stamp,
    Times,
    Turn,
    TurnEnd,
    TurnKind,
)
from metaclaw.domain.verdict import Fault, Outcome, Signal, Source, Verdict, Votes
from metaclaw.store import (
    Database,
    LedgerLimits,
    LedgerReader,
    SqlBatches,
    SqlCandidates,
    SqlCompliance,
    SqlCursors,
    SqlGenerations,
    SqlLedger,
    SqlPolicies,
    SqlUses,
    SqlVerdicts,
    open_database,
)
from metaclaw.store.schema import HEAD

FOLDER = Path(__file__).with_name("snapshots")
BEGAN = datetime(2026, 11, 1, 9, 30, tzinfo=timezone(timedelta(hours=1)))


def make_turn(number: int, session: str, exchange: Exchange) -> Turn:
    is_main = number % 3 != 2
    return Turn(
        id=TurnId(f"t_{number:04}"),
        session=SessionId(session),
        kind=TurnKind.MAIN if is_main else TurnKind.SIDE,
        kind_reason="story",
        scope=Scope("ada", None),
        stamp=Stamp(2 if number == 3 else 1, 0, "0b", (SkillName("tell-time"),)),
        agent="claude-code",
        wire=Wire.MESSAGES,
        path="/v1/messages",
        stream=True,
        model="model\x00with a NUL",
        provider="main",
        provider_wire=Wire.MESSAGES,
        status=200,
        end=TurnEnd.COMPLETED,
        error=None,
        exchange=exchange,
        finish=Finish.TOOL_CALLS,
        usage=Usage(100 + number, 7, 50),
        tokens=SampledTokens((1, 2**31 - 1), (5, 6, 7), (-0.1, -1e-300, -0.0))
        if number == 1
        else None,
        times=Times(BEGAN + timedelta(minutes=number, microseconds=7), 0.123, 4.5),
        segment=number // 2,
        key="key",
        head=bytes([number] * 16),
        placements=(
            Placement(b"", (SkillName("tell-time"),), "Look at the clock. ⏰"),
            Placement(b"\x01", (), ""),
        ),
        draws=(Draw(SkillName("tell-time"), True, 0.75),) if number == 1 else (),
    )


def story() -> list[Turn]:
    conversation = [
        b'{"messages":['
        + b",".join(b'"message %d, and what it says"' % part for part in range(upto))
        for upto in range(1, 9)
    ]
    turns = [
        make_turn(
            number,
            "s_growing",
            Exchange(body + b"]}", (Splice(1, b"spliced"), Splice(9, b"twice")), None, b"said"),
        )
        for number, body in enumerate(conversation)
    ]
    translated = [
        make_turn(
            10 + number, "s_translated", Exchange(body, (), b"translated " + body, b"said", b"seen")
        )
        for number, body in enumerate(conversation)
    ]
    return turns + translated


async def write(path: Path) -> None:
    database = open_database(f"sqlite:///{path}")
    generations = SqlGenerations(database, lambda: BEGAN.astimezone(UTC))
    generations.publish(
        [
            Skill(
                SkillName("tell-time"),
                "asked for the time",
                "Look at the clock.",
                None,
                "",
                other={"k": [1]},
            )
        ],
        "story",
    )
    generations.publish([], "story goes on")
    ledger = SqlLedger(database, LedgerLimits(patience_s=60), clock=lambda: BEGAN)
    await ledger.start()
    for turn in story():
        if not await ledger.record(turn):
            raise SystemExit(f"not recorded: {ledger.health}")
    await ledger.end_session(SessionId("s_translated"), "story ended")
    await ledger.announce("story.told", {"turns": len(story())})
    await ledger.aclose()
    learn(database)
    database.close()


def learn(database: Database) -> None:
    failed, passed = TurnId("t_0000"), TurnId("t_0001")
    verdicts, candidates = (
        SqlVerdicts(database, lambda: BEGAN),
        SqlCandidates(database, lambda: BEGAN),
    )
    signals = (Signal("exit", 2.5, "exit code 1"),)
    verdicts.record_verdict(
        Verdict(failed, Outcome.FAIL, Source.DETECTOR, 0.9, signals, fault=Fault.AGENT)
    )
    verdicts.record_verdict(
        Verdict(passed, Outcome.PASS, Source.JUDGE, 0.1, votes=Votes(3, 0, 0, "judge"))
    )
    candidates.begin_attempt("exit", 2, [failed])
    skill = Skill(
        SkillName("ask-first"),
        "before it fails",
        "Ask.",
        state=SkillState.CANARY,
        author=Authorship.EVOLVER,
    )
    proposal = Proposal(skill, Change.NEW, (), (failed,), "exit", "evolver")
    certificate = Certificate(SkillState.SHADOW, 4, 3, 0, 1, 0, 0, 900, "model", ("note",))
    candidates.save_candidate(
        Candidate(CandidateId("c_1"), proposal, Standing.ACCEPTED, "proven", 2, BEGAN, certificate)
    )
    batch = SqlBatches(database, lambda: BEGAN).open_batch(0, [TurnId("t_0003")], seed=7)
    SqlGenerations(database, lambda: BEGAN).publish([skill], "learned")
    SqlCursors(database).move_cursor("sensing", 16)
    SqlUses(database).begin([skill.name], BEGAN)
    seq = LedgerReader(database).turns_of(SessionId("s_growing"))[0].seq
    broken = RuleOutcome(
        SkillName("tell-time"), "0b", RuleResult.BROKEN, Reminded.PLACED, "found", is_shown=False
    )
    measured = MeasuredTurn(seq, failed, "claude-code", "model", "2026-11-01", (broken,))
    SqlCompliance(database, lambda: BEGAN).record([measured], 16)
    report = GateReport(
        True, ("not worse",), Comparison(40, 12, 3, 0.2, 25.0), 0.9, 0.95, 0.01, "judge"
    )
    policies = SqlPolicies(database, lambda: BEGAN)
    weights = Weights("embedded", "{home}/policies/1", "{home}/policies/1/training")
    policies.publish(
        weights, parent=0, base="model", batch=batch, steps=4, note="first", absorbed=[skill.name]
    )
    policies.canary(1, report)
    policies.promote(1, "proven")


def main() -> None:
    if (FOLDER / f"{HEAD}.sql").exists():
        raise SystemExit(
            f"there is a snapshot of schema {HEAD} already; a released schema never changes"
        )
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        asyncio.run(write(path))
        connection = sqlite3.connect(path)
        (FOLDER / f"{HEAD}.sql").write_text("\n".join(connection.iterdump()) + "\n")
        connection.close()
    (FOLDER / f"{HEAD}.json").write_bytes(msgspec.json.format(msgspec.json.encode(story())) + b"\n")
    sys.stdout.write(f"wrote the snapshot of schema {HEAD}\n")


if __name__ == "__main__":
    main()
