"""Conditions side by side: for every seed and condition a proxy of its own, and runs one after the other in front of it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from metaclaw.plugin import ConfigError
from metaclaw_bench.conditions import Condition, as_toml
from metaclaw_bench.research.asking import HttpModel
from metaclaw_bench.research.autoresearchclaw import check, drive
from metaclaw_bench.research.comparing import compare
from metaclaw_bench.research.laboratory import SandboxLaboratory
from metaclaw_bench.research.pipeline import Pipeline, Progress, RunPlan
from metaclaw_bench.research.records import Record, RunRecord, append_records
from metaclaw_bench.research.settings import Job, ResearchResult, ResearchSettings
from metaclaw_bench.research.simulated import Researcher
from metaclaw_bench.running.learning import settle
from metaclaw_bench.running.plan import Endpoint, Provider
from metaclaw_bench.running.proxy import Place, running
from metaclaw_bench.running.turns import Ledger
from metaclaw_bench.simulated.model import MODEL
from metaclaw_bench.simulated.server import serving

RECORDS: Final = "research.jsonl"


async def run_research(settings: ResearchSettings, progress: Progress = lambda line: None) -> ResearchResult:
    """Run everything, one after the other, and compare every other condition with the first."""
    settings = replace(settings, out=settings.out.absolute())  # a program that is driven has another working folder
    records = settings.out / RECORDS
    if records.exists():
        raise ConfigError(f"{records} is there already: choose another --out, or delete it to run again")
    check(settings)
    _refuse_leftovers(settings)
    runs: list[RunRecord] = []
    for seed in settings.seeds:
        for condition in settings.conditions:
            async for found in _runs_of(settings, condition, seed, progress):
                append_records(records, found)
                runs += [one for one in found if isinstance(one, RunRecord)]
    comparisons = compare(runs, [one.name for one in settings.conditions])
    append_records(records, comparisons)
    return ResearchResult(records, tuple(runs), tuple(comparisons))


def _refuse_leftovers(settings: ResearchSettings) -> None:
    """What a run that broke off has learned, or left in its folders, would be taken for this one's."""
    for seed in settings.seeds:
        for condition in settings.conditions:
            if (root := _root(settings, condition, seed)).exists():
                raise ConfigError(
                    f"{root} is there already, from a run that was not finished or another: choose another --out, or delete it"
                )


def _root(settings: ResearchSettings, condition: Condition, seed: int) -> Path:
    return settings.out / condition.name / f"seed-{seed}"


async def _runs_of(
    settings: ResearchSettings, condition: Condition, seed: int, progress: Progress
) -> AsyncIterator[Sequence[Record]]:
    """The runs of one condition and seed, in front of one proxy that keeps what it learns from one to the next."""
    root = _root(settings, condition, seed)
    place = Place(root / "home", root / "proxy.log")
    perform = _own if settings.autoresearchclaw is None else drive
    async with _backed(settings, seed) as provider:
        config = provider.toml() + "\n" + as_toml(condition.settings())
        async with running(place, config, provider.model, sets=settings.sets) as front:
            ledger = Ledger(front.api)
            unlearned: tuple[str, ...] = ()
            for number in range(1, settings.runs + 1):
                job = Job(settings, condition, seed, number, front, ledger, place.home, root / f"run-{number}")
                yield _marked(await perform(job, progress), unlearned)
                if condition.learns and number < settings.runs:
                    unlearned = (await settle(front.api, settings.patience)).left


async def _own(job: Job, progress: Progress) -> Sequence[Record]:
    settings = job.settings
    plan = RunPlan(
        job.condition.name,
        job.seed,
        job.number,
        job.is_simulated,
        settings.topic(job.seed, job.number),
        settings.max_retries,
    )
    model = HttpModel(job.front.base_url, job.front.api.key, job.front.model)
    ran = await Pipeline(model, SandboxLaboratory(), plan, job.folder, progress).run()
    return [*ran.attempts, ran.run]


def _marked(records: Sequence[Record], unlearned: tuple[str, ...]) -> Sequence[Record]:
    return [msgspec.structs.replace(one, unlearned=unlearned) if isinstance(one, RunRecord) else one for one in records]


@asynccontextmanager
async def _backed(settings: ResearchSettings, seed: int) -> AsyncIterator[Provider]:
    if settings.provider is not None:
        yield settings.provider
        return
    async with serving(Researcher(seed, settings.habits)) as url:
        yield Endpoint(url, MODEL, is_simulated=True)
