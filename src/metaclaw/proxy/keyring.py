"""The keys in memory: who holds which, and how much they have used of their limits.

A request costs one comparison with the home's key and, if there are other keys, one hash and one
look-up. The keys, and what people used in tokens and money, are read from the store beside serving,
so that all its proxies know and count the same; requests are counted in shares (`request_shares`)."""

import hmac
from collections.abc import Callable, Collection, ItemsView, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from threading import Lock

from metaclaw.clock import local_now
from metaclaw.domain.person import HOME, PERIODS, Limit, Person, period_of
from metaclaw.proxy.request_shares import RequestShares
from metaclaw.store import SqlKeys, StoredKey, UsedTurn, key_hash


class CurrentTeams(Mapping[str, Collection[str]]):
    """The teams of the configuration and of keys. They may change while other threads read them:
    whoever goes through them sees one state."""

    def __init__(self) -> None:
        self.now: dict[str, set[str]] = {}
        """Replaced, and never changed."""

    def __getitem__(self, name: str) -> Collection[str]:
        return self.now[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.now)

    def __len__(self) -> int:
        return len(self.now)

    def items(self) -> ItemsView[str, Collection[str]]:
        return ItemsView(self.now)


@dataclass(slots=True)
class _Used:
    """What was used in one period."""

    begin: datetime
    end: datetime
    amount: float = 0.0


class Keyring:
    """Finds the holder of a key. `price` is what one turn cost."""

    def __init__(
        self,
        home_key: str,
        stored: SqlKeys,
        teams: Mapping[str, Collection[str]],
        price: Callable[[UsedTurn], float],
        now: Callable[[], datetime] = local_now,
    ) -> None:
        """`teams` are the configured ones; `self.teams` also has those of keys."""
        self.teams = CurrentTeams()
        self._home_key = home_key.encode()
        self._stored = stored
        self._configured = teams
        self._price = price
        self._now = now
        self._requests = RequestShares(stored)
        self._keys: list[StoredKey] = []
        self._by_hash: dict[bytes, Person] = {}
        self._by_mark: dict[str, Person] = {HOME.mark: HOME}
        self._used: dict[tuple[str, str, str], _Used] = {}
        """What was used in the present periods, by user, kind and period."""
        self._metered: set[str] = set()
        """The users whose tokens and money are counted."""
        self._cursor = 0
        self._reading = Lock()
        self._take([])

    def holder(self, sent: str) -> Person | None:
        """Whose key this is; None if it is nobody's."""
        if self.is_home(sent):
            return HOME
        # A dictionary compares hashes, of which nobody can choose the beginning.
        return self._by_hash.get(key_hash(sent)) if self._by_hash else None

    def is_home(self, sent: str) -> bool:
        """Whether this is the home's own key, compared in constant time."""
        return hmac.compare_digest(sent.encode("utf-8", "surrogatepass"), self._home_key)

    def marked(self, mark: str) -> Person | None:
        """The holder of the key of this mark; None if it was revoked or replaced."""
        return self._by_mark.get(mark)

    async def count_request(self, person: Person) -> tuple[Limit, float] | None:
        """Count a request; or the limit that it would exceed, with the seconds until it may come
        again."""
        now = self._now()
        used_up = (one for one in person.limits if self._used_of(person.name, one, now) >= one.most)
        limit = next(used_up, None) or await self._requests.take(person, now)
        if limit is None:
            return None
        return limit, (period_of(now, limit.period)[1] - now).total_seconds()

    def used(self, person: Person) -> dict[str, float]:
        """What a person has used of each of their limits in its present period. Blocks."""
        now = self._now()
        found = {str(limit): self._used_of(person.name, limit, now) for limit in person.limits}
        return found | self._requests.used(person, now)

    async def settle(self) -> None:
        """Give back to the other programs what requests did not need."""
        await self._requests.settle(self._now())

    async def aclose(self) -> None:
        """Give back all that is left."""
        await self._requests.settle()

    def read(self) -> None:
        """Take over the stored keys and what was used. Blocks. Raises StoreError."""
        with self._reading:
            keys = self._stored.all()
            if keys != self._keys:
                self._take(keys)
            if self._metered:
                self._read_used()

    def _take(self, keys: list[StoredKey]) -> None:
        self._keys = keys
        teams = {name: set(users) for name, users in self._configured.items()}
        for key in keys:
            if key.person.team is not None:
                teams.setdefault(key.person.team, set()).add(key.person.name)
        self.teams.now = teams
        self._by_mark = {HOME.mark: HOME} | {key.person.mark: key.person for key in keys}
        self._by_hash = {key.hash: key.person for key in keys}
        metered = {
            key.person.name
            for key in keys
            if any(limit.used != "requests" for limit in key.person.limits)
        }
        if metered != self._metered:
            # All of this month is read again, also for those who are new.
            self._metered, self._cursor, self._used = metered, 0, {}

    def _read_used(self) -> None:
        begin, _ = period_of(self._now(), "month")
        before = -1
        while self._cursor != before:
            before = self._cursor
            self._cursor, found = self._stored.used(self._metered, begin, before)
            for turn in found:
                at, usage, money = turn.at.astimezone(begin.tzinfo), turn.usage, self._price(turn)
                for period in PERIODS:
                    tokens = usage.input_tokens + usage.output_tokens
                    self._add(turn.user, "tokens", period, at, tokens)
                    self._add(turn.user, "money", period, at, money)

    def _add(self, user: str, used: str, period: str, at: datetime, more: float) -> None:
        key = (user, used, period)
        known = self._used.get(key)
        if known is None or at >= known.end:
            known = self._used[key] = _Used(*period_of(at, period))
        if at >= known.begin:
            known.amount += more

    def _used_of(self, user: str, limit: Limit, now: datetime) -> float:
        known = self._used.get((user, limit.used, limit.period))
        return known.amount if known is not None and known.begin <= now < known.end else 0.0
