"""Research runs: for every seed and condition a proxy home of its own, and runs one after the other
in front of it.

    research.json       what is compared; a run with --resume must be the same
    research.jsonl      every attempt and run, a line each; at the end how the conditions compare
    <condition>/seed-N/ home/, proxy.log, run-1/ …, and after/: a copy of the home at the end of the last finished run

A run is done when its records are written. A resumed comparison puts each home back to the end of
its last finished run."""

import json
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio
import msgspec
from anyio.to_thread import run_sync

from metaclaw.plugin import ConfigError
from metaclaw_bench.conditions import Condition, as_toml
from metaclaw_bench.json_types import Json
from metaclaw_bench.lock import locked
from metaclaw_bench.research.asking import HttpModel
from metaclaw_bench.research.autoresearchclaw import check, drive
from metaclaw_bench.research.comparing import compare
from metaclaw_bench.research.laboratory import SandboxLaboratory
from metaclaw_bench.research.mistakes import SlippingResearcher
from metaclaw_bench.research.pipeline import Pipeline, Progress, RunPlan
from metaclaw_bench.research.records import (
    RECORDS,
    AttemptRecord,
    Record,
    RunRecord,
    append_records,
    read_research,
    write_research,
)
from metaclaw_bench.research.settings import Job, ResearchResult, ResearchSettings
from metaclaw_bench.research.simulated import Researcher
from metaclaw_bench.running.learning import settle
from metaclaw_bench.running.plan import Endpoint, Provider, duration
from metaclaw_bench.running.proxy import Place, running
from metaclaw_bench.running.turns import Ledger
from metaclaw_bench.simulated.model import MODEL, SimulatedModel
from metaclaw_bench.simulated.server import serving

_FACTS: Final = "research.json"
# What belongs to a running process.
_NOT_KEPT: Final = ("run", "logs", "ledger.db-shm")


async def run_research(
    settings: ResearchSettings,
    progress: Progress = lambda line: None,
    *,
    parallel: int = 1,
    resume: bool = False,
) -> ResearchResult:
    """Run everything, `parallel` homes side by side, and compare every other condition with the
    first.

    With `resume`, finished runs of an interrupted comparison are kept. Raises ConfigError where
    another one lies there."""
    settings = replace(
        settings, out=settings.out.absolute()
    )  # a program that is driven has another working folder
    check(settings)
    with locked(settings.out):
        return await _run(settings, progress, parallel=parallel, resume=resume)


async def _run(
    settings: ResearchSettings, progress: Progress, *, parallel: int, resume: bool
) -> ResearchResult:
    runs = _begin(settings, resume=resume)
    limiter = anyio.CapacityLimiter(parallel)
    total, before, began = (
        len(settings.seeds) * len(settings.conditions) * settings.runs,
        len(runs),
        time.monotonic(),
    )
    progress(f"{total - before} of {total} runs to do{settings.estimate(total - before)}")

    async def run_cell(cell: "_Cell") -> None:
        async with limiter:
            async for found in cell.run(progress):
                append_records(settings.out / RECORDS, found)
                runs.extend(one for one in found if isinstance(one, RunRecord))
                seconds = (time.monotonic() - began) / (len(runs) - before) * (total - len(runs))
                spent = sum(one.cost or 0.0 for one in runs)
                cost = "" if settings.prices is None else f", {spent:.2f} US dollars so far"
                progress(f"{len(runs)} of {total} runs done, about {duration(seconds)} left{cost}")

    async with anyio.create_task_group() as group:
        for seed in settings.seeds:
            for condition in settings.conditions:
                done = sum((one.condition, one.seed) == (condition.name, seed) for one in runs)
                if done < settings.runs:
                    group.start_soon(run_cell, _Cell(settings, condition, seed, done))
    order = [one.name for one in settings.conditions]
    runs.sort(key=lambda one: (one.seed, order.index(one.condition), one.run))
    comparisons = compare(runs, order)
    append_records(settings.out / RECORDS, comparisons)
    return ResearchResult(settings.out / RECORDS, tuple(runs), tuple(comparisons))


def _begin(settings: ResearchSettings, *, resume: bool) -> list[RunRecord]:
    """Make the folder ready. Returns the runs that are done; everything else of an interrupted
    comparison is dropped.
    """
    facts, path = settings.facts(), settings.out / _FACTS
    if not path.exists():
        if (settings.out / RECORDS).exists():
            raise ConfigError(f"{settings.out / RECORDS} is there already: choose another --out")
        for left in (
            settings.out / one.name / f"seed-{seed}"
            for one in settings.conditions
            for seed in settings.seeds
        ):
            if left.exists():
                raise ConfigError(
                    f"{left} is there already, from a run that was not finished or another: choose"
                    " another --out"
                )
        settings.out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts, indent=1), "utf-8")
        return []
    known: Json = json.loads(path.read_bytes())
    if known != json.loads(json.dumps(facts)):
        names = [
            name for name in facts if not isinstance(known, dict) or known.get(name) != facts[name]
        ]
        raise ConfigError(
            f"{settings.out} holds another comparison: it differs in {', '.join(names)}; choose"
            " another --out"
        )
    if not resume:
        raise ConfigError(
            f"{settings.out} holds this comparison already: go on with --resume, or choose another"
            " --out"
        )
    before = read_research(settings.out / RECORDS) if (settings.out / RECORDS).exists() else []
    done = [one for one in before if isinstance(one, RunRecord)]
    kept = {(one.condition, one.seed, one.run) for one in done}
    attempts = [
        one
        for one in before
        if isinstance(one, AttemptRecord) and (one.condition, one.seed, one.run) in kept
    ]
    write_research(settings.out / RECORDS, [*attempts, *done])
    return done


@dataclass(frozen=True, slots=True)
class _Cell:
    """The runs of one condition and seed, each with a freshly started proxy on the home the run
    before left.
    """

    settings: ResearchSettings
    condition: Condition
    seed: int
    done: int

    @property
    def root(self) -> Path:
        return self.settings.out / self.condition.name / f"seed-{self.seed}"

    async def run(self, progress: Progress) -> AsyncIterator[Sequence[Record]]:
        """The records of each run that is left, as it is done."""
        await run_sync(self._restore)
        place = Place(self.root / "home", self.root / "proxy.log")
        perform = _own if self.settings.autoresearchclaw is None else drive
        unlearned: tuple[str, ...] = ()
        async with _backed(self.settings, self.seed) as provider:
            config = provider.toml() + "\n" + as_toml(self.condition.settings())
            for number in range(self.done + 1, self.settings.runs + 1):
                async with running(place, config, provider.model, sets=self.settings.sets) as front:
                    ledger = Ledger(front.api)
                    await ledger.new_turns()
                    folder = self.root / f"run-{number}"
                    job = Job(
                        self.settings,
                        self.condition,
                        self.seed,
                        number,
                        front,
                        ledger,
                        place.home,
                        folder,
                    )
                    records = _completed(await perform(job, progress), self.settings, unlearned)
                    if self.condition.learns and number < self.settings.runs:
                        unlearned = (await settle(front.api, self.settings.patience)).left
                await run_sync(self._keep)
                yield records

    def _restore(self) -> None:
        """Put the home back to the end of the last finished run, and remove what an unfinished one
        left.
        """
        shutil.rmtree(self.root / "home", ignore_errors=True)
        for number in range(self.done + 1, self.settings.runs + 1):
            shutil.rmtree(self.root / f"run-{number}", ignore_errors=True)
        if self.done:
            shutil.copytree(self.root / "after", self.root / "home", symlinks=True)

    def _keep(self) -> None:
        part, kept = self.root / ".after.part", self.root / "after"
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(
            self.root / "home", part, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_KEPT)
        )
        shutil.rmtree(kept, ignore_errors=True)
        part.replace(kept)


async def _own(job: Job, progress: Progress) -> Sequence[Record]:
    settings = job.settings
    plan = RunPlan(
        job.condition.name,
        job.seed,
        job.number,
        job.is_simulated,
        settings.topic(job.seed, job.number),
        settings.max_retries,
        states_rules=settings.mistakes is None,
    )
    model = HttpModel(
        job.front.base_url,
        job.front.api.key,
        job.front.model,
        submits=settings.mistakes is not None,
    )
    ran = await Pipeline(model, SandboxLaboratory(), plan, job.folder, progress).run()
    return [*ran.attempts, ran.run]


def _completed(
    records: Sequence[Record], settings: ResearchSettings, unlearned: tuple[str, ...]
) -> Sequence[Record]:
    """The records with what the run cost, and what was still to be learned when it began."""

    def completed(run: RunRecord) -> RunRecord:
        cost = (
            None if settings.prices is None else settings.prices.cost(run.tokens_in, run.tokens_out)
        )
        return msgspec.structs.replace(run, unlearned=unlearned, cost=cost)

    return [completed(one) if isinstance(one, RunRecord) else one for one in records]


@asynccontextmanager
async def _backed(settings: ResearchSettings, seed: int) -> AsyncIterator[Provider]:
    if settings.provider is not None:
        yield settings.provider
        return
    mind: SimulatedModel = Researcher(seed, settings.habits)
    if settings.mistakes is not None:
        mind = SlippingResearcher(seed, settings.mistakes)
    async with serving(mind) as url:
        yield Endpoint(url, MODEL, is_simulated=True)
