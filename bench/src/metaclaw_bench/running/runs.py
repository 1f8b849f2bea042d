"""Whole runs: the days of a plan in order, each with a freshly started proxy on the home the day
before left; several side by side.

A proxy that is started anew each day costs a second. It makes the copy of its home complete, and a
run that was interrupted does after its resumption exactly what it would have done without the
interruption."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from metaclaw.plugin import ConfigError
from metaclaw_bench.data import digest
from metaclaw_bench.lock import locked
from metaclaw_bench.running.day import DayRun, MakeAgent, Tell
from metaclaw_bench.running.folder import Folder, is_done, share_models
from metaclaw_bench.running.plan import Embedded, Endpoint, Plan
from metaclaw_bench.running.proxy import running
from metaclaw_bench.simulated.model import MODEL, SimulatedModel
from metaclaw_bench.simulated.server import serving


@dataclass(frozen=True, slots=True)
class Runs:
    """Plans to run below one output folder. `make_model` is who answers where the model is
    simulated, `make_judge` who judges where the judge is."""

    out: Path
    make_agent: MakeAgent
    tell: Tell = lambda plan, stage, record: None
    make_model: Callable[[Plan], SimulatedModel] | None = None
    make_judge: Callable[[Plan], SimulatedModel] | None = None

    def done(self, plan: Plan) -> bool:
        """Whether this run lies there already, complete."""
        return is_done(self.out / plan.name, plan)

    def rounds_done(self, plan: Plan) -> int:
        """How many rounds of this run lie there already."""
        return Folder(self.out / plan.name).rounds_done(plan)

    async def run_all(
        self, plans: Sequence[Plan], *, at_once: int = 1, resume: bool = False
    ) -> None:
        """All of them, `at_once` side by side. With `resume`, those that are done are passed
        over.
        """
        limiter = anyio.CapacityLimiter(at_once)

        async def one(plan: Plan) -> None:
            async with limiter:
                await self.run(plan, resume=resume)

        async with anyio.create_task_group() as group:
            for plan in plans:
                if not (resume and self.done(plan)):
                    group.start_soon(one, plan)

    async def run(self, plan: Plan, *, resume: bool = False) -> Path:
        """One run from where it stands to its end; the folder it lies in. Raises ConfigError where
        it cannot begin there.
        """
        folder = Folder(self.out / plan.name)
        with locked(folder.root):
            return await self._run(plan, folder, resume=resume)

    async def _run(self, plan: Plan, folder: Folder, *, resume: bool) -> Path:
        root = plan.benchmark.root
        before = await run_sync(_digest, root)
        left = await run_sync(lambda: folder.begin(plan, before, resume=resume))
        async with self._backed(plan) as backed:
            for stage in left:
                if isinstance(plan.provider, Embedded):
                    share_models(self.out, folder.place.home)
                async with running(
                    folder.place, backed.config(stage), backed.provider.model, sets=plan.sets
                ) as front:
                    await DayRun(backed, stage, folder, front, self.tell).run(
                        self.make_agent(front, stage)
                    )
                await run_sync(folder.keep_day, stage)
        folder.finish(await run_sync(_digest, root))
        return folder.root

    @asynccontextmanager
    async def _backed(self, plan: Plan) -> AsyncIterator[Plan]:
        """The plan with the addresses of whoever is simulated, who run as long as the block."""
        async with AsyncExitStack() as stack:
            if plan.provider.is_simulated:
                plan = replace(plan, provider=await _played(stack, plan, self.make_model))
            if plan.judge is not None and plan.judge.is_simulated:
                plan = replace(plan, judge=await _played(stack, plan, self.make_judge))
            yield plan


async def _played(
    stack: AsyncExitStack, plan: Plan, make: Callable[[Plan], SimulatedModel] | None
) -> Endpoint:
    if make is None:
        raise ConfigError("a simulated model was asked for, and nobody to play it is given")
    return Endpoint(await stack.enter_async_context(serving(make(plan))), MODEL, is_simulated=True)


def _digest(root: Path) -> str | None:
    """The data's digest; None for a benchmark that lies nowhere on disk."""
    return digest(root) if root.is_dir() else None
