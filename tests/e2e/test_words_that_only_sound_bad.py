"""A wish to undo nothing and a changed mind, through the whole program: neither counts as a failure, or as praise."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_fast_loop import Talk, program_of
from tests.support.program import Program
from tests.support.teacher import PASS, Teacher


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[Program]:
    teacher = Teacher(work=lambda prompt: "I made the header blue.", judge=lambda prompt: PASS)
    teacher.start()
    running = program_of(teacher, tmp_path / "home").start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]
    teacher.stop()


def test_a_wish_to_undo_nothing_is_no_failure_and_a_changed_mind_is_left_to_the_judge(learner: Program) -> None:
    sources = {}
    for said in ("Undo nothing, just tell me which files you touched.", "I changed my mind, it should be green."):
        talk = Talk(learner)
        talk.say("Make the header blue.")
        turn = talk.turn
        talk.say(said)
        verdict = learner.wait_for(f"/api/turns/{turn}", lambda facts: facts["verdict"], 30)["verdict"]
        assert verdict["outcome"] != "fail", said
        sources[said] = verdict["source"]
    assert sources["I changed my mind, it should be green."] != "detector"
