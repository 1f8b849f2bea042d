"""Names of learned skills, and what `status` says of those that were rejected and of checks that
cannot be read.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_fast_loop import (
    CORRECTION,
    SKILL,
    TASK,
    Talk,
    program_of,
    skills_in_force,
    work,
)
from tests.support.program import Program
from tests.support.teacher import Teacher

RULES = {
    "Always use uv pip 25 with py3 on x86.": "use-uv-pip-25-with-py3-on-x86",
    "From now on use the K8s v1 API and never v1beta1.": "use-the-k8s-v1-api-and-never-v1beta1",
    "Always run npx with node20 in ci2.": "run-npx-with-node20-in-ci2",
}


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    running = Teacher(work=work)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def learner(teacher: Teacher, tmp_path: Path) -> Iterator[Program]:
    running = program_of(teacher, tmp_path / "home").start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def test_rules_about_tools_with_numbers_are_learned_under_readable_names(learner: Program) -> None:
    for rule in RULES:
        Talk(learner, **{"X-User-Id": "ann"}).say(rule)
    Talk(learner, **{"X-User-Id": "bob"}).say(next(iter(RULES)))
    wanted = {*RULES.values(), "use-uv-pip-25-with-py3-on-x86-2"}
    learner.wait_for("/api/skills", lambda facts: len(facts["skills"]) >= len(wanted))
    assert skills_in_force(learner) == wanted


def test_status_says_what_was_rejected_and_why(learner: Program, teacher: Teacher) -> None:
    teacher.evolve = lambda prompt: {
        "skills": [SKILL | {"body": "1. Log in with the password hunter2-Xk9!\n2. Write the date."}]
    }
    talk = Talk(learner)
    talk.say(TASK.format(3))
    talk.say(CORRECTION)
    rejected = learner.wait_for(
        "/api/status", lambda facts: facts["learning"]["rejected"]["reasons"], 30
    )["learning"]["rejected"]
    assert rejected["reasons"] == {"it holds a secret": 1}
    (last,) = rejected["last"]
    assert (last["name"], last["reason"]) == ("iso-release-dates", "it holds a secret")
    assert "Log in with the password" in last["text"]
    assert "hunter2-Xk9" not in last["text"]
    words = learner.command("status", "--all").stdout
    assert "1 it holds a secret" in words
    assert "iso-release-dates" in words


@pytest.mark.parametrize("session", ["a", "1"])
def test_a_session_with_an_id_of_one_character_can_be_learned_from(
    learner: Program, teacher: Teacher, session: str
) -> None:
    teacher.evolve = lambda prompt: {"skills": [SKILL]}
    talk = Talk(learner, **{"X-Session-Id": session})
    talk.say(TASK.format(3))
    talk.say(CORRECTION)
    learner.wait_for("/api/skills", lambda facts: facts["skills"])
    assert skills_in_force(learner) == {"iso-release-dates"}


def test_a_check_that_cannot_be_read_is_told_by_status_doctor_and_skills_show(
    learner: Program,
) -> None:
    folder = learner.home / "skills" / "dates"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        "---\nname: dates\ndescription: When writing a date\ncheck: 'pattern:"
        " (unclosed'\n---\n\nWrite dates as YYYY-MM-DD.\n"
    )
    told = learner.wait_for("/api/status", lambda facts: facts["skills"]["broken_checks"], 30)[
        "skills"
    ]["broken_checks"]
    assert [one["name"] for one in told] == ["dates"]
    assert "(unclosed" in told[0]["reason"] or "unterminated" in told[0]["reason"]
    assert skills_in_force(learner) == {"dates"}
    for command in (("status",), ("doctor",), ("skills", "show", "dates")):
        assert "is not run:" in learner.command(*command).stdout, command


def test_a_check_that_fails_on_an_answer_is_told_by_status(learner: Program) -> None:
    folder = learner.home / "skills" / "dates"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        "---\nname: dates\ndescription: Always\nkind: rule\ncheck: |\n  program: |\n    raise"
        " LookupError('no such field')\n---\n\nWrite dates as YYYY-MM-DD.\n"
    )
    learner.wait_for("/api/skills", lambda facts: facts["skills"], 30)
    assert learner.get("/api/status")["skills"]["broken_checks"] == []
    Talk(learner, **{"X-Session-Id": "broken", "X-Session-Done": "true"}).say(TASK.format(3))
    (told,) = learner.wait_for("/api/status", lambda facts: facts["skills"]["broken_checks"], 60)[
        "skills"
    ]["broken_checks"]
    assert (told["name"], "no such field" in told["reason"]) == ("dates", True)
    assert (
        "The check of dates is not run: the program broke: LookupError: no such field"
        in learner.command("status").stdout
    )


def test_all_active_sessions_are_ended_at_once(learner: Program) -> None:
    for number in range(3):
        Talk(learner, **{"X-Session-Id": f"talk-{number}"}).say(TASK.format(number))
    Talk(learner, **{"X-Session-Id": "over", "X-Session-Done": "true"}).say(TASK.format(3))
    learner.wait_for("/api/status", lambda facts: facts["counts"]["active_sessions"] == 3)
    assert learner.command("sessions", "end", "--all").stdout == "Ended 3 sessions.\n"
    assert learner.get("/api/status")["counts"]["active_sessions"] == 0
    assert learner.command("sessions", "end", "--all").stdout == "Ended 0 sessions.\n"
    assert learner.command("sessions", "end", "--all", "talk-1").returncode == 2
