"""Transitions of policy versions: which version may serve, which may be tried beside it, and where a rollback leads. Pure rules."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from metaclaw.domain.policy import BASE_POLICY, PolicyState
from metaclaw.store.database import RefusedError


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """What the rules must know of a version."""

    number: int
    parent: int
    state: PolicyState
    has_served: bool
    is_kept: bool
    note: str = ""


Versions = Mapping[int, VersionFacts]
Transitions = dict[int, PolicyState]


def version_in(versions: Versions, state: PolicyState) -> int | None:
    """The version in a state that at most one version is in."""
    return next((version.number for version in versions.values() if version.state is state), None)


def to_canary(versions: Versions, number: int) -> Transitions:
    """A candidate is tried on a share of the sessions."""
    _expect(versions, number, PolicyState.CANDIDATE, "be tried")
    tried = version_in(versions, PolicyState.CANARY)
    if tried is not None:
        raise RefusedError(f"version {tried} is being tried already; promote it or roll it back first")
    return {number: PolicyState.CANARY}


def to_rejected(versions: Versions, number: int) -> Transitions:
    """A candidate did not pass."""
    _expect(versions, number, PolicyState.CANDIDATE, "be rejected")
    return {number: PolicyState.REJECTED}


def to_serving(versions: Versions, number: int) -> Transitions:
    """Any version whose weights are kept may serve, by evidence or by a person's decision; what served before is retired, and a
    trial of another version is over, since what it was compared with is gone."""
    if number == BASE_POLICY:
        raise RefusedError("version 0 is the untrained model; roll back to it instead")
    version = _usable(versions, number)
    if version.state is PolicyState.SERVING:
        raise RefusedError(f"version {number} serves already")
    served, tried = version_in(versions, PolicyState.SERVING), version_in(versions, PolicyState.CANARY)
    moves = {} if served is None else {served: PolicyState.RETIRED}
    moves |= {} if tried in (None, number) else {tried: PolicyState.ROLLED_BACK}
    return moves | {number: PolicyState.SERVING}


def roll_back(versions: Versions, to: int | None) -> Transitions:
    """Take back the last step: a trial if there is one, else the version that serves; or everything since the version `to`."""
    served, tried = version_in(versions, PolicyState.SERVING), version_in(versions, PolicyState.CANARY)
    given_up = {} if tried is None else {tried: PolicyState.ROLLED_BACK}
    if given_up and to in (None, served or BASE_POLICY):
        return given_up
    if to is None and served is None:
        raise RefusedError("the untrained model serves; there is nothing to roll back")
    target = _destination(versions, served or BASE_POLICY, to)
    moves = given_up | ({} if served is None else {served: PolicyState.ROLLED_BACK})
    return moves | ({} if target == BASE_POLICY else {target: PolicyState.SERVING})


def give_up(versions: Versions, numbers: Collection[int]) -> Transitions:
    """None of these versions serves any more, nor ever again; the nearest ancestor that may does, and a trial is over with what it
    was compared with."""
    ends = {PolicyState.CANDIDATE: PolicyState.REJECTED, PolicyState.REJECTED: PolicyState.REJECTED}
    moves = {number: ends.get(versions[number].state, PolicyState.ROLLED_BACK) for number in numbers}
    served, tried = version_in(versions, PolicyState.SERVING), version_in(versions, PolicyState.CANARY)
    if served is None or served not in numbers:
        return moves
    moves |= {} if tried is None else {tried: PolicyState.ROLLED_BACK}
    clean = {number: replace(version, is_kept=version.is_kept and number not in numbers) for number, version in versions.items()}
    target = ancestor(clean, served)
    return moves | ({} if target == BASE_POLICY else {target: PolicyState.SERVING})


def ancestor(versions: Versions, number: int) -> int:
    """Where going back from a version leads: the nearest ancestor that has served, was never rolled back and is kept; else the
    untrained model."""
    at = versions[number].parent
    while at != BASE_POLICY:
        version = versions[at]
        if version.has_served and version.is_kept and version.state is not PolicyState.ROLLED_BACK:
            return at
        at = version.parent
    return BASE_POLICY


def _destination(versions: Versions, serving: int, to: int | None) -> int:
    if to is None:
        return ancestor(versions, serving)
    if to == serving:
        raise RefusedError(f"version {to} serves already")
    if to == BASE_POLICY:
        return to
    version = _usable(versions, to)
    if to > serving:
        raise RefusedError(f"version {to} is no earlier than version {serving}, which serves; promote it instead")
    if not version.has_served:
        raise RefusedError(f"version {to} ({version.state.value}) has never served; promote it instead")
    return to


def _expect(versions: Versions, number: int, state: PolicyState, what: str) -> None:
    version = _usable(versions, number)
    if version.state is not state:
        raise RefusedError(f"version {number} cannot {what}: it is {version.state.value}, not a {state.value}")


def _usable(versions: Versions, number: int) -> VersionFacts:
    version = versions.get(number)
    if version is None:
        raise RefusedError(f"there is no version {number}")
    if not version.is_kept:
        raise RefusedError(f"the weights of version {number} are no longer kept{f': {version.note}' if version.note else ''}")
    return version
