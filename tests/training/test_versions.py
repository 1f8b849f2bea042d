"""Which weights serve: loaded, then written down, then flipped; and back in one step."""

from pathlib import Path

import pytest
from anyio import wait_all_tasks_blocked

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import Serving, Weights
from metaclaw.errors import BackendDownError, TrainingError, WeightsLostError
from metaclaw.store import LedgerReader, PolicyFiles, RefusedError, SqlPolicies, open_database
from metaclaw.training.serving_versions import Versions
from metaclaw.upstream import PolicySlot

pytestmark = pytest.mark.anyio


class Host:
    """Serves what can be loaded; what is broken cannot."""

    def __init__(
        self, broken: frozenset[int] = frozenset(), reason: type[TrainingError] = WeightsLostError
    ) -> None:
        self._broken = broken
        self._reason = reason
        self._loaded: set[int] = set()
        self.loads: list[int] = []
        self.asked = 0

    @property
    def loaded(self) -> frozenset[int]:
        return frozenset(self._loaded)

    async def load(self, version: int, weights: Weights) -> None:
        self.asked += 1
        if version in self._broken:
            raise self._reason(f"{weights.adapter} is broken")
        self.loads.append(version)
        self._loaded.add(version)

    async def unload(self, version: int) -> None:
        self._loaded.discard(version)

    def mend(self) -> None:
        self._broken = frozenset()

    def turn_away(self) -> None:
        """It is there, and cannot use what is broken."""
        self._reason = WeightsLostError


class Stage:
    """A real database, a slot, a host, and versions trained one after the other."""

    def __init__(self, path: Path, host: Host, changed: frozenset[str] = frozenset()) -> None:
        self.database = open_database(f"sqlite:///{path / 'ledger.db'}")
        self.policies = SqlPolicies(self.database)
        self.slot = PolicySlot("embedded")
        self.host = host
        self.now_s = 0.0
        self.versions = Versions(
            policies=self.policies,
            files=PolicyFiles(self.database, path),
            slot=self.slot,
            host=host,
            is_same=lambda name, generation: name not in changed,
            now=lambda: self.now_s,
        )

    def trained(self, absorbed: tuple[str, ...] = ()) -> int:
        parent = max((one.number for one in self.policies.versions()), default=0)
        names = [SkillName(name) for name in absorbed]
        return self.policies.publish(
            Weights("embedded", f"/policies/{parent + 1}"),
            parent=parent,
            base="smol",
            absorbed=names,
        ).number

    async def look(self, after_s: float) -> None:
        """What the loop does every few seconds."""
        self.now_s += after_s
        if self.versions.has_lost_some:
            await self.versions.restore()

    def states(self) -> list[str]:
        """Of all versions, oldest first."""
        return [one.state.value for one in reversed(self.policies.versions())]

    def reasons(self) -> list[tuple[str, str]]:
        """What events tell of moves, and why."""
        events = LedgerReader(self.database).events()
        told = [event.data for event in events if event.kind == "policy"]
        return [(str(one["action"]), str(one["reason"])) for one in told if isinstance(one, dict)]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, Host())


async def test_a_promoted_version_answers_everybody_from_the_next_request_on(stage: Stage) -> None:
    number = stage.trained()
    await stage.versions.promote(number, "better")
    assert stage.slot.serving.version == number


async def test_a_version_that_cannot_be_loaded_is_not_promoted_and_nothing_changes(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, Host(broken=frozenset({2})))
    await stage.versions.promote(stage.trained(), "better")
    with pytest.raises(TrainingError, match="broken"):
        await stage.versions.promote(stage.trained(), "better still")
    assert stage.slot.serving.version == 1
    assert stage.policies.serving().version == 1


async def test_going_back_needs_no_loading(stage: Stage) -> None:
    await stage.versions.promote(stage.trained(), "better")
    await stage.versions.promote(stage.trained(), "better still")
    loads = list(stage.host.loads)
    await stage.versions.rollback(None, "worse after all")
    assert stage.slot.serving.version == 1
    assert stage.host.loads == loads


async def test_of_many_versions_only_what_serves_and_what_served_before_stay_loaded(
    stage: Stage,
) -> None:
    for _ in range(4):
        await stage.versions.promote(stage.trained(), "better")
    await wait_all_tasks_blocked()
    assert stage.host.loaded == {3, 4}


async def test_after_a_restart_the_program_serves_what_it_served(
    stage: Stage, tmp_path: Path
) -> None:
    await stage.versions.promote(stage.trained(), "better")
    again = Stage(tmp_path, Host())
    await again.versions.restore()
    assert again.slot.serving.version == 1


async def test_after_a_restart_with_its_weights_gone_the_untrained_model_serves(
    stage: Stage, tmp_path: Path
) -> None:
    await stage.versions.promote(stage.trained(), "better")
    again = Stage(tmp_path, Host(broken=frozenset({1})))
    await again.versions.restore()
    assert again.slot.serving == Serving(absorbed={1: frozenset()})


async def test_with_its_weights_gone_the_nearest_version_before_it_that_can_be_loaded_serves_and_is_told(
    stage: Stage, tmp_path: Path
) -> None:
    for _ in range(3):
        await stage.versions.promote(stage.trained(), "better")
    again = Stage(tmp_path, Host(broken=frozenset({2, 3})))
    await again.versions.restore()
    assert again.slot.serving.version == 1
    assert [trouble.split(":")[0] for trouble in again.versions.troubles] == [
        "version 3 is to answer and does not"
    ]
    for _ in range(6):
        await again.look(after_s=30)
    assert again.slot.serving.version == 1
    assert again.states() == ["serving", "rolled back", "rolled back"]
    assert again.reasons()[-2:] == [
        ("rolled back", f"its weights are lost: /policies/{number} is broken") for number in (3, 2)
    ]
    assert again.policies.version(3).note == "its weights are lost: /policies/3 is broken"  # type: ignore[union-attr]
    assert len(again.versions.troubles) == 2


async def test_a_version_that_is_found_unusable_three_times_is_given_up_and_the_one_before_serves_on(
    stage: Stage, tmp_path: Path
) -> None:
    for _ in range(2):
        await stage.versions.promote(stage.trained(), "better")
    again = Stage(tmp_path, Host(broken=frozenset({2})))
    await again.versions.restore()
    await again.look(after_s=0.5)  # too soon to be a try
    await again.look(after_s=5)
    assert again.states() == ["retired", "serving"]
    assert again.slot.serving.version == 1
    await again.look(after_s=5)
    assert again.states() == ["serving", "rolled back"]
    assert again.reasons()[-1] == ("rolled back", "its weights are lost: /policies/2 is broken")
    assert again.versions.troubles == [
        "version 2 was given up: its weights are lost: /policies/2 is broken"
    ]
    assert not again.versions.has_lost_some


async def test_a_version_that_was_given_up_can_be_promoted_when_its_weights_are_back(
    stage: Stage, tmp_path: Path
) -> None:
    await stage.versions.promote(stage.trained(), "better")
    again = Stage(tmp_path, Host(broken=frozenset({1})))
    await again.versions.restore()
    for _ in range(2):
        await again.look(after_s=30)
    assert again.states() == ["rolled back"]
    again.host.mend()
    await again.versions.promote(1, "a person put the file back")
    assert again.slot.serving.version == 1
    assert again.versions.troubles == []


async def test_with_nothing_trained_there_is_nothing_to_go_back_from(stage: Stage) -> None:
    with pytest.raises(RefusedError, match="nothing to roll back"):
        await stage.versions.rollback(None, "no reason")


async def test_old_weights_are_let_go_but_never_those_that_serve_or_may_serve_again(
    stage: Stage,
) -> None:
    for _ in range(6):
        await stage.versions.promote(stage.trained(), "better")
    gone: list[str] = []
    await stage.versions.tidy(2, lambda weights: gone.append(weights.adapter))
    assert sorted(gone) == [f"/policies/{number}" for number in range(1, 5)]
    assert (await stage.versions.rollback(None, "worse")).version == 5


async def test_a_skill_that_was_changed_since_is_absorbed_no_more(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Host(), changed=frozenset({"dates"}))
    await stage.versions.promote(stage.trained(absorbed=("dates", "names")), "better")
    assert stage.slot.absorbed(1) == {"names"}


async def test_a_host_that_cannot_be_reached_is_waited_for_however_long_it_takes_and_asked_ever_more_seldom(
    tmp_path: Path,
) -> None:
    before = Stage(tmp_path, Host())
    await before.versions.promote(before.trained(), "better")
    host = Host(broken=frozenset({1}), reason=BackendDownError)
    stage = Stage(tmp_path, host)
    await stage.versions.restore()
    for _ in range(1000):
        await stage.look(after_s=5)
    assert stage.slot.serving.version == 0
    assert stage.states() == ["serving"]
    assert len(stage.versions.troubles) == 1
    assert "tried again in" in stage.versions.troubles[0]
    assert 15 < host.asked < 40
    host.mend()
    await stage.look(after_s=300)
    assert stage.slot.serving.version == 1
    assert not stage.versions.has_lost_some
    assert stage.versions.troubles == []


async def test_what_a_host_refuses_when_it_is_back_is_given_up_though_it_was_waited_for_before(
    tmp_path: Path,
) -> None:
    before = Stage(tmp_path, Host())
    await before.versions.promote(before.trained(), "better")
    host = Host(broken=frozenset({1}), reason=BackendDownError)
    stage = Stage(tmp_path, host)
    await stage.versions.restore()
    for _ in range(10):
        await stage.look(after_s=300)
    assert stage.states() == ["serving"]
    host.turn_away()
    for _ in range(3):
        await stage.look(after_s=300)
    assert stage.states() == ["rolled back"]


async def test_weights_that_are_broken_are_not_asked_for_again_at_once(tmp_path: Path) -> None:
    before = Stage(tmp_path, Host())
    await before.versions.promote(before.trained(), "better")
    stage = Stage(tmp_path, Host(broken=frozenset({1})))
    await stage.versions.restore()
    for _ in range(10):
        await stage.versions.restore()  # skills have changed
    assert stage.slot.serving.version == 0
    assert not stage.versions.has_lost_some
    assert stage.states() == ["serving"]
