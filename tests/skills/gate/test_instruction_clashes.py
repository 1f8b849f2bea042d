"""Standing instructions as the template writes them: which take the place of which, which stand side by side."""

from dataclasses import replace

import pytest

from metaclaw.domain.candidate import Proposal, Standing
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.step import Step
from metaclaw.domain.turn import Scope, Stamp, TurnEnd
from metaclaw.skills.evolve import from_words, named_apart
from metaclaw.skills.gate import Gate, GateMode, IndexLibrary
from metaclaw.skills.index import SkillIndex

pytestmark = pytest.mark.anyio


def said(words: str, user: str = "anna") -> Proposal:
    step = Step(
        turn=TurnId("t"),
        session=SessionId("s"),
        scope=Scope(user),
        stamp=Stamp(0, 0, "", ()),
        model="m",
        task="",
        history=(),
        tools=(),
        answer=(),
        end=TurnEnd.COMPLETED,
        said_after=words,
    )
    (proposal,) = from_words(step)
    return proposal


async def standing(newer: Proposal, *known: Skill) -> tuple[Standing, tuple[str, ...]]:
    names = {skill.name: skill for skill in known}
    newer = replace(newer, skill=named_apart(newer.skill, names.get))  # as the program does before it asks the gate
    admission = await Gate(GateMode.LINT).admit(newer, IndexLibrary(SkillIndex().changed(known)))
    return admission.standing, admission.supersedes


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("From now on always answer in English.", "From now on always answer in German."),
        ("Always use tabs for indenting Python.", "Always use spaces for indenting Python."),
        ("Always use semicolons in TypeScript.", "Never use semicolons in TypeScript."),
        ("Never use emojis.", "Always use emojis."),
        ("From now on install packages with npm.", "From now on install packages with pnpm."),
        ("Always wrap lines at 80 columns.", "From now on wrap lines at 120 columns."),
        ("Always write times like 2026-03-16T09:30:00+08:00.", "Always write times like 2026-03-16T09:30:00+09:00."),
        ("Always start the server on port 8080.", "Always start the server on port 9090."),
    ],
)
async def test_a_newer_instruction_takes_the_place_of_a_contrary_older_one(older: str, newer: str) -> None:
    before = said(older).skill
    assert await standing(said(newer), before) == (Standing.ACCEPTED, (before.name,))


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("Always use tabs for indenting Python.", "Always use spaces for indenting YAML."),
        ("Always run the tests before a commit.", "Always run the linter before a commit."),
        ("From now on always answer in German.", "Never use emojis."),
        ("Always sign emails with Anna.", "Always use semicolons in TypeScript."),
        ("Never push to main.", "Never delete branches."),
        ("Always write commit messages in English.", "Always write the changelog in German."),
    ],
)
async def test_instructions_about_different_things_stand_side_by_side(older: str, newer: str) -> None:
    assert await standing(said(newer), said(older).skill) == (Standing.ACCEPTED, ())


async def test_users_with_contrary_instructions_each_keep_their_own() -> None:
    bens = said("From now on always answer in English.", "ben").skill
    assert await standing(said("From now on always answer in German."), bens) == (Standing.ACCEPTED, ())
