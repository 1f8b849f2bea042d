"""The learning budget: limits and counts what the program's own calls to models cost in a day.

Every call goes through `Budget.charge`. A call that exceeds the rest of the day's budget waits
until midnight, or until the limit grows with the day's traffic; a purpose that must not wait is
refused instead. A call is counted in the store before its answer is used, so a crash loses at most
the calls under way, and all processes count into the same sums.

Each purpose may spend up to a share of the limit. Verdicts on turns and the training of weights
stop first, then new skills and the proof of trained weights; the last fifth is only for reading
messages of people. With the default limit reading has a reserve, which it uses up before it counts:
who talks much does not stop lessons.

Requests that ask a provider again because of a held rule are never refused, but count against the
limits."""

import logging
import re
import time
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from functools import lru_cache
from importlib.resources import files
from typing import Final
from zoneinfo import ZoneInfo

import anyio
from anyio.to_thread import run_sync

from metaclaw import __version__
from metaclaw.clock import utc_now
from metaclaw.config import Config, PriceConfig
from metaclaw.domain.chat import Usage
from metaclaw.domain.status import SERVED, Spending, SpendingKey
from metaclaw.errors import BudgetError, MetaClawError, StoreError
from metaclaw.ports import Purpose
from metaclaw.store import SqlSpending, Sums
from metaclaw.telemetry import OwnCalls, observer_of, tell
from metaclaw.upstream import Charge, Spent, waits_for_budget

log = logging.getLogger(__name__)

_TABLE: Final = tomllib.loads((files("metaclaw.learn") / "prices.toml").read_text(encoding="utf-8"))
PRICES_AS_OF: Final[str] = _TABLE["as_of"]
"""When the built-in prices were written down. Prices change: `learning.prices` comes first."""
_DATED: Final = re.compile(r"(?:-\d{4}-\d{2}-\d{2}|-\d{8}|@\d{8}|-latest|-\d{3,4})$")

FLOOR_TOKENS: Final = 300_000
RESERVE_TOKENS: Final = 1_000_000
"""For reading messages of people, beyond the default limit: about a thousand messages a day."""
SHARE_OF_TRAFFIC: Final = 0.1
_DAYS_AVERAGED: Final = 7
_ALL: Final = 1.0
_FOR_SKILLS: Final = 0.8
_FOR_TURNS: Final = 0.6
_NEVER_WAITS: Final = frozenset((Purpose.LISTEN, Purpose.CONFIRM))
_UNLIMITED: Final = 1e15
_READ_AGAIN_S: Final = 5.0
_LOOK_AGAIN_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a model per million tokens."""

    input: float
    output: float
    cached: float

    def cost(self, usage: Usage) -> float:
        """The cost of these tokens. Writing to a provider's cache counts as input."""
        fresh = max(0, usage.input_tokens - usage.cached_tokens)
        return (
            fresh * self.input
            + usage.cached_tokens * self.cached
            + usage.output_tokens * self.output
        ) / 1e6


class Prices:
    """Finds the price of a model by `provider/model`."""

    def __init__(self, configured: Sequence[PriceConfig] = ()) -> None:
        self._configured = {
            price.model: Price(
                price.input, price.output, price.input if price.cached is None else price.cached
            )
            for price in configured
        }
        self.of = lru_cache(maxsize=256)(self._find)
        """The price of `provider/model`, or None if it is not known."""

    def _find(self, name: str) -> Price | None:
        model = name.partition("/")[2]
        for known in (name, model):
            if known in self._configured:
                return self._configured[known]
        # Routers put the maker in front ("anthropic/claude-sonnet-4-5"); releases have a date at
        # the end.
        price = _TABLE["prices"].get(_DATED.sub("", model.rpartition("/")[2].lower()))
        return None if price is None else Price(*price)


@dataclass(frozen=True, slots=True)
class Account:
    """The limits and the spending of one day. `limit_cost` is None if money is not limited;
    `is_for_unpriced` says that the token limit is only for models without a price."""

    day: str
    resets_at: datetime
    limit_tokens: int
    limit_cost: float | None
    is_for_unpriced: bool
    reserve_tokens: int = 0
    spent: Spending = Spending()  # noqa: RUF009 (frozen)
    read: Spending = Spending()  # noqa: RUF009 (frozen)
    """What of it reading messages took."""

    @property
    def used_tokens(self) -> int:
        """The tokens that count against the token limit."""
        return self._counted(self.spent) - self._from_reserve

    @property
    def _from_reserve(self) -> int:
        return min(self._counted(self.read), self.reserve_tokens)

    def has_room(
        self, call: Spending, under_way: Spending, share: float, *, with_reserve: bool = False
    ) -> bool:
        """Whether a call fits into this share of the limits, together with the calls under way."""
        total = self.spent + under_way + call
        reserve = self.reserve_tokens if with_reserve else self._from_reserve
        if self._counted(call) and self._counted(total) > share * self.limit_tokens + reserve:
            return False
        return self.limit_cost is None or not call.cost or total.cost <= share * self.limit_cost

    def room(self, under_way: Spending, share: float, price: Price | None) -> "TokenRoom":
        """The rest of this share of the limits, and the whole share, in tokens of a model with this
        price.
        """
        spent = self.spent + under_way
        limits = []
        if price is None or not self.is_for_unpriced:
            whole = share * self.limit_tokens
            left = whole - self._counted(spent) + self._from_reserve
            limits.append((left, whole, "learning.daily_tokens"))
        if self.limit_cost is not None and price is not None and price.input > 0.0:
            whole, tokens = share * self.limit_cost, 1e6 / price.input
            limits.append((tokens * (whole - spent.cost), tokens * whole, "learning.daily_cost"))
        least, whole, setting = min(
            limits, default=(_UNLIMITED, _UNLIMITED, "learning.daily_tokens")
        )
        return TokenRoom(max(0, int(least)), int(whole), self.resets_at, setting)

    def facts(self) -> dict[str, object]:
        """The account as JSON, for `status`."""
        left_cost = (
            None
            if self.limit_cost is None
            else round(max(0.0, self.limit_cost - self.spent.cost), 6)
        )
        return {
            "day": self.day,
            "limit": self.limit_tokens,
            "used": self.used_tokens,
            "left": max(0, self.limit_tokens - self.used_tokens),
            "reading": self._from_reserve,
            "limit_cost": self.limit_cost,
            "used_cost": round(self.spent.cost, 6),
            "left_cost": left_cost,
            "unpriced_tokens": self.spent.unpriced_tokens,
            "resets_at": self.resets_at.isoformat(timespec="seconds"),
        }

    def _counted(self, spent: Spending) -> int:
        return spent.unpriced_tokens if self.is_for_unpriced else spent.tokens


@dataclass(frozen=True, slots=True)
class TokenRoom:
    """The tokens that calls of one purpose may still use today, and in a whole day; when today
    ends, and the setting that limits them."""

    left: int
    a_day: int
    resets_at: datetime
    setting: str


class Budget:
    """Admits calls and counts them (upstream.Meter)."""

    def __init__(
        self,
        config: Config,
        spending: SqlSpending,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._observer = observer_of(config.telemetry.otlp, __version__)
        self._limits = config.learning
        self._spending = spending
        self._zone = (
            None if config.schedule.timezone is None else ZoneInfo(config.schedule.timezone)
        )
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
        """The number of requests that wait for the budget, by purpose; for a purpose that never
        waits, 1 if its last request was refused."""
        refused = {purpose.value: 1 for purpose in self._refused}
        return {purpose: count for purpose, count in {**refused, **self._waiting}.items() if count}

    async def may_spend(self, purpose: Purpose, tokens: int, model: str = "") -> bool:
        """Whether a call of about `tokens` tokens to `provider/model` would be admitted now,
        without waiting."""
        call = _priced(Usage(tokens, 0), self._prices.of(model))
        has_room = self._has_room(await run_sync(self._current), purpose, call)
        self._note(purpose, is_refused=not has_room)
        return has_room

    async def room(self, purpose: Purpose, model: str) -> TokenRoom:
        """The tokens of input that calls of a purpose to `provider/model` may use, for planning a
        long run.
        """
        account, price = await run_sync(self._current), self._prices.of(model)
        return account.room(sum(self._under_way.values(), Spending()), _share(purpose), price)

    @asynccontextmanager
    async def charge(self, purpose: Purpose, model: str, tokens: int) -> AsyncIterator[Charge]:
        """Make the calls of one request inside; see `upstream.Meter`."""
        call = _priced(Usage(tokens, 0), self._prices.of(model))
        await self._admit(purpose, call)
        charge, began = _Charge(), self._now()
        self._under_way[id(charge)] = call
        try:
            yield charge
        finally:
            with anyio.CancelScope(shield=True):
                await self.count(purpose, model, charge.spent)
            if self._observer is not None:
                spent = charge.spent
                made = OwnCalls(
                    purpose.value,
                    model,
                    began,
                    self._now(),
                    spent.calls,
                    spent.failures,
                    spent.usage,
                )
                tell(self._observer.own_calls, made)
            del self._under_way[id(charge)]
            self._changed.set()
            self._changed = anyio.Event()

    async def count(self, purpose: Purpose, model: str, spent: Spent, turns: int = 0) -> None:
        """Add to today's sums in the store. If the store fails, the next call writes them."""
        counts = {
            "turns": turns,
            "calls": spent.calls,
            "failures": spent.failures,
            "estimated": spent.estimated,
        }
        counted = replace(_priced(spent.usage, self._prices.of(model)), **counts)
        if counted == Spending():
            return
        key = SpendingKey(self._day(self._now()), purpose.value, model)
        self._unwritten[key] = self._unwritten.get(key, Spending()) + counted
        async with (
            self._writing
        ):  # one write for all calls that were counted while another write ran
            if self._unwritten:
                sums, self._unwritten = self._unwritten, {}
                if not await run_sync(self._write, sums):
                    for unwritten, more in sums.items():
                        self._unwritten[unwritten] = (
                            self._unwritten.get(unwritten, Spending()) + more
                        )

    def account(self) -> Account:
        """Today's account. Blocks. Raises StoreError."""
        self.count_served()
        now = self._now()
        account = self._account_of(
            now, self._spending.sums(self._day(now - timedelta(days=_DAYS_AVERAGED)))
        )
        if self._account is not None and self._account.day != account.day:
            self._refused.clear()
        self._account, self._read_at_s = account, time.monotonic()
        return account

    def count_served(self) -> None:
        """Count the agents' main turns that have not been counted yet. Blocks. Raises
        StoreError.
        """
        while self._spending.add_served(self.price_served):
            pass

    def first_day(self, days: int) -> str:
        """The first of the last `days` days, of which today is the last."""
        return self._day(self._now() - timedelta(days=days - 1))

    def price_served(
        self, purpose: str, received_at: datetime, model: str, usage: Usage
    ) -> tuple[SpendingKey, Spending]:
        """The key and sums of a request of an agent's main turn: the turn itself, or a new try
        after held calls (`enforce`).
        """
        counted = replace(
            _priced(usage, self._prices.of(model)), turns=int(purpose == SERVED), calls=1
        )
        return SpendingKey(self._day(received_at), purpose, model), counted

    def cost_of(self, model: str, usage: Usage) -> float:
        """What a request costs; 0 if the price of its model is not known."""
        return _priced(usage, self._prices.of(model)).cost

    async def _admit(self, purpose: Purpose, call: Spending) -> None:
        waits_as = purpose.value
        while True:
            changed = self._changed
            account = await run_sync(self._current)
            if self._has_room(account, purpose, call):
                self._note(purpose, is_refused=False)
                return
            self._note(purpose, is_refused=True)
            if purpose in _NEVER_WAITS or not waits_for_budget():
                raise BudgetError(
                    f"today's learning budget is used up ({account.used_tokens:,} of"
                    f" {account.limit_tokens:,} tokens); it is renewed at"
                    f" {account.resets_at:%H:%M}. To go on now, raise learning.daily_tokens or"
                    " learning.daily_cost"
                )
            if not self._waiting[waits_as]:
                log.info(
                    "learning_waits for=%s used=%d limit=%d",
                    waits_as,
                    account.used_tokens,
                    account.limit_tokens,
                )
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

    def _has_room(self, account: Account, purpose: Purpose, call: Spending) -> bool:
        under_way = sum(self._under_way.values(), Spending())
        with_reserve = purpose in _NEVER_WAITS
        return account.has_room(call, under_way, _share(purpose), with_reserve=with_reserve)

    def _current(self) -> Account:
        """Today's account, at most 5 seconds old. Blocks."""
        now, account = self._now(), self._account
        is_of_today = account is not None and account.day == self._day(now)
        if (
            account is not None
            and is_of_today
            and time.monotonic() - self._read_at_s < _READ_AGAIN_S
        ):
            return account
        try:
            return self.account()
        except StoreError as error:
            log.debug("budget_unread reason=%s", error)
            return account if account is not None and is_of_today else self._account_of(now, {})

    def _account_of(self, now: datetime, sums: Sums) -> Account:
        day, limits = self._day(now), self._limits
        own = {
            key: spent for key, spent in sums.items() if key.day == day and key.purpose != SERVED
        }
        local = now.astimezone(self._zone)
        midnight = datetime.combine(local.date() + timedelta(days=1), time_of_day.min)
        return Account(
            day=day,
            # `astimezone` takes a naive time as local time.
            resets_at=(
                midnight.astimezone() if self._zone is None else midnight.replace(tzinfo=self._zone)
            ),
            limit_tokens=(
                _default_tokens(day, sums) if limits.daily_tokens is None else limits.daily_tokens
            ),
            limit_cost=limits.daily_cost,
            is_for_unpriced=limits.daily_tokens is None and limits.daily_cost is not None,
            reserve_tokens=(
                RESERVE_TOKENS if limits.daily_tokens is None and limits.daily_cost is None else 0
            ),
            spent=sum(own.values(), Spending()),
            read=_read(own),
        )

    def _write(self, sums: Sums) -> bool:
        """Write the sums to the store; return whether that succeeded. Blocks."""
        try:
            self._spending.add(sums)
        except MetaClawError as error:
            log.warning("calls_not_counted_yet reason=%s", error)
            return False
        account = self._account
        if account is not None:
            own = {key: spent for key, spent in sums.items() if key.day == account.day}
            self._account = replace(
                account,
                spent=sum(own.values(), account.spent),
                read=account.read + _read(own),
            )
        return True

    def day_of(self, instant: datetime) -> date:
        """The day of an instant in the configured time zone."""
        return instant.astimezone(self._zone).date()

    def _day(self, instant: datetime) -> str:
        return self.day_of(instant).isoformat()


class _Charge:
    """The calls of one request so far."""

    def __init__(self) -> None:
        self.spent = Spent()

    def add(self, spent: Spent) -> None:
        self.spent += spent


def _read(sums: Sums) -> Spending:
    """What reading messages took."""
    return sum((spent for key, spent in sums.items() if key.purpose in _NEVER_WAITS), Spending())


def _share(purpose: Purpose) -> float:
    """The share of the limits up to which a call for this purpose is admitted."""
    if purpose in _NEVER_WAITS:
        return _ALL
    is_for_skill = purpose in (Purpose.EVOLVE, Purpose.CHECK)
    return _FOR_SKILLS if is_for_skill else _FOR_TURNS


def _default_tokens(day: str, sums: Sums) -> int:
    """A tenth of the day's traffic, or of the recent days' average if that is more; at least
    `FLOOR_TOKENS`.
    """
    traffic: Counter[str] = Counter()
    for key, spent in sums.items():
        if key.purpose == SERVED:
            traffic[key.day] += spent.tokens
    today = traffic.pop(day, 0)
    average = sum(traffic.values()) / len(traffic) if traffic else 0.0
    return max(FLOOR_TOKENS, int(SHARE_OF_TRAFFIC * max(today, average)))


def _priced(usage: Usage, price: Price | None) -> Spending:
    return Spending(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        unpriced_tokens=usage.input_tokens + usage.output_tokens if price is None else 0,
        cost=0.0 if price is None else price.cost(usage),
    )
