"""The learning budget: what the program's own calls may cost in a day, what they have cost, and what waits for more.

Every call goes through `Budget.charge`. One that does not fit into what is left of the day waits until midnight, or until the limit
grows with the day's traffic; a purpose that must not wait is refused instead. A call is counted in the store before its answer is
used, so a crash loses at most the calls under way, and all processes count into the same sums.

Each purpose may spend up to a share of the limit. That orders what is paid for: verdicts on turns and the training of weights stop
first, then skills in the making, and reading what people say has the last fifth for itself. Where nobody set a limit, messages that
may lay something down have a reserve beyond it: nothing else teaches if they are not read.
"""

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from typing import Final, Protocol
from zoneinfo import ZoneInfo

import anyio
from anyio.to_thread import run_sync

from metaclaw.config import Config
from metaclaw.domain.chat import Usage
from metaclaw.domain.spending import SERVED, Spending, SpendingKey
from metaclaw.errors import BudgetError, MetaClawError, StoreError
from metaclaw.learn.prices import Price, Prices
from metaclaw.ports import Purpose
from metaclaw.store import PriceServed, Sums
from metaclaw.upstream import Charge, Spent, learned_item, waits_for_budget

log = logging.getLogger(__name__)

FLOOR_TOKENS: Final = 300_000
RESERVE_TOKENS: Final = 1_000_000
"""For reading what people say, beyond the default limit: about a thousand messages a day."""
SHARE_OF_TRAFFIC: Final = 0.1
_DAYS_AVERAGED: Final = 7
_ITEMS_KEPT_DAYS: Final = 90
_ALL: Final = 1.0
_FOR_SKILLS: Final = 0.8
_FOR_TURNS: Final = 0.6
_NEVER_WAITS: Final = frozenset((Purpose.LISTEN,))
_READ_AGAIN_S: Final = 5.0
_LOOK_AGAIN_S: Final = 15.0


class SpendingStore(Protocol):
    """Where calls are counted. Blocking; each raises StoreError."""

    def add(self, sums: Sums) -> None: ...
    def add_served(self, price: PriceServed) -> int: ...
    def sums(self, since: str = "", *, by_item: bool = False) -> dict[SpendingKey, Spending]: ...
    def forget_items_before(self, day: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Account:
    """One day: its limits, and what was spent. `limit_cost` is None where money is not limited; `is_for_unpriced` says that the
    token limit is only for models without a price."""

    day: str
    resets_at: datetime
    limit_tokens: int
    limit_cost: float | None
    is_for_unpriced: bool
    reserve_tokens: int = 0
    spent: Spending = Spending()  # noqa: RUF009 (frozen)

    @property
    def used_tokens(self) -> int:
        """The tokens that count against the token limit."""
        return self._counted(self.spent)

    def has_room(self, call: Spending, under_way: Spending, share: float, *, with_reserve: bool = False) -> bool:
        """Whether a call fits into this share of the limits, beside what is under way."""
        total = self.spent + under_way + call
        reserve = self.reserve_tokens if with_reserve else 0
        if self._counted(call) and self._counted(total) > share * self.limit_tokens + reserve:
            return False
        return self.limit_cost is None or not call.cost or total.cost <= share * self.limit_cost

    def facts(self) -> dict[str, object]:
        """For people and tools."""
        left_cost = None if self.limit_cost is None else round(max(0.0, self.limit_cost - self.spent.cost), 6)
        return {
            "day": self.day,
            "limit": self.limit_tokens,
            "used": self.used_tokens,
            "left": max(0, self.limit_tokens - self.used_tokens),
            "limit_cost": self.limit_cost,
            "used_cost": round(self.spent.cost, 6),
            "left_cost": left_cost,
            "resets_at": self.resets_at.isoformat(timespec="seconds"),
        }

    def _counted(self, spent: Spending) -> int:
        return spent.unpriced_tokens if self.is_for_unpriced else spent.tokens


class Budget:
    """Lets calls through and counts them (upstream.Meter)."""

    def __init__(self, config: Config, spending: SpendingStore, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._limits = config.learning
        self._spending = spending
        self._zone = None if config.schedule.timezone is None else ZoneInfo(config.schedule.timezone)
        self._now = now
        self._prices = Prices(config.learning.prices)
        self._account: Account | None = None
        self._read_at_s = 0.0
        self._under_way: dict[int, Spending] = {}
        self._unwritten: dict[SpendingKey, Spending] = {}
        self._writing = anyio.Lock()
        self._changed = anyio.Event()
        self._waiting: Counter[str] = Counter()
        self._refused: set[Purpose] = set()

    @property
    def waiting(self) -> Mapping[str, int]:
        """How many requests wait for the budget now, by purpose; of a purpose that never waits, whether its last was refused."""
        refused = {purpose.value: 1 for purpose in self._refused}
        return {purpose: count for purpose, count in {**refused, **self._waiting}.items() if count}

    async def may_spend(self, purpose: Purpose, tokens: int, model: str = "", *, with_reserve: bool = True) -> bool:
        """Whether a call of about this many tokens to `provider/model` would be made now, without waiting; `with_reserve` says
        whether the reserve for reading may be used for it."""
        call = _sized(tokens, self._prices.of(model))
        has_room = self._has_room(await run_sync(self._current), purpose, call, with_reserve=with_reserve)
        self._note(purpose, is_refused=not has_room)
        return has_room

    @asynccontextmanager
    async def charge(self, purpose: Purpose, model: str, tokens: int) -> AsyncIterator[Charge]:
        """Make the calls of one request inside; see `upstream.Meter`."""
        call = _sized(tokens, self._prices.of(model))
        await self._admit(purpose, call)
        charge = _Charge()
        self._under_way[id(charge)] = call
        try:
            yield charge
        finally:
            with anyio.CancelScope(shield=True):
                await self.count(purpose, model, charge.spent)
            del self._under_way[id(charge)]
            self._changed.set()
            self._changed = anyio.Event()

    async def count(self, purpose: Purpose, model: str, spent: Spent, turns: int = 0) -> None:
        """Add to today's sums. Returns when they are in the store, or kept for the next time because it is down."""
        counted = replace(_priced(spent.usage, self._prices.of(model)), turns=turns, calls=spent.calls)
        counted = replace(counted, failures=spent.failures, estimated=spent.estimated)
        if counted == Spending():
            return
        key = SpendingKey(self._day(self._now()), purpose.value, model, learned_item())
        self._unwritten[key] = self._unwritten.get(key, Spending()) + counted
        async with self._writing:  # what is counted while others write is written at once
            if self._unwritten:
                sums, self._unwritten = self._unwritten, {}
                if not await run_sync(self._write, sums):
                    for kept, more in sums.items():
                        self._unwritten[kept] = self._unwritten.get(kept, Spending()) + more

    def account(self) -> Account:
        """Today's account. Blocks. Raises StoreError."""
        self.count_served()
        now = self._now()
        account = self._account_of(now, self._spending.sums(self._day(now - timedelta(days=_DAYS_AVERAGED))))
        if self._account is not None and self._account.day != account.day:
            self._refused.clear()
            self._spending.forget_items_before(self._day(now - timedelta(days=_ITEMS_KEPT_DAYS)))
        self._account, self._read_at_s = account, time.monotonic()
        return account

    def count_served(self) -> None:
        """Count the main turns of agents that are not counted yet. Blocks. Raises StoreError."""
        while self._spending.add_served(self.price_served):
            pass

    def first_day(self, days: int) -> str:
        """The first of so many days, today the last of them."""
        return self._day(self._now() - timedelta(days=days - 1))

    def price_served(self, received_at: datetime, model: str, usage: Usage) -> tuple[SpendingKey, Spending]:
        """An agent's main turn as it is counted."""
        counted = replace(_priced(usage, self._prices.of(model)), turns=1, calls=1)
        return SpendingKey(self._day(received_at), SERVED, model), counted

    async def _admit(self, purpose: Purpose, call: Spending) -> None:
        # A verdict that a skill in the making needs is a part of trying it.
        waits_as = (Purpose.REPLAY if purpose is Purpose.JUDGE and learned_item() else purpose).value
        while True:
            changed = self._changed
            account = await run_sync(self._current)
            if self._has_room(account, purpose, call):
                self._note(purpose, is_refused=False)
                return
            self._note(purpose, is_refused=True)
            if purpose in _NEVER_WAITS or not waits_for_budget():
                raise BudgetError(
                    f"today's learning budget is used up ({account.used_tokens:,} of {account.limit_tokens:,} tokens); it is"
                    f" renewed at {account.resets_at:%H:%M}. To go on now, raise learning.daily_tokens or learning.daily_cost"
                )
            if not self._waiting[waits_as]:
                log.info("learning_waits for=%s used=%d limit=%d", waits_as, account.used_tokens, account.limit_tokens)
            self._waiting[waits_as] += 1
            try:
                until_midnight_s = (account.resets_at - self._now()).total_seconds()
                with anyio.move_on_after(min(_LOOK_AGAIN_S, max(0.1, until_midnight_s))):
                    await changed.wait()
            finally:
                self._waiting[waits_as] -= 1

    def _note(self, purpose: Purpose, *, is_refused: bool) -> None:
        """Remember whether the last request of a purpose that never waits was refused."""
        if is_refused and purpose in _NEVER_WAITS:
            self._refused.add(purpose)
        else:
            self._refused.discard(purpose)

    def _has_room(self, account: Account, purpose: Purpose, call: Spending, *, with_reserve: bool = True) -> bool:
        under_way = sum(self._under_way.values(), Spending())
        with_reserve = with_reserve and purpose is Purpose.LISTEN
        return account.has_room(call, under_way, _share(purpose), with_reserve=with_reserve)

    def _current(self) -> Account:
        """Today's account as it was known a moment ago. Blocks."""
        now, account = self._now(), self._account
        is_of_today = account is not None and account.day == self._day(now)
        if account is not None and is_of_today and time.monotonic() - self._read_at_s < _READ_AGAIN_S:
            return account
        try:
            return self.account()
        except StoreError as error:
            log.debug("budget_unread reason=%s", error)
            return account if account is not None and is_of_today else self._account_of(now, {})

    def _account_of(self, now: datetime, sums: Sums) -> Account:
        day, limits = self._day(now), self._limits
        own = (spent for key, spent in sums.items() if key.day == day and key.purpose != SERVED)
        local = now.astimezone(self._zone)
        midnight = datetime.combine(local.date() + timedelta(days=1), time_of_day.min)
        return Account(
            day=day,
            # A naive time is taken for one of the system's zone.
            resets_at=midnight.astimezone() if self._zone is None else midnight.replace(tzinfo=self._zone),
            limit_tokens=_default_tokens(day, sums) if limits.daily_tokens is None else limits.daily_tokens,
            limit_cost=limits.daily_cost,
            is_for_unpriced=limits.daily_tokens is None and limits.daily_cost is not None,
            reserve_tokens=RESERVE_TOKENS if limits.daily_tokens is None and limits.daily_cost is None else 0,
            spent=sum(own, Spending()),
        )

    def _write(self, sums: Sums) -> bool:
        """Whether the sums are in the store. Blocks."""
        try:
            self._spending.add(sums)
        except MetaClawError as error:
            log.warning("calls_not_counted_yet reason=%s", error)
            return False
        account = self._account
        if account is not None:
            own = (spent for key, spent in sums.items() if key.day == account.day)
            self._account = replace(account, spent=sum(own, account.spent))
        return True

    def day_of(self, instant: datetime) -> date:
        """The day on which this was, in the configured time zone."""
        return instant.astimezone(self._zone).date()

    def _day(self, instant: datetime) -> str:
        return self.day_of(instant).isoformat()


class _Charge:
    """The calls of one request so far."""

    def __init__(self) -> None:
        self.spent = Spent()

    def add(self, spent: Spent) -> None:
        mine, more = self.spent, spent
        usage = Usage(
            mine.usage.input_tokens + more.usage.input_tokens,
            mine.usage.output_tokens + more.usage.output_tokens,
            mine.usage.cached_tokens + more.usage.cached_tokens,
        )
        self.spent = Spent(mine.calls + more.calls, mine.failures + more.failures, mine.estimated + more.estimated, usage)


def _share(purpose: Purpose) -> float:
    """The share of the limits up to which a call may be made here."""
    if purpose in _NEVER_WAITS:
        return _ALL
    is_for_skill = purpose in (Purpose.EVOLVE, Purpose.REPLAY) or bool(learned_item())
    return _FOR_SKILLS if is_for_skill else _FOR_TURNS


def _default_tokens(day: str, sums: Sums) -> int:
    """A tenth of the day's own traffic, or of the recent days' average if that is more, and never less than the floor."""
    traffic: Counter[str] = Counter()
    for key, spent in sums.items():
        if key.purpose == SERVED:
            traffic[key.day] += spent.tokens
    today = traffic.pop(day, 0)
    average = sum(traffic.values()) / len(traffic) if traffic else 0.0
    return max(FLOOR_TOKENS, int(SHARE_OF_TRAFFIC * max(today, average)))


def _sized(tokens: int, price: Price | None) -> Spending:
    """A call that is still to be made."""
    return _priced(Usage(tokens, 0), price)


def _priced(usage: Usage, price: Price | None) -> Spending:
    return Spending(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        unpriced_tokens=usage.input_tokens + usage.output_tokens if price is None else 0,
        cost=0.0 if price is None else price.cost(usage),
    )
