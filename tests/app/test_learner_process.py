"""The learner's process: there when there is something to learn from, started again when it dies,
and unable to write.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from metaclaw.app.learner_process import LearnerProcess, Outbox, WorkerCommands, carry_out
from metaclaw.config import Config, build
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId
from metaclaw.errors import LearnerError, MetaClawError, StoreError
from metaclaw.learn.budget import Budget
from metaclaw.learn.store_rpc import CallError, LearnerStart, StoreCall
from metaclaw.skills import SkillLibrary
from metaclaw.store import (
    LedgerLimits,
    LedgerReader,
    SqlGenerations,
    SqlLedger,
    SqlSpending,
    open_database,
)

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def learner_of(home: Path) -> AsyncIterator[tuple[LearnerProcess, Callable[[], None]]]:
    """A learner on an empty home, and what to call when there is something to learn from."""
    work: list[bool] = []
    config: Config = build({"skills": {"gate": "lint"}}, home)
    database = open_database(config.store.url.resolve())
    ledger = SqlLedger(database)
    library = SkillLibrary(config.skills.dir, SqlGenerations(database))
    learner = LearnerProcess(
        begin=lambda: LearnerStart(config, (), Path("skills")),
        commands=WorkerCommands(
            database, ledger, library, {}, Budget(Config(), SqlSpending(database))
        ).by_name,
        has_work=lambda: bool(work),
    )
    yield learner, lambda: work.append(True)
    database.close()


async def until(is_so: Callable[[], object], within_s: float = 60) -> None:
    with anyio.fail_after(within_s):
        while not is_so():
            await anyio.sleep(0.01)


async def test_a_learner_is_started_when_it_is_needed_and_ends_with_the_program(
    tmp_path: Path,
) -> None:
    async with learner_of(tmp_path) as (learner, work), anyio.create_task_group() as group:
        assert (learner.lessons, learner.writing, learner.loops, learner.waiting) == (0, 0, {}, {})
        learner.forget_session(SessionId("s_1"))
        group.start_soon(learner.run)
        await anyio.sleep(0.05)
        pids = [learner.pid]
        work()
        await until(lambda: learner.pid)
        pids.append(learner.pid)
        assert learner.lessons == 1
        await until(lambda: learner.loops)
        assert set(learner.loops) == {
            "sensing",
            "compliance",
            "fast",
            "tending",
            "calibrating",
            "lessons",
            "procedures",
            "listening",
            "checks",
        }
        await until(lambda: learner.lessons == 0)
        assert learner.facts["gate"] == "lint"
        group.cancel_scope.cancel()
    before, during, after = *pids, learner.pid
    assert (before, after) == (None, None)
    assert during is not None
    with pytest.raises(ProcessLookupError):
        os.kill(during, 0)


async def test_a_learner_that_is_killed_is_an_error_to_be_told_and_everything_is_looked_at_anew(
    tmp_path: Path,
) -> None:
    async with learner_of(tmp_path) as (learner, _):
        learner.wake()
        ended: list[LearnerError] = []

        async def run() -> None:
            with pytest.raises(LearnerError, match="status -9") as error:
                await learner.run()
            ended.append(error.value)

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await until(lambda: learner.pid)
            assert learner.pid is not None
            os.kill(learner.pid, signal.SIGKILL)
        assert ended
        assert learner.lessons == 1


async def test_learners_that_are_killed_with_nothing_in_hand_set_nothing_aside(
    tmp_path: Path,
) -> None:
    async with learner_of(tmp_path) as (learner, _):
        learner.wake()

        async def die() -> None:
            with pytest.raises(LearnerError, match=r"with status -9$"):
                await learner.run()

        for _ in range(3):
            async with anyio.create_task_group() as group:
                group.start_soon(die)
                await until(lambda: learner.loops and learner.lessons == 0)
                assert learner.pid is not None
                os.kill(learner.pid, signal.SIGKILL)
        assert learner.facts["set_aside"] == []


async def test_what_is_announced_for_a_learner_is_on_disk(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/ledger.db")
    ledger = SqlLedger(database, LedgerLimits(patience_s=60))
    await ledger.start()
    library = SkillLibrary(tmp_path / "skills", SqlGenerations(database))
    budget = Budget(Config(), SqlSpending(database))
    commands = WorkerCommands(database, ledger, library, {}, budget).by_name(
        asyncio.get_running_loop()
    )
    said: dict[str, Json] = {"text": "something to know"}
    assert await anyio.to_thread.run_sync(commands["announce"], "notice", said)
    assert [(one.kind, one.data) for one in LedgerReader(database).events()] == [("notice", said)]
    await ledger.aclose()
    database.close()


@pytest.mark.parametrize("error", [StoreError("full"), ValueError("odd")])
def test_whoever_waits_for_an_errand_is_told_that_it_failed_whatever_went_wrong(
    error: Exception,
) -> None:
    def fail() -> None:
        raise error

    outbox: Outbox = Outbox()
    carry_out(StoreCall(7, "note_uses", ()), {"note_uses": fail}, outbox)
    told = outbox.get_nowait()
    assert isinstance(told, CallError)
    assert (told.number, isinstance(told.error, MetaClawError)) == (7, True)
    assert str(error) in str(told.error)
