"""`metaclaw sessions`, from a real store, without a running proxy."""

import json
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from metaclaw.cli import main
from metaclaw.domain.chat import Finish, Usage, Wire
from metaclaw.domain.ids import SessionId, SkillName, new_session_id, new_turn_id
from metaclaw.domain.turn import Exchange, Scope, Stamp, Times, Turn, TurnEnd, TurnKind
from metaclaw.store import SqlLedger, open_database


def turn(session: SessionId, model: str = "m-1") -> Turn:
    return Turn(
        id=new_turn_id(),
        session=session,
        kind=TurnKind.MAIN,
        kind_reason="test",
        scope=Scope(user="ann"),
        stamp=Stamp(generation=2, policy_version=0, library_hash="", skills=(SkillName("backup-first"),)),
        agent="some-agent",
        wire=Wire.CHAT,
        path="/chat/completions",
        stream=False,
        model=model,
        provider="main",
        provider_wire=Wire.CHAT,
        status=200,
        end=TurnEnd.COMPLETED,
        error=None,
        exchange=Exchange(request=b'{"model": "m-1"}', said=b'{"id": "x"}'),
        finish=Finish.STOP,
        usage=Usage(input_tokens=11, output_tokens=7),
        tokens=None,
        times=Times(received_at=datetime.now(UTC), first_byte_s=0.1, duration_s=0.25),
    )


def test_nothing_recorded_is_said_and_makes_no_database(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "list"]) == 0
    assert capsys.readouterr().out == "No sessions are recorded yet.\n"
    assert main(["sessions", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"sessions": []}
    assert main(["sessions", "show", "s_nothing"]) == 1
    assert "there is no session s_nothing" in capsys.readouterr().err
    assert not home.exists()


def record(home: Path, *turns: Turn) -> None:
    """Put turns into the store as a proxy does."""

    async def run() -> None:
        database = open_database(f"sqlite:///{home}/ledger.db")
        ledger = SqlLedger(database)
        await ledger.start()
        for one in turns:
            assert await ledger.record(one)
        await ledger.aclose()
        database.close()

    anyio.run(run)


def test_recorded_sessions_are_listed_and_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = new_session_id(), new_session_id()
    turns = [turn(one), turn(one), turn(other, model="evil\x1b[31m")]
    record(home, *turns)
    assert main(["sessions", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["sessions"]
    assert {entry["id"]: entry["turn_count"] for entry in listed} == {one: 2, other: 1}
    assert main(["sessions", "list", "--limit", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["sessions", "show", one]) == 0
    out = capsys.readouterr().out
    for words in (one, "some-agent", turns[0].id, turns[1].id, "main", "m-1", "backup-first", "stop", "11 → 7", "0.25 s"):
        assert words in out
    assert main(["sessions", "show", other]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert main(["sessions", "show", one, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [entry["id"] for entry in shown["turns"]] == [turns[0].id, turns[1].id]
    assert shown["turns"][0]["request"] == {"model": "m-1"}
    assert shown["turns"][0]["answer"] == {"id": "x"}


def test_a_store_that_cannot_be_read_is_one_sentence(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    (home / "ledger.db").write_text("no database " * 100)
    assert main(["sessions", "list"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "bug" not in err
