"""The keys of people, of which only hashes are stored; who changed what; and what people used.

Requests are counted under the names of cursors, one for each person, period and its beginning."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from secrets import token_urlsafe
from typing import Final

from sqlalchemy import delete, func, insert, select, update

from metaclaw.domain.chat import Usage
from metaclaw.domain.person import KeyRole, Limit, Person, parse_limits, render_limits
from metaclaw.store.database import Queries
from metaclaw.store.dialects import RefusedError, committed, insert_into
from metaclaw.store.rows import ResultRow
from metaclaw.store.schema import audit, cursors, keys, turns
from metaclaw.store.usage import read_cursor, write_cursor

_PREFIX: Final = "mck_"
_MARK_CHARS: Final = 16
_PAGE: Final = 10_000
_SHARE: Final = 8
_MOST_RESERVED: Final = 100
_USED: Final = (
    *("seq", "user_id", "received_us", "model", "input_tokens", "output_tokens"),
    *("cached_tokens", "cache_write_tokens", "reasoning_tokens"),
)


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key without its secret."""

    person: Person
    hash: bytes
    made_at: datetime


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change by a person: the key's name, the route, and the name of what was changed."""

    seq: int
    at: datetime
    who: str
    action: str
    target: str


@dataclass(frozen=True, slots=True)
class UsedTurn:
    """What one turn of a person used."""

    user: str
    at: datetime
    model: str
    usage: Usage


def key_hash(secret: str) -> bytes:
    """The hash under which a key is stored. The secret is random and long, so that no slow hash is
    needed."""
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


class SqlKeys(Queries):
    """Keys by the names of their holders."""

    def all(self) -> list[StoredKey]:
        return self._database.read("reading the keys", select(keys).order_by(keys.c.name), _key)

    def create(self, person: Person) -> str:
        """Store a new key, and return its secret. Raises RefusedError if there is one of this
        name."""
        with self._database.writing("storing a key") as connection:
            if connection.scalar(select(keys.c.name).where(keys.c.name == person.name)):
                raise RefusedError(
                    f"there is a key for {person.name} already; metaclaw keys rotate"
                    f" {person.name} gives them a new one"
                )
            secret = _PREFIX + token_urlsafe(32)
            row = {
                "name": person.name,
                "hash": key_hash(secret),
                "role": person.role,
                "team": person.team,
                "for_others": person.speaks_for_others,
                "limits": render_limits(person.limits),
                "made_us": self._clock(),
            }
            connection.execute(insert(keys), row)
        return secret

    def rotate(self, name: str) -> str | None:
        """Replace the secret of a key, and return the new one; None if there is no such key."""
        secret = _PREFIX + token_urlsafe(32)
        new = {"hash": key_hash(secret), "made_us": self._clock()}
        with self._database.writing("storing a key") as connection:
            done = connection.execute(update(keys).where(keys.c.name == name), new)
        return secret if done.rowcount else None

    def revoke(self, name: str) -> bool:
        """Delete a key; False if there is none of this name. What its holder taught stays."""
        with self._database.writing("deleting a key") as connection:
            counted = cursors.c.name.startswith(f"requests {name} ", autoescape=True)
            connection.execute(delete(cursors).where(counted))
            return bool(connection.execute(delete(keys).where(keys.c.name == name)).rowcount)

    def note(self, who: str, action: str, target: str) -> None:
        """Append to the record of who changed what."""
        row = {"at_us": self._clock(), "who": who, "action": action, "target": target}
        with self._database.writing("noting who changed what") as connection:
            connection.execute(insert(audit), row)

    def changes(self, limit: int, before: int | None = None) -> list[AuditEntry]:
        """Who changed what, newest first; only entries before the one of this number, if given."""
        query = select(audit).order_by(audit.c.seq.desc()).limit(limit)
        if before is not None:
            query = query.where(audit.c.seq < before)
        return self._database.records("reading who changed what", query, AuditEntry)

    def reserve_requests(self, user: str, limit: Limit, begin: datetime, owed: int) -> int:
        """Count an eighth of the requests that are left of a period as used, one at least, and
        return how many; 0 if none is left. `owed` have been answered already and are counted,
        too."""
        name = _counter(user, limit, begin)
        with self._database.writing("counting requests") as connection:
            new = insert_into(cursors, connection.dialect.name).values(name=name, seq=0)
            if connection.execute(new.on_conflict_do_nothing()).rowcount:
                mine = cursors.c.name.startswith(
                    f"requests {user} {limit.period} ", autoescape=True
                )
                connection.execute(delete(cursors).where(mine, cursors.c.name < name))
            counted = select(cursors.c.seq).where(cursors.c.name == name).with_for_update()
            used: int = connection.execute(counted).scalar_one() + owed
            left = max(0, int(limit.most) - used)
            more = min(left, _MOST_RESERVED, max(1, left // _SHARE))
            write_cursor(connection, name, used + more)
            return more

    def return_requests(self, user: str, limit: Limit, begin: datetime, unused: int) -> None:
        """Count this many that were reserved as not used."""
        mine = update(cursors).where(cursors.c.name == _counter(user, limit, begin))
        with self._database.writing("counting requests") as connection:
            connection.execute(mine.values(seq=cursors.c.seq - unused))

    def requests_used(self, user: str, limit: Limit, begin: datetime) -> int:
        """The requests of a period that are used or reserved."""
        with self._database.reading("reading what people used") as connection:
            return read_cursor(connection, _counter(user, limit, begin)) or 0

    def used(
        self, users: Collection[str], since: datetime, after: int
    ) -> tuple[int, Sequence[UsedTurn]]:
        """The turns of these users since then and behind the cursor `after`, as many as are read at
        once, and the next cursor."""
        is_committed = committed(self._database.kind, turns)
        newest = self._database.read_number(
            "reading what people used", select(func.max(turns.c.seq)).where(is_committed)
        )
        query = (
            select(*turns.c[_USED])
            .where(turns.c.seq.between(after + 1, newest), turns.c.user_id.in_(users))
            .where(turns.c.received_us >= since, turns.c.input_tokens.is_not(None))
            .order_by(turns.c.seq)
            .limit(_PAGE)
        )
        rows = self._database.rows("reading what people used", query)
        found = [UsedTurn(row.user_id, row.received_us, row.model, Usage(*row[4:])) for row in rows]
        return (rows[-1].seq if len(rows) == _PAGE else max(after, newest)), found


def _counter(user: str, limit: Limit, begin: datetime) -> str:
    """The name of the cursor that counts these requests."""
    return f"requests {user} {limit.period} {begin.timestamp():.0f}"


def _key(row: ResultRow) -> StoredKey:
    person = Person(
        row.name,
        KeyRole(row.role),
        row.team,
        row.for_others,
        parse_limits(row.limits),
        row.hash.hex()[:_MARK_CHARS],
    )
    return StoredKey(person, row.hash, row.made_us)
