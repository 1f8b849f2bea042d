"""Which weights serve: loaded, then written down, then flipped; and back in one step."""

from pathlib import Path

import pytest
from anyio import wait_all_tasks_blocked

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.policy import Serving, Weights
from metaclaw.errors import BackendDownError, TrainingError
from metaclaw.learn.slow.versions import Versions
from metaclaw.store import RefusedError, SqlPolicies, open_database
from metaclaw.upstream import PolicySlot

pytestmark = pytest.mark.anyio


class Host:
    """Serves what can be loaded; what is broken cannot."""

    def __init__(self, broken: frozenset[int] = frozenset(), reason: type[TrainingError] = TrainingError) -> None:
        self._broken = broken
        self._reason = reason
        self._loaded: set[int] = set()
        self.loads: list[int] = []

    @property
    def loaded(self) -> frozenset[int]:
        return frozenset(self._loaded)

    async def load(self, version: int, weights: Weights) -> None:
        if version in self._broken:
            raise self._reason(f"{weights.adapter} is broken")
        self.loads.append(version)
        self._loaded.add(version)

    async def unload(self, version: int) -> None:
        self._loaded.discard(version)

    def mend(self) -> None:
        self._broken = frozenset()


class Stage:
    """A real database, a slot, a host, and versions trained one after the other."""

    def __init__(self, path: Path, host: Host, changed: frozenset[str] = frozenset()) -> None:
        self.policies = SqlPolicies(open_database(f"sqlite:///{path / 'ledger.db'}"))
        self.slot = PolicySlot("embedded")
        self.host = host
        self.versions = Versions(
            policies=self.policies,
            slot=self.slot,
            host=host,
            canary_share=0.5,
            is_same=lambda name, generation: name not in changed,
        )

    def trained(self, absorbed: tuple[str, ...] = ()) -> int:
        parent = max((one.number for one in self.policies.versions()), default=0)
        names = [SkillName(name) for name in absorbed]
        return self.policies.publish(
            Weights("embedded", f"/policies/{parent + 1}"), parent=parent, base="smol", absorbed=names
        ).number


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, Host())


async def test_a_promoted_version_answers_everybody_from_the_next_request_on(stage: Stage) -> None:
    number = stage.trained()
    await stage.versions.promote(number, "better")
    assert stage.slot.pick(SessionId("anybody")) == number


async def test_a_version_that_cannot_be_loaded_is_not_promoted_and_nothing_changes(tmp_path: Path) -> None:
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


async def test_of_many_versions_only_what_serves_and_what_served_before_stay_loaded(stage: Stage) -> None:
    for _ in range(4):
        await stage.versions.promote(stage.trained(), "better")
    await wait_all_tasks_blocked()
    assert stage.host.loaded == {3, 4}


async def test_a_canary_stands_beside_what_serves_until_it_is_rolled_back(stage: Stage) -> None:
    await stage.versions.promote(stage.trained(), "better")
    await stage.versions.canary(stage.trained(), None, "passed the gate")
    picked = {stage.slot.pick(SessionId(f"s_{number}")) for number in range(100)}
    await stage.versions.rollback(None, "worse")
    assert picked == {1, 2}
    assert {stage.slot.pick(SessionId(f"s_{number}")) for number in range(100)} == {1}


async def test_after_a_restart_the_program_serves_what_it_served(stage: Stage, tmp_path: Path) -> None:
    await stage.versions.promote(stage.trained(), "better")
    again = Stage(tmp_path, Host())
    await again.versions.restore()
    assert again.slot.serving.version == 1


async def test_after_a_restart_with_its_weights_gone_the_untrained_model_serves(stage: Stage, tmp_path: Path) -> None:
    await stage.versions.promote(stage.trained(), "better")
    again = Stage(tmp_path, Host(broken=frozenset({1})))
    await again.versions.restore()
    assert again.slot.serving == Serving(absorbed={1: frozenset()})


async def test_with_nothing_trained_there_is_nothing_to_go_back_from(stage: Stage) -> None:
    with pytest.raises(RefusedError, match="nothing to roll back"):
        await stage.versions.rollback(None, "no reason")


async def test_old_weights_are_let_go_but_never_those_that_serve_or_may_serve_again(stage: Stage) -> None:
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


async def test_a_host_that_cannot_be_reached_is_waited_for_and_its_version_serves_when_it_is_back(tmp_path: Path) -> None:
    before = Stage(tmp_path, Host())
    await before.versions.promote(before.trained(), "better")
    host = Host(broken=frozenset({1}), reason=BackendDownError)
    stage = Stage(tmp_path, host)
    await stage.versions.restore()
    assert stage.slot.serving.version == 0
    assert stage.versions.has_lost_some
    await stage.versions.refresh()
    assert stage.versions.has_lost_some
    host.mend()
    await stage.versions.refresh()
    assert stage.slot.serving.version == 1
    assert not stage.versions.has_lost_some


async def test_weights_that_are_broken_are_not_waited_for(tmp_path: Path) -> None:
    before = Stage(tmp_path, Host())
    await before.versions.promote(before.trained(), "better")
    stage = Stage(tmp_path, Host(broken=frozenset({1})))
    await stage.versions.restore()
    assert stage.slot.serving.version == 0
    assert not stage.versions.has_lost_some
