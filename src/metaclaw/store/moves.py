"""How policy versions may move: which version serves, which is tried beside it, and where one goes back to. Pure rules."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from metaclaw.domain.policy import BASE_POLICY, PolicyState
from metaclaw.store.guard import RefusedError


@dataclass(frozen=True, slots=True)
class Seat:
    """What is asked of a version before it moves."""

    number: int
    parent: int
    state: PolicyState
    has_served: bool
    is_kept: bool
    note: str = ""


Seats = Mapping[int, Seat]
Moves = dict[int, PolicyState]


def holder(seats: Seats, state: PolicyState) -> int | None:
    """The version in a state that one version has at most."""
    return next((seat.number for seat in seats.values() if seat.state is state), None)


def to_canary(seats: Seats, number: int) -> Moves:
    """A candidate is tried on a share of the sessions."""
    _expect(seats, number, PolicyState.CANDIDATE, "be tried")
    tried = holder(seats, PolicyState.CANARY)
    if tried is not None:
        raise RefusedError(f"version {tried} is being tried already; promote it or roll it back first")
    return {number: PolicyState.CANARY}


def to_rejected(seats: Seats, number: int) -> Moves:
    """A candidate did not pass."""
    _expect(seats, number, PolicyState.CANDIDATE, "be rejected")
    return {number: PolicyState.REJECTED}


def to_serving(seats: Seats, number: int) -> Moves:
    """Any version whose weights are kept serves everybody, by evidence or by a person's word; what served before is retired, and a
    trial of another version is over, since what it was compared with is gone."""
    if number == BASE_POLICY:
        raise RefusedError("version 0 is the untrained model; roll back to it instead")
    seat = _usable(seats, number)
    if seat.state is PolicyState.SERVING:
        raise RefusedError(f"version {number} serves already")
    served, tried = holder(seats, PolicyState.SERVING), holder(seats, PolicyState.CANARY)
    moves = {} if served is None else {served: PolicyState.RETIRED}
    moves |= {} if tried in (None, number) else {tried: PolicyState.ROLLED_BACK}
    return moves | {number: PolicyState.SERVING}


def back(seats: Seats, to: int | None) -> Moves:
    """Take back the last step: a trial if there is one, else the version that serves; or everything since the version `to`."""
    served, tried = holder(seats, PolicyState.SERVING), holder(seats, PolicyState.CANARY)
    given_up = {} if tried is None else {tried: PolicyState.ROLLED_BACK}
    if given_up and to in (None, served or BASE_POLICY):
        return given_up
    if to is None and served is None:
        raise RefusedError("the untrained model serves; there is nothing to roll back")
    target = _destination(seats, served or BASE_POLICY, to)
    moves = given_up | ({} if served is None else {served: PolicyState.ROLLED_BACK})
    return moves | ({} if target == BASE_POLICY else {target: PolicyState.SERVING})


def give_up(seats: Seats, numbers: Collection[int]) -> Moves:
    """None of these versions serves any more, nor ever again; the nearest ancestor that may does, and a trial is over with what it
    was compared with."""
    ends = {PolicyState.CANDIDATE: PolicyState.REJECTED, PolicyState.REJECTED: PolicyState.REJECTED}
    moves = {number: ends.get(seats[number].state, PolicyState.ROLLED_BACK) for number in numbers}
    served, tried = holder(seats, PolicyState.SERVING), holder(seats, PolicyState.CANARY)
    if served is None or served not in numbers:
        return moves
    moves |= {} if tried is None else {tried: PolicyState.ROLLED_BACK}
    clean = {number: replace(seat, is_kept=seat.is_kept and number not in numbers) for number, seat in seats.items()}
    target = ancestor(clean, served)
    return moves | ({} if target == BASE_POLICY else {target: PolicyState.SERVING})


def ancestor(seats: Seats, number: int) -> int:
    """Where going back from a version leads: the nearest ancestor that has served, was never rolled back and is kept; else the
    untrained model."""
    at = seats[number].parent
    while at != BASE_POLICY:
        seat = seats[at]
        if seat.has_served and seat.is_kept and seat.state is not PolicyState.ROLLED_BACK:
            return at
        at = seat.parent
    return BASE_POLICY


def _destination(seats: Seats, serving: int, to: int | None) -> int:
    if to is None:
        return ancestor(seats, serving)
    if to == serving:
        raise RefusedError(f"version {to} serves already")
    if to == BASE_POLICY:
        return to
    seat = _usable(seats, to)
    if to > serving:
        raise RefusedError(f"version {to} is no earlier than version {serving}, which serves; promote it instead")
    if not seat.has_served:
        raise RefusedError(f"version {to} ({seat.state.value}) has never served; promote it instead")
    return to


def _expect(seats: Seats, number: int, state: PolicyState, what: str) -> None:
    seat = _usable(seats, number)
    if seat.state is not state:
        raise RefusedError(f"version {number} cannot {what}: it is {seat.state.value}, not a {state.value}")


def _usable(seats: Seats, number: int) -> Seat:
    seat = seats.get(number)
    if seat is None:
        raise RefusedError(f"there is no version {number}")
    if not seat.is_kept:
        raise RefusedError(f"the weights of version {number} are no longer kept{f': {seat.note}' if seat.note else ''}")
    return seat
