"""The law of stated rules: whatever an evolver writes, a person's rules and facts keep text,
situation, check, scope and origin.

The loops run on a real store and a real library, in every mode of the gate.
"""

import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Authorship, Fact, Rule, Skill
from metaclaw.domain.verdict import Outcome
from metaclaw.skills import GateMode
from metaclaw.store import open_database
from tests.learn.learning import (
    DATES,
    FAILED,
    PASSED,
    TASK,
    ScriptedLearning,
    Speaker,
    Talk,
    running,
)
from tests.support.depth import tries

SCOPES = ("user:ada", None)
STATED = (
    Rule(
        SkillName("never-use-emojis"),
        "always",
        "Never use emojis in a changelog entry.",
        scope="user:ada",
        applies_always=True,
        check="not: ✅",
        check_state="confirmed",
        source=TurnId("t_said"),
        author=Authorship.INSTRUCTION,
    ),
    Rule(
        SkillName("release-dates-are-short"),
        "When writing a changelog entry with its release date",
        "Write release dates as day/month/year.",
        author=Authorship.INSTRUCTION,
    ),
    Fact(
        SkillName("changelog-file"),
        "When writing a changelog entry",
        "The changelog is docs/changes.md.",
        scope="user:ada",
        source=TurnId("t_said"),
        author=Authorship.INSTRUCTION,
    ),
    Rule(
        SkillName("entries-are-short"),
        "When writing a changelog entry",
        "Two lines at most.",
    ),
)
NAMES = st.sampled_from([str(one.name) for one in STATED])
TEXTS = st.sampled_from(
    [
        *(one.body for one in STATED),
        DATES["body"],
        "Use emojis.",
        "Release notes must be bullets.\n\n- one\n- two",
    ]
)
written_skills = st.lists(
    st.fixed_dictionaries(
        {
            "name": NAMES | st.just("iso-release-dates"),
            "trigger": st.just(DATES["trigger"]) | TEXTS,
            "body": TEXTS,
        },
        optional={
            "replaces": NAMES | st.none(),
            "check": st.sampled_from(["not: 🎉", "pattern: ^- ", None]),
            "kind": st.sampled_from(["rule", "fact"]),
            "scope": st.just(None),
            "overrides": st.lists(NAMES, max_size=2),
            "examples": st.just(["Write the entry for release 4."]),
        },
    ),
    min_size=1,
    max_size=3,
)


def stated(learning: ScriptedLearning) -> list[Skill]:
    return [skill for skill in learning.library.view.skills if not skill.is_skill]


async def live_with(
    empty: Path, folder: Path, mode: GateMode, written: list[dict[str, Any]], comment: str
) -> tuple[list[Skill], list[Skill], list[Skill]]:
    """What was stated before and after an evolver answered, and the skills afterwards."""
    speakers = {
        "evolver": Speaker("world/evolver", lambda prompt: {"skills": written}),
        "judge": Speaker(
            "world/judge", lambda prompt: PASSED if "== The requirement" in prompt else FAILED
        ),
    }
    async with running(empty, folder, gate=mode, **speakers) as learning:
        learning.library.publish(STATED, (), "a person said so", by_person=True)
        before = stated(learning)
        assert len(before) == len(STATED)
        turn = await Talk(learning).say(TASK.format(1))
        await learning.owner.feedback(turn, Outcome.FAIL, comment)
        await learning.live()
        await learning.tend()
        assert learning.evolver is not None
        assert learning.evolver.asked
        skills = [skill for skill in learning.library.view.skills if skill.is_skill]
        return before, stated(learning), skills


@pytest.fixture(scope="module")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "ledger.db"
    open_database(f"sqlite:///{path}").close()
    return path


@given(mode=st.sampled_from(GateMode), written=written_skills, comment=TEXTS)
@settings(max_examples=tries(12, nightly=100), deadline=None)
def test_no_answer_of_an_evolver_changes_what_a_person_stated(
    empty_ledger: Path, mode: GateMode, written: list[dict[str, Any]], comment: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        before, after, skills = anyio.run(
            live_with, empty_ledger, Path(folder), mode, written, comment
        )
    assert after == before
    assert not any(skill.overrides for skill in skills)
