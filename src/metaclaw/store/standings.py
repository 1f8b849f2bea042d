"""What is known of a turn beside itself: the verdict that stands, its role, whether it has taught."""

from typing import TypeVar

from sqlalchemy import ColumnElement, Row, Select, exists, select

from metaclaw.domain.eligibility import Role, RoleKind, Standing
from metaclaw.domain.ids import TurnId
from metaclaw.domain.policy import PolicyState
from metaclaw.store.learning import batch_turns, batches, policies, roles, stands, verdicts
from metaclaw.store.records import BatchState
from metaclaw.store.schema import current_turns, turns
from metaclaw.store.verdicts import VERDICT, verdict_of

# A subquery, because SQLite evaluates a view that is joined for every turn there is.
IS_CURRENT = exists().where(current_turns.c.turn == turns.c.seq)
"""Whether the speaker of a turn has today the rules and skills they had when it was made."""
_GIVEN_UP = (PolicyState.REJECTED.value, PolicyState.ROLLED_BACK.value)
HAS_TAUGHT = (
    select(batch_turns.c.turn)
    .join(batches, batches.c.seq == batch_turns.c.batch)
    .outerjoin(policies, policies.c.batch == batches.c.seq)
    .where(
        batch_turns.c.turn == turns.c.seq,
        batches.c.state != BatchState.DROPPED.value,
        policies.c.state.is_(None) | policies.c.state.not_in(_GIVEN_UP),
    )
    .exists()
)
"""Whether a turn is in a run that goes on, or trained a version that was neither rejected nor rolled back."""
WAS_TRIED = exists().where(batch_turns.c.turn == turns.c.seq)
"""Whether a turn was in a run, whatever came of that."""
STANDING = [
    *VERDICT,
    roles.c.kind.label("role"),
    roles.c.generation.label("role_generation"),
    HAS_TAUGHT.label("taught"),
    IS_CURRENT.label("current"),
]
"""What `standing_of` reads; a query that selects them goes through `with_standing`."""

S = TypeVar("S", bound=Select[*tuple[object, ...]])


def with_standing(query: S, seq: ColumnElement[int]) -> S:
    """The query with the tables of `STANDING` joined to it, for the turns with these numbers."""
    return (
        query.outerjoin(stands, stands.c.turn == seq)
        .outerjoin(verdicts, verdicts.c.seq == stands.c.verdict)
        .outerjoin(roles, roles.c.turn == seq)
    )


def standing_of(turn: TurnId, row: Row[*tuple[object, ...]], *, held_out: bool = False) -> Standing:
    """A row with the columns of `STANDING`; whether a turn is kept for the gate is not in the store."""
    return Standing(
        verdict=None if row.verdict_outcome is None else verdict_of(turn, row),
        role=role_of(row),
        taught=bool(row.taught),
        held_out=held_out,
        is_aged=not row.current,
    )


def role_of(row: Row[*tuple[object, ...]]) -> Role | None:
    """The role in a row with the columns of `STANDING`."""
    return None if row.role is None else Role(RoleKind(row.role), row.role_generation)
