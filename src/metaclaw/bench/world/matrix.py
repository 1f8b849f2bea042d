"""All conditions and ablations over all seeds: independent runs side by side; what is finished is kept and not run again."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Final, get_args

import anyio

from metaclaw.bench.records import PlanRecord, RecordError, read_records, write_records
from metaclaw.bench.workdays.generating import generate, held_out
from metaclaw.bench.workdays.model import Workday
from metaclaw.bench.workdays.plans import PART_ONE, Plan
from metaclaw.bench.world.diary import run_name
from metaclaw.bench.world.life import Life, live
from metaclaw.bench.world.settings import Ablation, Condition, Practice, Traits

CONDITIONS: Final[tuple[Condition, ...]] = get_args(Condition)
ABLATIONS: Final = (
    Ablation(gate="off"),
    Ablation(gate="lint"),
    Ablation(flush="none"),
    Ablation(flush="selective"),
    Ablation(scheduler="immediate"),
    Ablation(scheduler="fixed"),
    Ablation(evolver="weak"),
    Ablation(evolver="noisy"),
    Ablation(evolver="noisy", gate="off"),
    Ablation(evolver="noisy", gate="lint"),
    Ablation(separation="off"),
    Ablation(weights="off"),
    Ablation(separation="off", weights="off"),
)
_AGAIN: Final = 5


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: a condition, what is changed in it, and a seed."""

    condition: Condition
    ablation: Ablation
    seed: int

    @property
    def name(self) -> str:
        """Names the run, and its file."""
        return run_name(self.condition, self.ablation, self.seed)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a matrix has come. `is_old` says that the run was there already."""

    done: int
    of: int
    name: str
    is_old: bool


@dataclass(frozen=True, slots=True)
class _Settings:
    plan: Plan
    traits: Traits = field(default_factory=Traits)
    practice: Practice = field(default_factory=Practice)

    @property
    def words(self) -> str:
        return f"{self.plan.name}: {self.traits}, {self.practice}"


def cells(seeds: Sequence[int], conditions: Sequence[Condition], ablations: Sequence[Ablation]) -> Iterator[Cell]:
    """The conditions as they are, then what is changed in the full one, seed by seed."""
    for seed in seeds:
        for condition in conditions:
            yield Cell(condition, Ablation(), seed)
        for ablation in ablations:
            if ablation.labels:
                yield Cell("full", ablation, seed)


def run_matrix(
    out: Path,
    *,
    seeds: Sequence[int],
    plan: Plan = PART_ONE,
    conditions: Sequence[Condition] = CONDITIONS,
    ablations: Sequence[Ablation] = ABLATIONS,
    parallel: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    traits: Traits | None = None,
    practice: Practice | None = None,
) -> None:
    """Every run that is not there yet, as `<out>/<run>.jsonl`. Raises RecordError where a run is there with other settings."""
    settings = _Settings(plan, traits or Traits(), practice or Practice())
    wanted = list(cells(seeds, conditions, ablations))
    old = [cell for cell in wanted if _is_there(out, cell, settings)]
    new = [cell for cell in wanted if cell not in old]
    tell = _Teller(len(wanted), progress)
    for cell in old:
        tell(cell.name, is_old=True)
    for name in _run_all(out, new, settings, parallel or os.cpu_count() or 1):
        tell(name, is_old=False)


class _Teller:
    def __init__(self, of: int, progress: Callable[[Progress], None] | None) -> None:
        self._done = 0
        self._of = of
        self._progress = progress

    def __call__(self, name: str, *, is_old: bool) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(Progress(self._done, self._of, name, is_old))


def _run_all(out: Path, new: Sequence[Cell], settings: _Settings, parallel: int) -> Iterator[str]:
    if parallel == 1 or len(new) < 2:
        for cell in new:
            yield _run(out, cell, settings)
        return
    # Spawned, not forked: whoever calls may have threads.
    with ProcessPoolExecutor(min(parallel, len(new)), mp_context=get_context("spawn")) as pool:
        try:
            for future in as_completed([pool.submit(_run, out, cell, settings) for cell in new]):
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _run(out: Path, cell: Cell, settings: _Settings) -> str:
    stream, later = _days(_Order(cell.seed, repr(settings.plan), settings.plan))
    life = Life(
        stream=stream,
        held_out=later,
        again=min(_AGAIN, len(stream) // 2),
        condition=cell.condition,
        ablation=cell.ablation,
        seed=cell.seed,
        benchmark=settings.plan.name,
        traits=settings.traits,
        practice=settings.practice,
        words=settings.words,
    )
    write_records(_path(out, cell), anyio.run(live, life))
    return cell.name


@dataclass(frozen=True, slots=True)
class _Order:
    """Whose days are wanted. Plans hold tables, so they are told apart by what they look like."""

    seed: int
    looks: str
    plan: Plan = field(compare=False)


@lru_cache(maxsize=4)
def _days(order: _Order) -> tuple[tuple[Workday, ...], tuple[Workday, ...]]:
    made = (generate(order.seed, order.plan), held_out(order.seed, order.plan))
    stream, later = (tuple(formed(day, order.plan) for day in days.days) for days in made)
    return stream, later


def formed(day: Workday, plan: Plan) -> Workday:
    """A day whose rules name the form in which they are meant, where it is not the usual one: to follow another is to break it."""
    user = next(user for user in plan.users if user.name == day.user)
    forms = plan.variants_on(day.number, user)
    names = {rule: rule if form is None else f"{rule}={form}" for rule, form in forms.items()}
    items = tuple(replace(item, rules=tuple(names.get(rule, rule) for rule in item.rules)) for item in day.items)
    return replace(day, items=items)


def _is_there(out: Path, cell: Cell, settings: _Settings) -> bool:
    path = _path(out, cell)
    if not path.exists():
        return False
    first = next(iter(read_records(path)), None)
    if not isinstance(first, PlanRecord) or first.words != settings.words:
        raise RecordError(f"{path}: this run was made with other settings; name another folder, or delete this one")
    return True


def _path(out: Path, cell: Cell) -> Path:
    return out / f"{cell.name}.jsonl"
