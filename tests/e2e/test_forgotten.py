"""Forgetting on the real program: a planted word is nowhere in the home, whatever is done
afterwards.
"""

import asyncio
import base64
import json
import os
import sqlite3
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_fast_loop import (
    SKILL,
    TASK,
    Talk,
    program_of,
    skills_in_force,
    wait_until,
    work,
)
from tests.support.program import Program
from tests.support.teacher import Teacher

CANARY = "zorblaxian"
WORDS = f"From now on, always end the {CANARY} weekly report with a table of open risks."
CORRECTION = (
    f"No, that's wrong. The {CANARY} release date in the changelog must be written as YYYY-MM-DD."
)
WRITTEN = {
    **SKILL,
    "name": f"{CANARY}-release-dates",
    "body": SKILL["body"] + f"\n4. Mention {CANARY}.",
}


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    running = Teacher(work=work, evolve=lambda prompt: {"skills": [WRITTEN]})
    running.start()
    yield running
    running.stop()


@pytest.fixture
def learner(teacher: Teacher, tmp_path: Path) -> Iterator[Program]:
    running = program_of(teacher, tmp_path / "home").start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def spellings(word: str) -> list[bytes]:
    """The word as text of other encodings would hold it; compressed text is looked into by
    `unpacked`.
    """
    plain = word.encode()
    return [
        plain,
        plain.upper(),
        word.encode("utf-16-le"),
        *(base64.b64encode(b"x" * pad + plain)[4:-4] for pad in range(3)),
    ]


def unpacked(content: bytes) -> Iterator[bytes]:
    """The content, and whatever in it was compressed by zlib or gzip."""
    yield content
    for magic, bits in ((b"\x78", 15), (b"\x1f\x8b", 31)):
        at = content.find(magic)
        while at >= 0:
            with suppress(zlib.error):
                yield zlib.decompressobj(bits).decompress(content[at:], 1 << 20)
            at = content.find(magic, at + 1)


def holding(home: Path, word: str) -> dict[str, int]:
    """How often each file in the home holds the word, in its content or its path."""
    found: dict[str, int] = {}
    # Not by `rglob`, which fails where a folder is deleted while it is read.
    for folder, folders, files in os.walk(home):
        for path in (Path(folder) / name for name in (*folders, *files)):
            count = str(path.relative_to(home)).count(word)
            if path.is_socket():
                continue
            with suppress(FileNotFoundError, IsADirectoryError):
                count += sum(
                    part.count(one)
                    for part in unpacked(path.read_bytes())
                    for one in spellings(word)
                )
            if count:
                found[str(path.relative_to(home))] = count
    return found


def session_of(talk: Talk) -> str:
    assert talk.last is not None
    return talk.last.headers["x-metaclaw-session"]


def forget(program: Program, session: str) -> Any:
    done = program.command("sessions", "forget", session, "--yes", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def revert(program: Program, generation: int) -> None:
    asked = {"generation": generation}
    httpx.post(
        f"{program.url}/api/generations/revert", json=asked, headers=program.auth, timeout=20
    ).raise_for_status()


def test_a_forgotten_word_is_nowhere_while_running_after_reverts_and_when_stopped(
    learner: Program, teacher: Teacher
) -> None:
    standing, corrected = Talk(learner), Talk(learner)
    standing.say(WORDS)
    learner.wait_for("/api/skills", lambda facts: len(facts["skills"]) == 1, 20)
    corrected.say(TASK.format(3))
    corrected.say(CORRECTION)
    learner.wait_for("/api/skills", lambda facts: len(facts["skills"]) == 2, 20)
    carrier = Talk(learner)
    carrier.say(TASK.format(4))
    assert len(carrier.placed) >= 1
    newest = learner.get("/api/status")["generation"]
    revert(learner, newest - 1)
    revert(learner, newest)
    assert holding(learner.home, CANARY)

    reports = [forget(learner, session_of(talk)) for talk in (standing, corrected)]
    assert holding(learner.home, CANARY) == {}
    assert skills_in_force(learner) == set()
    assert [len(report["skills"]) for report in reports] == [1, 1]
    assert any(session_of(carrier) in report["sessions"] for report in reports)
    assert all(report["purged"] for report in reports)

    for generation in range(newest + 2):
        revert(learner, generation)
        assert skills_in_force(learner) == set()
    assert holding(learner.home, CANARY) == {}
    after = Talk(learner)
    after.say(TASK.format(5))
    assert after.placed == []
    learner.kill()
    learner.start()
    assert holding(learner.home, CANARY) == {}
    assert learner.stop() == 0
    assert holding(learner.home, CANARY) == {}


INTERRUPTED = """
import sys
from metaclaw.domain.ids import SessionId
from metaclaw.store import SqlForgetting, open_database
SqlForgetting(open_database(f"sqlite:///{sys.argv[1]}")).forget_session(SessionId(sys.argv[2]))
"""


def test_forgetting_that_was_killed_is_finished_at_the_next_start(learner: Program) -> None:
    """As if the program had been killed when the turns were deleted and nothing else."""
    talk = Talk(learner)
    talk.say(WORDS)
    learner.wait_for("/api/skills", lambda facts: len(facts["skills"]) == 1, 20)
    learner.kill()
    ledger = str(learner.home / "ledger.db")
    subprocess.run(
        [sys.executable, "-c", INTERRUPTED, ledger, session_of(talk)], check=True, timeout=60
    )
    assert holding(learner.home, CANARY)
    learner.start()
    wait_until(lambda: holding(learner.home, CANARY) == {})
    assert skills_in_force(learner) == set()


def is_noted(ledger: Path, session: str) -> bool:
    """Whether the database holds the order to forget the session."""
    with closing(sqlite3.connect(ledger)) as connection:
        return (
            connection.execute(
                "SELECT 1 FROM cursors WHERE name = ?", (f"forget {session}",)
            ).fetchone()
            is not None
        )


def test_forgetting_that_was_killed_as_soon_as_it_was_asked_is_finished_at_the_next_start(
    learner: Program,
) -> None:
    talk = Talk(learner)
    talk.say(WORDS)
    learner.wait_for("/api/skills", lambda facts: len(facts["skills"]) == 1, 20)
    session = session_of(talk)
    with ThreadPoolExecutor(1) as pool:
        url = f"{learner.url}/api/sessions/{session}/forget"
        asked = pool.submit(lambda: httpx.post(url, headers=learner.auth, timeout=60))
        wait_until(lambda: asked.done() or is_noted(learner.home / "ledger.db", session))
        learner.kill()
        assert asked.exception(60) is not None
    assert holding(learner.home, CANARY)
    learner.start()
    wait_until(lambda: holding(learner.home, CANARY) == {})
    assert skills_in_force(learner) == set()
    assert session not in {one["id"] for one in learner.get("/api/sessions")["sessions"]}
    assert not is_noted(learner.home / "ledger.db", session)


def test_an_answer_under_way_when_its_session_is_forgotten_is_not_recorded(
    learner: Program, teacher: Teacher
) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    async def answer_late(prompt: str) -> str:
        if CANARY in prompt:
            is_asked.set()
            await asyncio.to_thread(may_answer.wait, 60)
        return f"The {CANARY} report is done." if CANARY in prompt else "done"

    teacher.work = answer_late
    talk = Talk(learner, **{"x-session-id": "late"})
    talk.say("Hello.")
    session = session_of(talk)
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(talk.say, f"Write the {CANARY} report.")
        assert is_asked.wait(60)
        report = forget(learner, session)
        may_answer.set()
        assert CANARY in answered.result(60)
    assert report["turns"] == 1
    assert learner.get("/api/sessions")["sessions"] == []
    assert holding(learner.home, CANARY) == {}
    again = Talk(learner, **{"x-session-id": "late"})
    again.say("Hello again.")
    assert [one["id"] for one in learner.get("/api/sessions")["sessions"]] == [session_of(again)]


def test_a_restored_backup_holds_no_forgotten_word_before_the_next_start(
    learner: Program, tmp_path: Path
) -> None:
    talk = Talk(learner)
    talk.say(WORDS)
    learner.wait_for("/api/skills", lambda facts: len(facts["skills"]) == 1, 20)
    backup = tmp_path / "backup.db"
    assert learner.command("store", "backup", str(backup)).returncode == 0
    forget(learner, session_of(talk))
    assert learner.stop() == 0
    assert holding(learner.home, CANARY) == {}
    done = learner.command("store", "restore", str(backup), "--yes", "--json")
    assert (done.returncode, json.loads(done.stdout)["forgotten_again"]) == (
        0,
        [session_of(talk)],
    ), done.stderr
    assert holding(learner.home, CANARY) == {}
    assert json.loads(done.stdout)["purged"] is True


def test_a_large_database_is_purged_by_forgetting_again_when_the_proxy_is_stopped(
    learner: Program,
) -> None:
    talk = Talk(learner)
    talk.say(f"Write the {CANARY} report.")
    with closing(sqlite3.connect(learner.home / "ledger.db")) as connection, connection:
        connection.execute("CREATE TABLE filler (body BLOB)")
        connection.execute("INSERT INTO filler VALUES (zeroblob(?))", (257 << 20,))
    with closing(sqlite3.connect(learner.home / "ledger.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    asked = learner.command("sessions", "forget", session_of(talk), "--yes")
    assert "Stop the proxy and run this command again." in asked.stdout, asked.stderr
    assert learner.stop() == 0
    with closing(sqlite3.connect(learner.home / "ledger.db")) as connection, connection:
        connection.execute("DROP TABLE filler")
    size = (learner.home / "ledger.db").stat().st_size
    again = learner.command("sessions", "forget", session_of(talk), "--yes")
    assert again.stdout.startswith(
        f"{session_of(talk)} was already forgotten. Deleted what was left of it"
    ), again.stderr
    assert (learner.home / "ledger.db").stat().st_size < size / 10
    assert holding(learner.home, CANARY) == {}
    assert (
        "there is no session"
        in learner.command("sessions", "forget", session_of(talk), "--yes").stderr
    )
