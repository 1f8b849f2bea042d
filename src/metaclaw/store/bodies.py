"""Bodies out of their patches; and what must be written anew so that a body survives one it was a patch on."""

from collections.abc import Iterable, Sequence
from functools import cache

from sqlalchemy import Connection, Row, Select, Table, bindparam, delete, insert, select

from metaclaw.store import patches


def rebuild(connection: Connection, table: Table, seq: int) -> bytes | None:
    """A body rebuilt from the whole one its patches stand on."""
    body: bytes | None = None
    for row in connection.execute(_patches_of(table), {"seq": seq}):
        body = patches.apply(body or b"", row.prefix, row.suffix, row.middle)
    return body


@cache
def _patches_of(table: Table) -> Select[*tuple[object, ...]]:
    """The patches of the body `seq`, from the whole one on. Made once: to put it together takes longer than to run it."""
    columns = [table.c[name] for name in ("turn", "base", "link", "prefix", "suffix", "middle")]
    chain = select(*columns).where(table.c.turn == bindparam("seq")).cte("chain", recursive=True)
    chain = chain.union_all(select(*columns).join(chain, table.c.turn == chain.c.base))
    return select(chain).order_by(chain.c.link)


def remove(connection: Connection, table: Table, gone: Sequence[int]) -> None:
    """Delete the bodies of these turns; a body of another turn that is a patch on one of them is put back whole.

    Rows are never edited, and one that others stand on cannot go before them: so they all go at once, and the survivors return.
    """
    survivors = _standing_on(connection, table, gone)
    wholes = {row.turn: rebuild(connection, table, row.turn) for row in survivors if row.base in set(gone)}
    connection.execute(delete(table).where(table.c.turn.in_([*gone, *(row.turn for row in survivors)])))
    links: dict[int, int] = {}
    for row in survivors:
        anew = dict(row._mapping)
        if row.turn in wholes:
            anew |= {"base": None, "link": 0, "prefix": 0, "suffix": 0, "middle": wholes[row.turn]}
        else:
            anew["link"] = links[row.base] + 1
        links[row.turn] = anew["link"]
        connection.execute(insert(table), anew)


def _standing_on(connection: Connection, table: Table, bases: Iterable[int]) -> list[Row[*tuple[object, ...]]]:
    """Every row whose body needs one of these, itself not among them; each comes after the one it is a patch on."""
    gone = set(bases)
    tree = select(table.c.turn).where(table.c.base.in_(gone)).cte("tree", recursive=True)
    # A union of distinct rows: a row may be reached from several of the bases.
    tree = tree.union(select(table.c.turn).join(tree, table.c.base == tree.c.turn))
    rows = connection.execute(select(table).where(table.c.turn.in_(select(tree.c.turn))).order_by(table.c.turn))
    return [row for row in rows if row.turn not in gone]
