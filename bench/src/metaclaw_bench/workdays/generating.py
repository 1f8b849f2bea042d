"""Working days out of a plan and a seed: the same for the same, byte for byte."""

import random
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from metaclaw.plugin import ConfigError
from metaclaw_bench.questions import Day, Said
from metaclaw_bench.workdays.choices import make_choice_item
from metaclaw_bench.workdays.demands import Rule
from metaclaw_bench.workdays.draw import Draw
from metaclaw_bench.workdays.model import Item, Workday, Workdays
from metaclaw_bench.workdays.persona import persona_of
from metaclaw_bench.workdays.plans import DayPlan, Plan, User, check_plan, working_day
from metaclaw_bench.workdays.rulebook import built_in_rules
from metaclaw_bench.workdays.tasks import InForce, make_file_item
from metaclaw_bench.workdays.words import LANGUAGES

_MIXED_FROM = 0.5
_TWO_FILES_FROM = 0.7
_DAYS_BETWEEN = 20
_MOST_TRIES = 100


@dataclass(frozen=True, slots=True)
class _Slot:
    """A day to be made. Rules are in force as on the day `rules_as_on`."""

    number: int
    plan: DayPlan
    rules_as_on: int
    source: str
    """Names the day's random numbers."""
    is_held_out: bool

    @property
    def name(self) -> str:
        """The day's folder. Held-out days are later days like any others: nothing in a task says
        that it is an exam.
        """
        return f"day{self.number:02d}"


def generate(seed: int, plan: Plan, extra_rules: Sequence[Rule] = ()) -> Workdays:
    """The benchmark of a plan. `extra_rules` are those of plug-in files; the plan says from when on
    they are in force.
    """
    slots = [
        _Slot(number, day, number, f"day{number:02d}", is_held_out=False)
        for number, day in enumerate(plan.days, 1)
    ]
    return _make(plan.name, seed, plan, extra_rules, slots)


def held_out(seed: int, plan: Plan, extra_rules: Sequence[Rule] = ()) -> Workdays:
    """Days of the same kind that share no name, thing, number, date or wording with the benchmark
    of the same seed.

    All rules are in force, as they are meant after the last day; how hard they are is spread as in
    the plan."""
    count, last = plan.held_out_days, len(plan.days)
    after = max(last, *plan.begins.values())
    chosen = [plan.days[last * (2 * nth + 1) // (2 * count)] for nth in range(count)]
    slots = [
        _Slot(last + _DAYS_BETWEEN + nth, day, after, f"held{nth:02d}", is_held_out=True)
        for nth, day in enumerate(chosen, 1)
    ]
    return _make(f"{plan.name}-held-out", seed, plan, extra_rules, slots)


def _make(
    name: str, seed: int, plan: Plan, extra_rules: Sequence[Rule], slots: Sequence[_Slot]
) -> Workdays:
    book = {rule.id: rule for rule in (*built_in_rules(), *extra_rules)}
    check_plan(plan, book)
    asked: set[str] = set()
    days = tuple(_make_day(seed, plan, book, slot, asked) for slot in slots)
    return Workdays(
        name,
        seed,
        days,
        persona_of(plan),
        tuple(book[rule] for rule in plan.begins),
        plan.first_date,
    )


def _make_day(
    seed: int, plan: Plan, book: Mapping[str, Rule], slot: _Slot, asked: set[str]
) -> Workday:
    """One day. `asked` are the questions there have been: none comes twice."""
    user = plan.users[(slot.number - 1) % len(plan.users)]
    draw = Draw(
        seed=seed,
        is_held_out=slot.is_held_out,
        language=user.language,
        words=LANGUAGES[user.language],
        domain=plan.domains[(slot.number - 1) % len(plan.domains)],
        folder=slot.name,
        date=working_day(plan.first_date, slot.number),
        level=slot.plan.level,
        user=user.name,
        random=random.Random(f"{plan.name}:{seed}:{slot.source}"),
        is_plain=plan.is_plain,
    )
    laws = _laws(plan, book, slot.rules_as_on, user)
    begins_with: dict[str, str] = {}
    items = _make_items(draw, laws, slot.plan, begins_with, asked)
    begins_with[f"{slot.name}/README.md"] = _readme(draw, begins_with)
    day = Day(
        id=slot.name,
        title=f"{slot.name}: {draw.domain}, {user.name}",
        session=f"{slot.name}_{uuid.UUID(int=draw.random.getrandbits(128), version=4)}",
        opening=(Said("user", _greet(draw)), Said("assistant", draw.words.reply)),
        rounds=tuple(item.round for item in items),
        folder=None,
        tags=tuple(law.rule.id for law in laws),
    )
    return Workday(day, slot.number, user.name, user.language, items, begins_with)


def _laws(plan: Plan, book: Mapping[str, Rule], day: int, user: User) -> list[InForce]:
    """The rules in force, the newest last."""
    active = plan.variants_on(day, user)
    drift = plan.drift.rule if plan.drift is not None and day >= plan.drift.day else None
    return [
        InForce(
            book[rule],
            variant or book[rule].variants[0],
            rule == drift and rule not in user.variants,
        )
        for rule, variant in sorted(active.items(), key=lambda pair: plan.begins[pair[0]])
    ]


def _make_items(
    draw: Draw, laws: Sequence[InForce], day: DayPlan, begins_with: dict[str, str], asked: set[str]
) -> tuple[Item, ...]:
    """Choices and file-checks, mixed; no file of one round is asked for by another, so no miss
    costs a later round.
    """
    kinds = ["choice"] * day.choices + ["files"] * day.files
    draw.random.shuffle(kinds)
    items: list[Item] = []
    for number, (kind, law) in enumerate(
        zip(kinds, _spread(draw, laws, len(kinds)), strict=True), 1
    ):
        if kind == "files":
            item = make_file_item(draw, _groups(draw, law, laws), number, begins_with)
        else:
            item = _make_new_choice(draw, _about(draw, law, laws), number, asked)
        asked.add(item.round.question)
        items.append(item)
    return tuple(items)


def _make_new_choice(
    draw: Draw, laws: Sequence[InForce], number: int, asked: Collection[str]
) -> Item:
    for _ in range(_MOST_TRIES):
        item = make_choice_item(draw, laws, number)
        if item.round.question not in asked:
            return item
    raise ConfigError(
        f"rule {laws[0].rule.id}: it makes up too few different facts for so many questions. Widen"
        " what it draws from."
    )


def _spread(draw: Draw, laws: Sequence[InForce], count: int) -> list[InForce]:
    """Which rule each round is mainly about: all in turn, the newest twice as often."""
    turn = [laws[-1], *reversed(laws)]
    return draw.random.sample([turn[nth % len(turn)] for nth in range(count)], count)


def _about(draw: Draw, main: InForce, laws: Sequence[InForce]) -> list[InForce]:
    if draw.level < _MIXED_FROM or len(laws) < 2 or draw.random.random() < 0.6:
        return [main]
    others = [law for law in laws if law is not main]
    return [main, *draw.random.sample(others, min(len(others), draw.random.randint(1, 3)))]


def _groups(draw: Draw, main: InForce, laws: Sequence[InForce]) -> list[list[InForce]]:
    """Which rules a file-check asks for, file by file. One at first; more, and a second file, as
    days get harder.
    """
    more = round(draw.level * 3 * (0.5 + 0.5 * draw.random.random()) - 0.4)
    others = [law for law in laws if law is not main]
    first = _compatible([main, *draw.random.sample(others, min(len(others), max(0, more)))])
    if draw.level < _TWO_FILES_FROM or draw.random.random() < 0.5:
        return [first]
    rest = [law for law in laws if law.rule.place == "inline"] or list(laws)
    return [first, [draw.random.choice(rest)]]


def _compatible(laws: Sequence[InForce]) -> list[InForce]:
    """A file is either new and only titled, or there already: of two such rules the first stays."""
    clashing = [law for law in laws if law.rule.place in ("name", "beside")][1:]
    return [law for law in laws if law not in clashing]


def _greet(draw: Draw) -> str:
    weekday = draw.words.weekdays.split()[draw.date.weekday()]
    return draw.wording(draw.words.greeting).format(
        weekday=weekday, date=draw.long_date(), folder=draw.folder, user=draw.user
    )


def _readme(draw: Draw, begins_with: Mapping[str, str]) -> str:
    return "\n".join([f"# {draw.folder}, {draw.date.isoformat()}", "", *sorted(begins_with)]) + "\n"
