"""Placed texts and splices that many turns share: swept out when the last turn that used them is gone."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, Select, Table, delete, select, union

from metaclaw.store.schema import payloads, placements, snippets, splices, turns


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Addresses that turns about to go have used."""

    placements: frozenset[bytes]
    splices: frozenset[bytes]

    def sweep(self, connection: Connection) -> None:
        """Delete of these, of what stands before them and of their texts whatever nobody uses any more."""
        unused = _sweep_chains(connection, placements, select(turns.c.placements), self.placements)
        unused |= _sweep_chains(connection, splices, select(payloads.c.splices), self.splices)
        for snippet in unused:
            users = union(
                select(placements.c.snippet).where(placements.c.snippet == snippet),
                select(splices.c.snippet).where(splices.c.snippet == snippet),
            )
            if connection.execute(users).first() is None:
                connection.execute(delete(snippets).where(snippets.c.hash == snippet))


def used_by(connection: Connection, seqs: list[int]) -> Leftovers:
    """What these turns use and perhaps nobody else."""
    placed = connection.execute(select(turns.c.placements).where(turns.c.seq.in_(seqs)).distinct()).scalars()
    spliced = connection.execute(select(payloads.c.splices).where(payloads.c.turn.in_(seqs)).distinct()).scalars()
    return Leftovers(frozenset(item for item in placed if item), frozenset(item for item in spliced if item))


def _sweep_chains(connection: Connection, table: Table, users: Select[bytes], lasts: Iterable[bytes]) -> set[bytes]:
    """Follow each tuple from its last row to its first for as long as nobody needs them. The snippets that were let go."""
    (user,) = users.selected_columns
    freed: set[bytes] = set()
    waiting = list(lasts)
    while waiting:
        last = waiting.pop()
        row = connection.execute(select(table.c.previous, table.c.snippet).where(table.c.hash == last)).one_or_none()
        if row is None:
            continue
        is_used = connection.execute(users.where(user == last).limit(1)).first() is not None
        if is_used or connection.execute(select(table.c.hash).where(table.c.previous == last).limit(1)).first() is not None:
            continue
        connection.execute(delete(table).where(table.c.hash == last))
        freed.add(row.snippet)
        if row.previous is not None:
            waiting.append(row.previous)
    return freed
