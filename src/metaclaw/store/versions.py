"""Policy versions as rows, and what a transaction that changes them asks and tells."""

from collections.abc import Iterable

from sqlalchemy import Connection, Row, func, insert, select

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import GateReport, PolicyState, PolicyVersion, Weights
from metaclaw.store.documents import pack_document, unpack_document
from metaclaw.store.learning import policies
from metaclaw.store.moves import Moves, Seat, Seats, holder
from metaclaw.store.packing import (
    Value,
    pack_json,
    pack_names,
    pack_text,
    unpack_instant,
    unpack_names,
    unpack_optional,
    unpack_text,
)
from metaclaw.store.schema import events, turns


def version_of(row: Row[*tuple[object, ...]]) -> PolicyVersion:
    """A whole row as a version."""
    return PolicyVersion(
        number=row.number,
        parent=row.parent,
        state=PolicyState(row.state),
        weights=Weights(unpack_text(row.backend), unpack_text(row.adapter), unpack_optional(row.training)),
        base=unpack_text(row.base),
        generation=row.generation,
        made=unpack_instant(row.made_us),
        batch=row.batch,
        steps=row.steps,
        report=None if row.report is None else unpack_document(row.report, GateReport),
        note=unpack_text(row.note),
        absorbed=frozenset(SkillName(name) for name in unpack_names(row.absorbed)),
        has_served=row.served_us is not None,
        is_kept=row.gone_us is None,
    )


def weights_row(weights: Weights) -> dict[str, Value]:
    """Where weights lie, as columns."""
    training = None if weights.training is None else pack_text(weights.training)
    return {"backend": pack_text(weights.backend), "adapter": pack_text(weights.adapter), "training": training}


def knowledge_row(report: GateReport | None, note: str, absorbed: Iterable[SkillName]) -> dict[str, Value]:
    """What is known of a version, as columns."""
    packed = None if report is None else pack_document(report)
    return {"report": packed, "note": pack_text(note), "absorbed": pack_names(sorted(absorbed))}


def version_row(connection: Connection, number: int) -> Row[*tuple[object, ...]] | None:
    """The row of a version."""
    return connection.execute(select(policies).where(policies.c.number == number)).one_or_none()


def seats_of(rows: Iterable[Row[*tuple[object, ...]]]) -> Seats:
    """What the rules ask of these versions."""
    return {
        row.number: Seat(
            row.number, row.parent, PolicyState(row.state), row.served_us is not None, row.gone_us is None, unpack_text(row.note)
        )
        for row in rows
    }


def last_turn(connection: Connection) -> int:
    """The newest turn's cursor."""
    found: int = connection.execute(select(func.coalesce(func.max(turns.c.seq), 0))).scalar_one()
    return found


def announce(connection: Connection, at_us: int, number: int, action: str, reason: str, changes: Moves) -> None:
    """Tell whoever follows the events what happened to a version, and which weights answer now."""
    seats = seats_of(connection.execute(select(policies)))
    told = {
        "action": action,
        "version": number,
        "serving": holder(seats, PolicyState.SERVING) or 0,
        "canary": holder(seats, PolicyState.CANARY),
        "moves": {str(moved): state.value for moved, state in changes.items()},
        "reason": reason,
    }
    connection.execute(insert(events), {"at_us": at_us, "kind": "policy", "data": pack_json(told)})
