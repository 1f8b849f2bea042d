"""`metaclaw sessions`, from a real store, and as asked of a running proxy."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from metaclaw.cli import main
from metaclaw.domain.candidate import Standing
from metaclaw.domain.ids import SessionId, TurnId, new_session_id
from metaclaw.domain.turn import Exchange, Turn
from metaclaw.instance import acquire
from metaclaw.skills import SkillLibrary
from metaclaw.store import (
    Backup,
    LedgerReader,
    SqlBackups,
    SqlCandidates,
    SqlForgetting,
    SqlGenerations,
)
from tests.cli.program import metaclaw
from tests.cli.recorded import candidate, keep, record, skill, store, turn
from tests.cli.scripted import scripted


def test_nothing_recorded_is_said_and_makes_no_database(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sessions", "list"]) == 0
    assert capsys.readouterr().out == "No sessions are recorded yet.\n"
    assert main(["sessions", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"sessions": []}
    for command in (["show"], ["forget", "--yes"]):
        assert main(["sessions", *command, "s_nothing"]) == 1
        assert "there is no session s_nothing" in capsys.readouterr().err
    assert not home.exists()


def test_recorded_sessions_are_listed_and_shown(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = new_session_id(), new_session_id()
    turns = [turn(one), turn(one), turn(other, model="evil\x1b[31m")]
    record(home, *turns)
    assert main(["sessions", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["sessions"]
    assert {entry["id"]: entry["turn_count"] for entry in listed} == {one: 2, other: 1}
    assert main(["sessions", "list", "--limit", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("… and 1 older")
    assert main(["sessions", "show", one]) == 0
    out = capsys.readouterr().out
    for words in (
        one,
        "some-agent",
        turns[0].id[:10],
        "m-1",
        "backup-first",
        "11 → 7",
        "0.25 s",
        "not judged yet",
    ):
        assert words in out
    assert main(["sessions", "show", other]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert main(["sessions", "show", one, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [entry["id"] for entry in shown["turns"]] == [turns[0].id, turns[1].id]
    assert shown["turns"][0]["request"] == {"model": "m-1"}
    assert shown["turns"][0]["answer"] == {"id": "x"}


def test_a_store_that_cannot_be_read_is_one_sentence(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    (home / "ledger.db").write_text("no database " * 100)
    assert main(["sessions", "list"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "bug" not in err


def test_a_forgotten_session_is_gone_with_what_it_taught_and_nothing_else(home: Path) -> None:
    one, other = new_session_id(), new_session_id()
    taught, kept = turn(one), turn(other)
    record(home, taught, turn(one), kept)
    keep(
        home,
        candidate(skill("learned"), taught.id, Standing.ACCEPTED),
        candidate(skill("of-another"), kept.id, Standing.ACCEPTED),
        candidate(skill("on-its-way"), taught.id, Standing.WAITING),
    )
    done = metaclaw("sessions", "forget", one, "--yes")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(
        rf"Forgot {one}: 2 turns, in [0-9.]+ s.\nDeleted the skills it had taught: learned.\n",
        done.out,
    )
    with store(home) as database:
        assert LedgerReader(database).session(one) is None
        assert LedgerReader(database).turn(taught.id) is None
        assert LedgerReader(database).turn(kept.id) is not None
        assert [made.id for made in SqlCandidates(database).candidates()] == ["c_of-another"]
        generations = SqlGenerations(database)
        assert [in_force.name for in_force in generations.latest().skills] == ["of-another"]
        assert generations.history(1)[0].reason == "forgot a session"
    assert not (home / "skills" / "learned").exists()
    assert (home / "skills" / "of-another" / "SKILL.md").exists()


NOTHING_LEARNED = {
    **{"candidates": 0, "skills": [], "edited": [], "sessions": [], "batches": [], "versions": []},
    **{"backups": [], "purged": True},
}


def test_forgetting_says_what_went_as_json_too(home: Path) -> None:
    session = new_session_id()
    record(home, turn(session))
    done = metaclaw("sessions", "forget", session, "--yes", "--json")
    assert done.facts["seconds"] >= 0
    assert {**done.facts, "seconds": 0} == {
        "session": session,
        "forgotten": True,
        "turns": 1,
        **NOTHING_LEARNED,
        "seconds": 0,
    }
    again = metaclaw("sessions", "forget", session, "--yes")
    assert (again.code, f"there is no session {session}" in again.err) == (1, True)


def test_forgetting_names_the_backups_that_still_hold_the_session(
    home: Path, tmp_path: Path
) -> None:
    session = new_session_id()
    made = turn(session)
    record(home, made)
    (tmp_path / "kept.db").touch()
    with store(home) as database:
        since = made.times.received_at
        for name, at in (("kept.db", since), ("deleted.db", since)):
            SqlBackups(database).add(Backup(tmp_path / name, at))
        (tmp_path / "earlier.db").touch()
        SqlBackups(database).add(Backup(tmp_path / "earlier.db", since - timedelta(days=1)))
    assert metaclaw("sessions", "forget", session, "--yes", "--json").facts["backups"] == [
        str(tmp_path / "kept.db")
    ]


def test_forgetting_that_was_interrupted_is_finished_by_asking_again(home: Path) -> None:
    session = new_session_id()
    taught = turn(session)
    record(home, taught)
    keep(home, candidate(skill("learned"), taught.id, Standing.ACCEPTED))
    with store(home) as database:  # as if the power had failed right after the turns were gone
        SqlForgetting(database).forget_session(session)
        assert [
            one.name
            for one in SkillLibrary(home / "skills", SqlGenerations(database)).sync().skills
        ] == ["learned"]
    done = metaclaw("sessions", "forget", session, "--yes", "--json")
    assert (done.code, done.facts["turns"], done.facts["skills"]) == (0, 0, ["learned"])
    assert not (home / "skills" / "learned").exists()


def test_nothing_is_forgotten_before_a_person_agrees(home: Path) -> None:
    session = new_session_id()
    record(home, turn(session), turn(session))
    refused = metaclaw("sessions", "forget", session, given="n\n")
    assert (refused.code, "2 turns" in refused.out) == (1, True)
    assert "nothing was changed" in refused.err
    with store(home) as database:
        assert LedgerReader(database).session(session) is not None
    assert metaclaw("sessions", "forget", session, given="y\n").code == 0
    with store(home) as database:
        assert LedgerReader(database).session(session) is None


def test_a_running_proxy_is_asked_to_forget(home: Path) -> None:
    learned = {
        "candidates": 1,
        "skills": ["x\x1b[31m"],
        "edited": ["y"],
        "sessions": ["s_7"],
        "batches": [4, 9],
        "versions": [2, 3],
    }
    gone = {
        "session": "s_1",
        "forgotten": True,
        "turns": 3,
        **learned,
        "backups": ["/b.db"],
        "purged": False,
        "seconds": 1.5,
    }
    with scripted(home, {"POST /api/sessions/s_1/forget": (200, gone)}) as asked:
        said = metaclaw("sessions", "forget", "s_1", "--yes")
        facts = metaclaw("sessions", "forget", "s_1", "--yes", "--json").facts
        unknown = metaclaw("sessions", "forget", "s_2", "--yes")
    assert said.out.splitlines() == [
        "Forgot s_1: 3 turns, in 1.5 s.",
        "Deleted the skills it had taught: x\\x1b[31m.",
        (
            "Kept, because you have edited them since: y. Delete them if they contain what is to be"
            " forgotten."
        ),
        (
            "Prompts of other sessions contained such skills: s_7. They were removed from the"
            " records, but answers may repeat them. If so, forget those sessions as well."
        ),
        "Deleted the weights that were trained on it: version 2, 3. See metaclaw policy list.",
        (
            "These backups still contain it: /b.db. Delete them, or make new ones with metaclaw"
            " store backup."
        ),
        (
            "The database is in use and was not compacted, so its file may still contain fragments"
            " of the text. Stop the proxy and run this command again."
        ),
    ]
    assert facts == gone
    assert (unknown.code, "metaclaw sessions list" in unknown.err) == (1, True)
    assert [one.line for one in asked] == [
        *["POST /api/sessions/s_1/forget"] * 2,
        "POST /api/sessions/s_2/forget",
    ]


def test_a_proxy_that_is_starting_is_not_worked_around(home: Path) -> None:
    session = new_session_id()
    record(home, turn(session))
    with acquire(home):
        done = metaclaw("sessions", "forget", session, "--yes")
    assert (done.code, "try again in a moment" in done.err) == (1, True)
    with store(home) as database:
        assert LedgerReader(database).session(session) is not None


def said(session: SessionId, question: str, answer: str) -> Turn:
    """A turn with words."""
    request = {"model": "m-1", "messages": [{"role": "user", "content": question}]}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": answer},
        "finish_reason": "stop",
    }
    exchange = Exchange(
        request=json.dumps(request).encode(),
        said=json.dumps(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 1,
                "model": "m-1",
                "choices": [choice],
            }
        ).encode(),
    )
    return replace(turn(session), exchange=exchange)


def test_sessions_have_titles_and_show_words_and_verdicts(home: Path) -> None:
    one, other = new_session_id(), new_session_id()
    first, second = (
        said(one, "Where do owls sleep?", "In trees."),
        said(one, "And bats?", "In caves."),
    )
    record(home, first, second, said(other, "What is 2 + 2?", "4"))
    assert metaclaw("feedback", second.id, "fail", "they", "hang").code == 0
    listed = metaclaw("sessions", "list").out
    assert "Where do owls sleep?" in listed
    assert "1 bad" in listed
    shown = metaclaw("sessions", "show", one).out
    assert shown.startswith("Where do owls sleep?\n")
    for words in (
        "you      And bats?",
        "answer   In caves.",
        "verdict  bad, you said so: they hang",
        "verdict  not judged yet",
    ):
        assert words in shown
    assert metaclaw("sessions", "list", "--json").facts["sessions"][0]["title"] == "What is 2 + 2?"


def test_an_agent_that_is_not_known_is_called_so_in_the_list_and_in_the_session(home: Path) -> None:
    one = new_session_id()
    record(home, replace(said(one, "Where do owls sleep?", "In trees."), agent="unknown"))
    for out in (metaclaw("sessions", "list").out, metaclaw("sessions", "show", one).out):
        assert "agent not known" in out
        assert "unknown" not in out


def test_sessions_are_found_by_the_words_in_them(home: Path) -> None:
    one = new_session_id()
    record(
        home,
        said(one, "Where do owls sleep?", "In trees."),
        said(new_session_id(), "What is 2 + 2?", "4"),
    )
    assert [
        found["id"]
        for found in metaclaw("sessions", "search", "OWLS", "trees", "--json").facts["sessions"]
    ] == [one]
    assert "has these words" in metaclaw("sessions", "search", "zebra").out


def test_the_beginning_of_an_id_is_enough_unless_it_begins_several(home: Path) -> None:
    sessions = [SessionId(f"s_00000000000{number}{'0' * 20}") for number in (1, 2)]
    turns = [
        replace(said(session, f"Question {session[13]}", "ok"), id=TurnId(f"t{session[1:]}"))
        for session in sessions
    ]
    record(home, *turns)
    listed = metaclaw("sessions", "list").out
    assert "s_000000000001 " in listed
    assert "s_0000000000010" not in listed
    assert "Question 2" in metaclaw("sessions", "show", "s_000000000002").out
    ambiguous = metaclaw("sessions", "show", "s_0")
    assert ambiguous.code == 1
    assert "is the beginning of several sessions" in ambiguous.err
    assert sessions[0] in ambiguous.err
    assert "there is no session s_9" in metaclaw("sessions", "show", "s_9").err
    assert metaclaw("feedback", "t_000000000001", "pass").out.startswith(
        f"Noted: {turns[0].id} was good."
    )
    assert metaclaw("sessions", "forget", "s_000000000001", "--yes").out.startswith(
        f"Forgot {sessions[0]}: 1 turn"
    )


def test_the_last_session_and_turn_need_no_id(home: Path) -> None:
    now = datetime.now(UTC)
    old, new = (
        said(new_session_id(), "The old one", "ok"),
        said(new_session_id(), "The new one", "ok"),
    )
    old = replace(old, times=replace(old.times, received_at=now - timedelta(hours=1)))
    record(home, new, old)
    assert metaclaw("sessions", "show", "--last").out.startswith("The new one\n")
    assert metaclaw("feedback", "--last", "fail", "wrong").out.startswith(
        f"Noted: {new.id} was bad.\n"
    )
    assert metaclaw("why", "--last", "--json").facts["turn"] == new.id
    assert "No rule or skill was in force for it.\n" in metaclaw("why", "--last").out
    assert metaclaw("rules", "add", "Use uv instead of pip.").code == 0
    assert "it came into force after this turn" in metaclaw("why", "--last").out
    for number in range(6):
        assert metaclaw("rules", "add", f"Answer question {number} in French.").code == 0
    many = metaclaw("why", "--last").out
    assert "5 rules and skills came into force after this turn" in many
    assert "it came into force after this turn" not in many
    neither = metaclaw("sessions", "show")
    assert neither.code == 2
    assert "--last" in neither.err
