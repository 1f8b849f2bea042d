"""What `metaclaw demo` teaches and tells: its check knows every right answer, new questions are
new, and waiting is explained.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from metaclaw.domain.chat import Json
from metaclaw.domain.check import ProgramCheck
from metaclaw.skills import parse_check, parse_skill
from metaclaw_demo.command import usable_providers, why_not_noted
from metaclaw_demo.stage import Stage
from metaclaw_demo.training import (
    SKILL,
    Question,
    new_questions,
    state_in_words,
    work_questions,
)


def grade(question: Question, said: str) -> float:
    check = parse_check(str(parse_skill(SKILL, "document-metadata").check))
    assert isinstance(check, ProgramCheck)
    given = json.dumps({"messages": [], "task": question.text, "text": said, "calls": []})
    done = subprocess.run(
        [sys.executable, "-I", "-c", check.source],
        input=given,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout)["score"])


def test_the_check_gives_one_to_the_right_answer_alone() -> None:
    questions = [*work_questions()[:4], *new_questions()[:4]]
    for question, other in zip(questions, reversed(questions), strict=True):
        assert grade(question, question.answer) == 1.0, question
        assert (
            max(
                grade(question, other.answer),
                grade(question, f"{question.answer} {question.answer}"),
            )
            < 0.5
        ), question
    assert grade(questions[0], questions[0].answer[:-1]) > grade(
        questions[0], "Here is the metadata."
    )


def test_new_questions_share_no_thing_and_no_person_with_the_work() -> None:
    known = {word.strip("{},") for question in work_questions() for word in question.answer.split()}
    shared = {
        word.strip("{},") for question in new_questions() for word in question.answer.split()
    } & known
    assert {word for word in shared if not word.isdigit()} == {"about:", "by:", "rev:"}


def stage(home: Path, clock: Callable[[], float] = time.monotonic) -> Stage:
    return Stage(home, home, True, 1.0, None, None, (), clock=clock)


def test_progress_is_told_as_a_line_after_twenty_silent_seconds(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    told = stage(home, lambda: now)
    told.say("You are away.")
    for now in (5.0, 19.0, 21.0, 30.0, 45.0):
        told.progress(f"step {now:g}")
    assert capsys.readouterr().out.splitlines() == ["You are away.", "  step 21", "  step 45"]


def test_waiting_says_what_it_waits_for() -> None:
    closed: dict[str, Json] = {
        "open": False,
        "reason": "you were here 3 s ago",
        "objections": ["load 4.1"],
    }
    assert (
        state_in_words({"state": "waiting"}, closed)
        == "waiting; waiting for a window: you were here 3 s ago (the machine is busy: load 4.1)"
    )
    assert state_in_words({"state": "training", "step": 3, "steps": 18}, None).endswith(
        "step 3 of 18"
    )
    assert "paused: a request runs" in state_in_words(
        {"state": "training", "step": 3, "paused_reason": "a request runs"}, closed
    )


PROVIDER = (
    '[proxy]\napi_key = "mc-own"\n[[providers]]\nname = "mine"\nkind = "openai"\napi_key ='
    ' "env:OPENAI_API_KEY"\n'
)


def test_a_provider_whose_key_is_not_there_is_named_and_the_embedded_model_steps_in(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    (home / "config.toml").write_text(PROVIDER)
    for key in ("", "mc-own"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        assert usable_providers(stage(home)) == ""
        said = capsys.readouterr().out
        assert "Your provider mine is not asked" in said
        assert "OPENAI_API_KEY" in said
        assert "as with --embedded" in said
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-provider")
    assert 'name = "mine"' in usable_providers(stage(home))
    assert capsys.readouterr().out == ""


def test_the_hint_about_sure_phrases_is_for_those_who_need_it() -> None:
    hint = "Only sure phrases"
    assert hint in why_not_noted(has_provider=False)
    assert hint not in why_not_noted(has_provider=True)
