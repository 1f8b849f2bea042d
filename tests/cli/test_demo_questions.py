"""What `metaclaw demo` teaches: its check knows every right answer, and what is asked afterwards was not asked before."""

import json
import subprocess
import sys

from metaclaw.cli.demo_training import SKILL, Question, new_questions, work_questions
from metaclaw.domain.check import ProgramCheck
from metaclaw.skills import parse_skill
from metaclaw.skills.checks import parse_check


def grade(question: Question, said: str) -> float:
    check = parse_check(str(parse_skill(SKILL, "document-metadata").extra["check"]))
    assert isinstance(check, ProgramCheck)
    given = json.dumps({"messages": [], "task": question.text, "text": said, "calls": []})
    done = subprocess.run([sys.executable, "-I", "-c", check.source], input=given, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["score"])


def test_the_check_gives_one_to_the_right_answer_alone() -> None:
    questions = [*work_questions()[:4], *new_questions()[:4]]
    for question, other in zip(questions, reversed(questions), strict=True):
        assert grade(question, question.answer) == 1.0, question
        assert max(grade(question, other.answer), grade(question, f"{question.answer} {question.answer}")) < 0.5, question
    assert grade(questions[0], questions[0].answer[:-1]) > grade(questions[0], "Here is the metadata.")


def test_new_questions_share_no_thing_and_no_person_with_the_work() -> None:
    known = {word.strip("{},") for question in work_questions() for word in question.answer.split()}
    shared = {word.strip("{},") for question in new_questions() for word in question.answer.split()} & known
    assert {word for word in shared if not word.isdigit()} == {"about:", "by:", "rev:"}
