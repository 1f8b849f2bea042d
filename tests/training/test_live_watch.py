"""A version among live sessions: verdicts take it back, and the end of a rule that it keeps."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.policy import GateReport, Habit, PolicyState, Weights
from metaclaw.domain.skill import Rule
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.training.serving_versions import BY_A_PERSON
from tests.support.cases import each
from tests.training.stage import STARS, Stage

pytestmark = pytest.mark.anyio


class Live:
    """People at work with one version after the other, each of which passes so often."""

    def __init__(self, folder: Path, before: float, after: float) -> None:
        self.stage = Stage(folder)
        self.passes = {0: before, 1: after}
        self.watch = self.stage.training.watch
        self.chance = random.Random(3)
        self.sessions = 0

    def talk(self, sessions: int) -> None:
        """So many sessions of one turn."""
        stage = self.stage
        for _ in range(sessions):
            self.sessions += 1
            turn = stage.turn(Scope(), STARS)
            session = SessionId(f"live_{self.sessions}")
            version = stage.slot.serving.version
            turn = replace(turn, session=session, stamp=replace(turn.stamp, policy_version=version))
            stage.turn_writer.write([turn])
            outcome = Outcome.PASS if self.chance.random() < self.passes[version] else Outcome.FAIL
            fault = Fault.AGENT if outcome is Outcome.FAIL else None
            stage.verdicts.record_verdict(
                Verdict(turn.id, outcome, Source.CHECK, None, fault=fault)
            )

    async def serve(self, reason: str) -> None:
        self.stage.policies.publish(Weights("toy", "nowhere"), parent=0, base="toy")
        await self.stage.versions.promote(1, reason)

    async def look_for(self, sessions: int) -> int:
        """What serves after so many sessions."""
        for _ in range(sessions // 5):
            self.talk(5)
            await self.watch.look()
        return self.stage.slot.serving.version


async def test_a_version_that_serves_everybody_and_fails_more_often_is_rolled_back(
    tmp_path: Path,
) -> None:
    live = Live(tmp_path, before=0.85, after=0.2)
    live.talk(60)
    await live.serve("passed the gate")
    assert await live.look_for(50) == 0
    version = live.stage.policies.version(1)
    assert version is not None
    assert version.state is PolicyState.ROLLED_BACK
    assert "fewer turns pass than before" in version.note
    assert live.watch.notice is not None
    assert live.watch.notice.startswith("version 1 was rolled back: fewer turns pass")


async def test_a_version_that_is_as_good_as_before_serves_on(tmp_path: Path) -> None:
    live = Live(tmp_path, before=0.8, after=0.8)
    live.talk(60)
    await live.serve("passed the gate")
    assert await live.look_for(100) == 1
    assert live.watch.notice is None


async def test_without_turns_from_before_nothing_is_shown(tmp_path: Path) -> None:
    live = Live(tmp_path, before=0.8, after=0.1)
    await live.serve("passed the gate")
    assert await live.look_for(50) == 1


async def test_a_version_that_a_person_promoted_is_left_to_them(tmp_path: Path) -> None:
    live = Live(tmp_path, before=0.85, after=0.1)
    live.talk(60)
    await live.serve(BY_A_PERSON)
    assert await live.look_for(50) == 1


SAY_SO = Rule(SkillName("say-so"), "always", "Say so.", applies_always=True, check="pattern: so")


@each(
    ("habit", "is_taken_back"),
    [
        (Habit(SAY_SO.name, 90.0, 5.0), True),
        (Habit(SAY_SO.name, 4.0, 3.0), False),
    ],
    ids=["learned", "it always did"],
)
async def test_a_rule_that_is_taken_back_takes_the_weights_back_that_keep_it_without_being_told(
    tmp_path: Path, habit: Habit, *, is_taken_back: bool
) -> None:
    live = Live(tmp_path, before=0.8, after=0.8)
    library = live.stage.library
    library.publish([SAY_SO], (), "a rule", by_person=True)
    report = GateReport(is_passed=True, reasons=(), habits=(habit,))
    policies = live.stage.policies
    policies.publish(Weights("toy", "nowhere"), parent=0, base="toy", report=report)
    await live.stage.versions.promote(1, "passed the gate", report)
    policies.publish(Weights("toy", "elsewhere"), parent=1, base="toy")
    await live.stage.versions.promote(2, "passed the gate")
    await live.watch.look()
    assert live.stage.slot.serving.version == 2

    library.publish([], [SAY_SO.name], "taken back", by_person=True)
    for _ in range(3):
        await live.watch.look()

    assert live.stage.slot.serving.version == (0 if is_taken_back else 2)
    told = live.watch.notice or ""
    assert ("keep say-so without being told, which was taken back" in told) is is_taken_back
