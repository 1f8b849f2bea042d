"""A candidate is tried on what it was made from, on what failed alike, and on what passed and looks
alike; nobody else's turns.
"""

from collections.abc import Awaitable, Callable

import pytest

from metaclaw.domain.candidate import Change, ProbeKind, Proposal
from metaclaw.domain.ids import TurnId
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Fault, Outcome
from tests.learn.learning import ADA, DATES, TASK, ScriptedLearning, Talk, learned_skill

pytestmark = pytest.mark.anyio
NewLearning = Callable[..., Awaitable[ScriptedLearning]]


async def turn(
    learning: ScriptedLearning,
    outcome: Outcome,
    task: str = TASK.format(1),
    scope: Scope = ADA,
    fault: Fault = Fault.AGENT,
) -> TurnId:
    made = await Talk(learning, scope).say(task)
    learning.say(made, outcome, fault=fault)
    return made


def proposal(*support: TurnId, scope: str | None = "user:ada") -> Proposal:
    skill = learned_skill(
        "iso-release-dates", trigger=DATES["trigger"], body=DATES["body"], scope=scope
    )
    return Proposal(skill, Change.NEW, (), support, "dates", "world/evolver")


def chosen(learning: ScriptedLearning, candidate: Proposal, kind: ProbeKind) -> list[TurnId]:
    return [probe.turn for probe in learning.probes.choose(candidate) if probe.kind is kind]


async def test_the_failures_it_was_made_from_come_first_then_their_like(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    mine = [await turn(learning, Outcome.FAIL) for _ in range(2)]
    like = await turn(learning, Outcome.FAIL, "Add the release date to the changelog.")
    await turn(learning, Outcome.FAIL, "Water the plants.")
    assert chosen(learning, proposal(*mine), ProbeKind.FAILING) == [*mine, like]


async def test_passing_turns_are_taken_by_likeness(new_learning: NewLearning) -> None:
    learning = await new_learning()
    mine = await turn(learning, Outcome.FAIL)
    little = await turn(learning, Outcome.PASS, "When is the release?")
    much = await turn(learning, Outcome.PASS, TASK.format(7))
    await turn(learning, Outcome.PASS, "Water the plants.")
    await turn(learning, Outcome.UNKNOWN, TASK.format(8))
    assert chosen(learning, proposal(mine), ProbeKind.PASSING) == [much, little]


async def test_the_turn_of_an_instruction_stands_in_where_nothing_failed(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    said = await Talk(learning).say("From now on, always write release dates as YYYY-MM-DD.")
    assert chosen(learning, proposal(said), ProbeKind.FAILING) == [said]
    failed = await turn(learning, Outcome.FAIL)
    assert chosen(learning, proposal(failed, said), ProbeKind.FAILING) == [failed]


async def test_what_the_environment_did_is_nothing_to_try_a_skill_on(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    mine = await turn(learning, Outcome.FAIL)
    await turn(learning, Outcome.FAIL, fault=Fault.ENVIRONMENT)
    assert chosen(learning, proposal(mine), ProbeKind.FAILING) == [mine]


async def test_nobodys_skill_is_tried_on_another_persons_turns(new_learning: NewLearning) -> None:
    learning = await new_learning(teams={"web": ("ada", "bob")})
    mine = await turn(learning, Outcome.FAIL)
    bobs = await turn(learning, Outcome.PASS, TASK.format(2), Scope("bob"))
    cays = await turn(learning, Outcome.PASS, TASK.format(2), Scope("cay"))
    assert chosen(learning, proposal(mine), ProbeKind.PASSING) == []
    assert chosen(learning, proposal(mine, scope="team:web"), ProbeKind.PASSING) == [bobs]
    assert set(chosen(learning, proposal(mine, scope=None), ProbeKind.PASSING)) == {bobs, cays}


async def test_forgotten_turns_are_not_probes(new_learning: NewLearning) -> None:
    learning = await new_learning()
    talk = Talk(learning)
    gone = await talk.say(TASK.format(1))
    learning.say(gone, Outcome.FAIL)
    mine = await turn(learning, Outcome.FAIL, "Water the plants.")
    assert chosen(learning, proposal(mine), ProbeKind.FAILING) == [mine, gone]
    await learning.owner.forget(talk.session)
    learning.probes.forget()
    assert chosen(learning, proposal(mine, gone), ProbeKind.FAILING) == [mine]


async def test_there_are_no_more_than_eight_of_a_kind(new_learning: NewLearning) -> None:
    learning = await new_learning()
    mine = [await turn(learning, Outcome.FAIL) for _ in range(10)]
    for _ in range(10):
        await turn(learning, Outcome.PASS)
    assert chosen(learning, proposal(*mine), ProbeKind.FAILING) == mine[:8]
    assert len(chosen(learning, proposal(*mine), ProbeKind.PASSING)) == 8
