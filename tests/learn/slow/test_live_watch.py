"""A canary among live sessions: verdicts promote it, or take it back."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from metaclaw.domain.ids import SessionId
from metaclaw.domain.policy import PolicyState, Weights
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.learn.slow.serving_versions import BY_A_PERSON
from metaclaw.train.live import LiveRuling
from tests.learn.slow.stage import STARS, Stage

pytestmark = pytest.mark.anyio


class Live:
    """People at work with two versions, each of which passes so often."""

    def __init__(
        self, folder: Path, serving_passes: float, canary_passes: float, share: float = 0.2
    ) -> None:
        self.stage = Stage(folder, {"canary_share": share})
        self.passes = {0: serving_passes, 1: canary_passes}
        self.watch = self.stage.training.watch
        self.chance = random.Random(3)
        self.sessions = 0

    async def begin(self) -> None:
        self.stage.policies.publish(Weights("toy", "nowhere"), parent=0, base="toy")
        await self.stage.versions.canary(1, None, "a test")

    def talk(self, sessions: int) -> int:
        """So many sessions of one turn; how many of them the canary answered."""
        stage, answered = self.stage, 0
        for _ in range(sessions):
            self.sessions += 1
            turn = stage.turn(Scope(), STARS)
            session = SessionId(f"live_{self.sessions}")
            version = stage.slot.pick(session)
            answered += version == stage.slot.serving.canary
            told = tuple(
                name for name in turn.stamp.skills if name not in stage.slot.absorbed(version)
            )
            turn = replace(
                turn,
                session=session,
                stamp=replace(turn.stamp, policy_version=version, skills=told),
            )
            stage.turn_writer.write([turn])
            outcome = Outcome.PASS if self.chance.random() < self.passes[version] else Outcome.FAIL
            fault = Fault.AGENT if outcome is Outcome.FAIL else None
            stage.verdicts.record_verdict(
                Verdict(turn.id, outcome, Source.CHECK, None, fault=fault)
            )
        return answered


async def test_a_canary_that_makes_things_worse_is_taken_back_within_fifty_of_its_turns(
    tmp_path: Path,
) -> None:
    live = Live(tmp_path, serving_passes=0.8, canary_passes=0.2)
    await live.begin()
    answered = 0
    while live.stage.slot.serving.canary is not None and answered < 50:
        answered += live.talk(10)
        report = await live.watch.look()
    version = live.stage.policies.version(1)
    assert version is not None
    assert version.state is PolicyState.ROLLED_BACK
    assert report is not None
    assert report.is_worse
    assert live.stage.slot.serving.version == 0


async def test_a_canary_that_is_no_worse_comes_to_serve_everybody(tmp_path: Path) -> None:
    live = Live(tmp_path, serving_passes=0.8, canary_passes=0.85)
    await live.begin()
    for _ in range(40):
        live.talk(10)
        await live.watch.look()
        if live.stage.slot.serving.canary is None:
            break
    assert live.stage.slot.serving.version == 1
    version = live.stage.policies.version(1)
    assert version is not None
    assert version.state is PolicyState.SERVING


async def test_a_canary_with_few_turns_is_left_to_go_on(tmp_path: Path) -> None:
    live = Live(tmp_path, serving_passes=0.8, canary_passes=0.8)
    await live.begin()
    live.talk(20)
    report = await live.watch.look()
    assert report is not None
    assert report.ruling is LiveRuling.WAIT
    assert live.stage.slot.serving.canary == 1


async def test_without_a_canary_there_is_nothing_to_watch(tmp_path: Path) -> None:
    live = Live(tmp_path, serving_passes=0.8, canary_passes=0.8)
    assert await live.watch.look() is None


async def test_a_skill_that_only_one_of_the_two_is_told_says_nothing_about_the_canary(
    tmp_path: Path,
) -> None:
    """The serving version comes to have absorbed it during the trial: from then on all turns that
    hold it are the canary's.
    """
    live = Live(tmp_path, serving_passes=0.3, canary_passes=0.3)
    stage = live.stage
    for parent in (0, 1):
        stage.policies.publish(Weights("toy", "nowhere"), parent=parent, base="toy")
    await stage.versions.promote(1, "a test")
    await stage.versions.canary(2, None, "a test")
    live.passes = {1: 0.3, 2: 0.3}
    live.talk(5)
    stage.policies.absorb(1, [STARS.name])
    await stage.versions.refresh()
    live.talk(150)
    report = live.watch._report(2, 1)
    assert not report.is_worse
    assert f"with {STARS.name}" not in report.reason


class Alone(Live):
    """People at work with one version after the other."""

    def __init__(self, folder: Path, before: float, after: float) -> None:
        super().__init__(folder, before, after, share=0.0)

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
    live = Alone(tmp_path, before=0.85, after=0.2)
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
    live = Alone(tmp_path, before=0.8, after=0.8)
    live.talk(60)
    await live.serve("passed the gate")
    assert await live.look_for(100) == 1
    assert live.watch.notice is None


async def test_without_turns_from_before_nothing_is_shown(tmp_path: Path) -> None:
    live = Alone(tmp_path, before=0.8, after=0.1)
    await live.serve("passed the gate")
    assert await live.look_for(50) == 1


async def test_a_version_that_a_person_promoted_is_left_to_them(tmp_path: Path) -> None:
    live = Alone(tmp_path, before=0.85, after=0.1)
    live.talk(60)
    await live.serve(BY_A_PERSON)
    assert await live.look_for(50) == 1
