"""The fast loop on the real program, over HTTP: it fails once, it learns, it does not fail like
that again.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.program import PATIENCE_S, Program
from tests.support.teacher import FAIL, NOTHING, PASS, Teacher, prompt_text

TASK = "Write the changelog entry for the release of version {} with its release date."
CORRECTION = "No, that's wrong. Release dates in the changelog must be written as YYYY-MM-DD."
UNRELATED = "Explain to my daughter how photosynthesis works in plants."
SKILL = {
    "name": "iso-release-dates",
    "trigger": "When writing a changelog entry or release notes that contain a release date",
    "body": (
        "1. Find every release date in the entry.\n2. Write each as YYYY-MM-DD.\n3. Check the"
        " finished entry for other formats.\n\nDo not write dates as day/month/year or with month"
        " names."
    ),
    "category": "writing",
}


def work(prompt: str) -> str:
    if "photosynthesis" in prompt.rsplit("\n", 1)[-1]:
        return "Plants make sugar from light."
    return "Released on 2026-02-01." if "YYYY-MM-DD" in prompt else "Released on 01/02/2026."


def program_of(teacher: Teacher, home: Path, gate: str = "lint", more: str = "") -> Program:
    return Program(
        home,
        f"""
[[providers]]
name = "world"
kind = "openai"
base_url = "{teacher.url}/v1"
api_key = "sk-world"
wires = ["chat"]

[skills]
gate = "{gate}"

[judge]
provider = "world"
model = "judge-model"

[evolver]
provider = "world"
model = "evolver-model"
min_failures = 1
{more}
""",
    )


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


class Talk:
    """One agent's conversation through the proxy."""

    def __init__(self, program: Program, **headers: str) -> None:
        self.program = program
        self.headers = {**program.auth, **headers}
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": "You are a careful assistant."}
        ]
        self.last: httpx.Response | None = None

    def say(self, words: str) -> str:
        self.messages.append({"role": "user", "content": words})
        body = {"model": "worker", "messages": self.messages}
        self.last = httpx.post(
            f"{self.program.url}/v1/chat/completions",
            json=body,
            headers=self.headers,
            timeout=PATIENCE_S,
        )
        assert self.last.status_code == 200, self.last.text
        answer: str = self.last.json()["choices"][0]["message"]["content"]
        self.messages.append({"role": "assistant", "content": answer})
        return answer

    @property
    def placed(self) -> list[str]:
        assert self.last is not None
        return [name for name in self.last.headers["x-metaclaw-skills"].split(",") if name]

    @property
    def turn(self) -> str:
        assert self.last is not None
        return self.last.headers["x-metaclaw-turn"]

    def end(self) -> None:
        assert self.last is not None
        session = self.last.headers["x-metaclaw-session"]
        httpx.post(
            f"{self.program.url}/api/sessions/{session}/end",
            headers=self.program.auth,
            timeout=PATIENCE_S,
        ).raise_for_status()


def wait_until(is_so: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def skills_in_force(program: Program) -> set[str]:
    return {skill["name"] for skill in program.get("/api/skills")["skills"]}


def test_a_corrected_failure_becomes_a_skill_that_the_next_matching_request_carries(
    learner: Program, teacher: Teacher
) -> None:
    teacher.evolve = lambda prompt: {"skills": [SKILL]}
    first = Talk(learner)
    assert first.say(TASK.format(3)) == "Released on 01/02/2026."
    failed_turn = first.turn
    first.say(CORRECTION)
    learner.wait_for(
        "/api/skills",
        lambda facts: [skill["name"] for skill in facts["skills"]] == ["iso-release-dates"],
    )

    second = Talk(learner)
    assert second.say(TASK.format(4)) == "Released on 2026-02-01."
    assert second.placed == ["iso-release-dates"]
    unrelated = Talk(learner)
    unrelated.say(UNRELATED)
    assert unrelated.placed == []
    assert "YYYY-MM-DD" not in prompt_text(teacher.asked(None)[-1].json)

    failed = learner.get(f"/api/turns/{failed_turn}")
    assert failed["verdict"]["outcome"] == "fail"
    assert failed["role"] == "support"
    now = learner.get(f"/api/turns/{second.turn}")
    assert now["role"] == "query"
    assert now["generation"] > failed["generation"]
    evidence = prompt_text(teacher.asked("evolve")[0].json)
    assert "YYYY-MM-DD" in evidence
    assert TASK.format(3) in evidence


def test_a_session_without_a_failure_makes_no_skill(learner: Program, teacher: Teacher) -> None:
    teacher.evolve = lambda prompt: {"skills": [SKILL]}
    talk = Talk(learner)
    for number in range(4):
        talk.say(TASK.format(number))
        talk.say("Thanks, that is exactly right!")
    talk.end()
    learner.wait_for("/api/status", lambda facts: facts["counts"]["verdicts"]["pass"] >= 6)
    assert learner.get("/api/status")["counts"]["verdicts"]["fail"] == 0
    assert skills_in_force(learner) == set()
    assert teacher.asked("evolve") == []


def test_a_judge_that_is_down_makes_no_skill(learner: Program, teacher: Teacher) -> None:
    teacher.judge = lambda prompt: 500
    teacher.evolve = lambda prompt: {"skills": [SKILL]}
    for number in range(3):
        talk = Talk(learner)
        talk.say(f"Please prepare report number {number} about the state of our harbour cranes.")
        talk.end()
    learner.wait_for("/api/status", lambda facts: facts["counts"]["verdicts"]["unknown"] >= 3)
    assert teacher.asked("judge") != []
    assert teacher.asked("evolve") == []
    assert skills_in_force(learner) == set()


def test_a_judge_that_says_fail_teaches_when_nothing_else_could_tell(
    learner: Program, teacher: Teacher
) -> None:
    teacher.judge = lambda prompt: FAIL
    teacher.evolve = lambda prompt: {"skills": [SKILL]}
    talk = Talk(learner)
    talk.say(TASK.format(9))
    talk.end()
    learner.wait_for("/api/skills", lambda facts: facts["skills"] != [])
    assert learner.get(f"/api/turns/{talk.turn}")["verdict"]["votes"] == {
        "pass": 0,
        "fail": 3,
        "unknown": 0,
        "model": "world/judge-model",
    }


def test_what_a_person_says_outranks_the_judge(learner: Program, teacher: Teacher) -> None:
    teacher.judge = lambda prompt: PASS
    teacher.evolve = lambda prompt: {"skills": [SKILL]}
    talk = Talk(learner)
    talk.say(TASK.format(5))
    said = {
        "turn": talk.turn,
        "outcome": "fail",
        "comment": "Release dates in the changelog must be YYYY-MM-DD.",
    }
    answer = httpx.post(
        f"{learner.url}/api/feedback", json=said, headers=learner.auth, timeout=PATIENCE_S
    )
    assert answer.status_code == 200
    assert answer.json()["verdict"]["source"] == "user"
    learner.wait_for("/api/skills", lambda facts: facts["skills"] != [])
    talk.end()
    assert learner.get(f"/api/turns/{talk.turn}")["verdict"]["source"] == "user"


def test_two_people_with_contrary_rules_each_keep_their_own(
    learner: Program, teacher: Teacher
) -> None:
    alice, bob = {"x-user-id": "alice"}, {"x-user-id": "bob"}
    Talk(learner, **alice).say("From now on, always write changelog release dates as YYYY-MM-DD.")
    Talk(learner, **bob).say("From now on, always write changelog release dates as DD.MM.YYYY.")
    learner.wait_for("/api/skills", lambda facts: len(facts["skills"]) == 2)
    Talk(learner, **alice).say(TASK.format(6))
    seen_by_alice = prompt_text(teacher.asked(None)[-1].json)
    Talk(learner, **bob).say(TASK.format(6))
    seen_by_bob = prompt_text(teacher.asked(None)[-1].json)
    Talk(learner, **{"x-user-id": "carol"}).say(TASK.format(6))
    seen_by_carol = prompt_text(teacher.asked(None)[-1].json)
    assert ("YYYY-MM-DD" in seen_by_alice, "DD.MM.YYYY" in seen_by_alice) == (True, False)
    assert ("YYYY-MM-DD" in seen_by_bob, "DD.MM.YYYY" in seen_by_bob) == (False, True)
    assert ("YYYY-MM-DD" in seen_by_carol, "DD.MM.YYYY" in seen_by_carol) == (False, False)


def test_an_evolver_with_nothing_to_say_is_not_asked_again_about_the_same_failures(
    learner: Program, teacher: Teacher
) -> None:
    teacher.evolve = lambda prompt: NOTHING
    talk = Talk(learner)
    talk.say(TASK.format(3))
    talk.say(CORRECTION)
    talk.say("Thanks, good.")
    other = Talk(learner)
    other.say(UNRELATED)
    other.say("Thanks!")
    learner.wait_for("/api/status", lambda facts: facts["counts"]["verdicts"]["pass"] >= 2)
    wait_until(lambda: teacher.asked("evolve"))
    time.sleep(1)
    assert len(teacher.asked("evolve")) == 1
    assert skills_in_force(learner) == set()


def test_a_skill_that_was_learned_can_be_taken_back_and_put_back_at_once(
    learner: Program, teacher: Teacher
) -> None:
    teacher.evolve = lambda prompt: {"skills": [SKILL]}
    talk = Talk(learner)
    talk.say(TASK.format(3))
    talk.say(CORRECTION)
    facts = learner.wait_for("/api/skills", lambda facts: facts["skills"] != [])
    learned = facts["generation"]
    reverted = learner.command("skills", "revert", str(learned - 1))
    assert reverted.returncode == 0, reverted.stderr
    assert skills_in_force(learner) == set()
    after = Talk(learner)
    after.say(TASK.format(4))
    assert after.placed == []
    assert learner.command("skills", "revert", str(learned)).returncode == 0
    again = Talk(learner)
    again.say(TASK.format(5))
    assert again.placed == ["iso-release-dates"]


def test_what_was_learned_survives_a_kill(learner: Program, teacher: Teacher) -> None:
    teacher.evolve = lambda prompt: {"skills": [SKILL]}
    talk = Talk(learner)
    talk.say(TASK.format(3))
    turn = talk.turn
    talk.say(CORRECTION)
    facts = learner.wait_for("/api/skills", lambda facts: facts["skills"] != [])
    learner.kill()
    learner.start()
    assert learner.get("/api/status")["generation"] == facts["generation"]
    after = Talk(learner)
    after.say(TASK.format(4))
    assert after.placed == ["iso-release-dates"]
    assert learner.get(f"/api/turns/{turn}")["role"] == "support"


def test_forgetting_a_session_takes_back_what_it_taught(learner: Program, teacher: Teacher) -> None:
    teacher.evolve = lambda prompt: {"skills": [SKILL]}
    talk = Talk(learner)
    talk.say(TASK.format(3))
    talk.say(CORRECTION)
    learner.wait_for("/api/skills", lambda facts: facts["skills"] != [])
    assert talk.last is not None
    session = talk.last.headers["x-metaclaw-session"]
    forgotten = learner.command("sessions", "forget", session, "--yes", "--json")
    assert forgotten.returncode == 0, forgotten.stderr
    assert skills_in_force(learner) == set()
    assert (
        httpx.get(f"{learner.url}/api/sessions/{session}", headers=learner.auth).status_code == 404
    )


def test_a_secret_in_a_conversation_reaches_neither_judge_nor_evolver_nor_skill(
    learner: Program, teacher: Teacher
) -> None:
    secret = "sk-proj-" + "Zk3vQ9xT7bLm2Rw8Yc5N" * 2
    teacher.judge = lambda prompt: FAIL
    teacher.evolve = lambda prompt: {
        "skills": [{**SKILL, "body": SKILL["body"] + f"\nUse the key {secret}."}]
    }
    talk = Talk(learner)
    talk.say(TASK.format(3) + f" The key is {secret}.")
    talk.say(CORRECTION)
    second = Talk(learner)
    second.say(TASK.format(4) + f" The key is {secret}.")
    second.end()
    wait_until(lambda: teacher.asked("judge") and teacher.asked("evolve"))
    assert all(
        secret not in seen.body.decode()
        for seen in teacher.asked("judge") + teacher.asked("evolve")
    )
    assert skills_in_force(learner) == set()
    assert secret not in str(learner.get("/api/candidates"))
    assert secret not in learner.log.read_text()


def test_feedback_on_one_thing_leaves_the_persons_rules_as_they_said_them(
    learner: Program, teacher: Teacher
) -> None:
    teacher.evolve = lambda prompt: {
        "skills": [
            {
                **SKILL,
                "name": "never-use-emojis",
                "replaces": "never-use-emojis",
                "trigger": "When writing release notes for people",
                "body": "Never use emojis. Release notes must be bullets.",
                "check": "pattern: ^- ",
            }
        ]
    }
    Talk(learner).say("Never use emojis.")
    before = learner.wait_for("/api/rules", lambda facts: len(facts["rules"]) == 1)["rules"]
    assert before[0]["name"] == "never-use-emojis"
    talk = Talk(learner)
    talk.say("Write the release notes without emojis.")
    given = learner.command("feedback", "--last", "fail", "release notes must be bullets")
    assert given.returncode == 0, given.stderr
    learner.wait_for(
        "/api/candidates?standing=rejected", lambda facts: len(facts["candidates"]) == 1
    )
    assert "never-use-emojis (a rule that the person stated; may not be edited)" in prompt_text(
        teacher.asked("evolve")[0].json
    )
    after = learner.get("/api/rules")["rules"]
    fields = ("name", "kind", "text", "when", "check", "scope", "source", "author")
    assert [{key: one.get(key) for key in fields} for one in after] == [
        {key: one.get(key) for key in fields} for one in before
    ]
    (candidate,) = learner.get("/api/candidates?standing=rejected")["candidates"]
    assert (candidate["change"], candidate["skill"] != "never-use-emojis") == ("new", True)
    assert "in your own words" not in learner.command("candidates", "list").stdout
