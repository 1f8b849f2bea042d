"""Runs whose answers a judge scores: the day's learning budget sets their size, and one that it no
longer pays for waits, says so, holds nothing and goes on the next day."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from metaclaw.domain.chat import ChatRequest, Completion, Finish, Text, Usage
from metaclaw.domain.policy import PolicyState
from metaclaw.domain.status import LoopState
from metaclaw.learn.budget import Budget
from metaclaw.ports import Purpose
from metaclaw.store import BatchState
from metaclaw.training.recipe import Recipe, RunSize, fit_to_budget, judged_size, ranking_tokens
from metaclaw.training.training_turns import TurnCount
from metaclaw.upstream import Spent
from tests.training.stage import UNCHECKED, Stage

pytestmark = pytest.mark.anyio

_CALL_TOKENS = 500
_ANSWER = re.compile(r"== Answer \d+\n(.*?)(?=\n\n== Answer|\n*\Z)", re.DOTALL)


class StarJudge:
    """A judge's model that prefers answers with a star; the learning budget pays for it."""

    name = "world/judge"

    def __init__(self, budget: Callable[[], Budget]) -> None:
        self._budget = budget
        self.calls = 0

    async def ask(self, request: ChatRequest, purpose: Purpose) -> Completion:
        async with self._budget().charge(purpose, self.name, _CALL_TOKENS) as charge:
            self.calls += 1
            charge.add(Spent(1, usage=Usage(_CALL_TOKENS, 0)))
            return Completion("c", "m", (Text(self._said(request)),), Finish.STOP)

    def _said(self, request: ChatRequest) -> str:
        asked = "\n".join(
            part.text
            for message in request.messages
            for part in message.parts
            if isinstance(part, Text)
        )
        if "== Answer 1" in asked:
            shown = asked[asked.index("== Answer 1") :]
            return json.dumps(
                {
                    "ranks": [1 if "*" in answer else 2 for answer in _ANSWER.findall(shown)],
                    "reason": "stars",
                }
            )
        is_good = "*" in asked[asked.rindex("== The answer") :]
        return json.dumps(
            {"outcome": "pass" if is_good else "fail", "score": float(is_good), "reason": "stars"}
        )


class World:
    """A stage with a judge that the learning budget pays for."""

    def __init__(self, folder: Path, daily_tokens: int) -> None:
        self.model = StarJudge(lambda: self.stage.budget)
        self.stage = Stage(folder, skill=UNCHECKED, judge=self.model, daily_tokens=daily_tokens)
        self.seen: list[tuple[LoopState, str | None, int]] = []
        self.restart()

    def restart(self) -> None:
        """The program is started again on what is on disk."""
        stage = self.stage
        stage.build()
        wait = stage.slow.wakeup.wait

        async def waited(timeout_s: float) -> None:
            tally = stage.slow.status.tally
            self.seen.append(
                (
                    stage.slow.status.state,
                    stage.slow.status.trouble,
                    -1 if tally is None else tally.steps,
                )
            )
            await wait(timeout_s)

        stage.slow.wakeup.wait = waited  # type: ignore[method-assign,assignment]

    async def once(self) -> None:
        assert await self.stage.slow.once(TurnCount(8))


async def test_a_run_that_the_budget_no_longer_pays_for_waits_says_so_and_goes_on_the_next_day(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 25_000)
    world.stage.talk(60)
    await world.once()
    state, trouble, steps = world.seen[-1]
    assert state is LoopState.UNPAID
    assert (
        trouble
        == "waits: the day's learning budget for judging is used up; it goes on at 00:00, or after"
        " a restart with a larger learning.daily_tokens"
    )
    assert 1 <= steps < 8
    assert world.stage.backend._backend._run is None, "the run is closed: it holds no memory"
    assert (await world.stage.budget.room(Purpose.JUDGE, world.model.name)).left < 15_000 // 2
    paid, drawn = world.model.calls, world.stage.backend.calls
    world.restart()
    await world.once()
    assert world.seen[-1] == (state, trouble, steps)
    assert (world.model.calls, world.stage.backend.calls) == (
        paid,
        0,
    ), "nothing is drawn while the judge cannot be paid"
    assert drawn > 0
    for _ in range(5):
        world.stage.clock.pass_by(days=1)
        await world.once()
        if world.stage.policies.versions():
            break
    (version,) = world.stage.policies.versions()
    batch = world.stage.batches.batch(1)
    assert batch is not None
    assert (batch.state, version.batch) == (BatchState.DONE, 1)
    assert (
        await world.stage.share_with_stars(version.weights)
        > await world.stage.share_with_stars(None) + 0.1
    )


async def test_a_run_is_made_as_large_as_the_budget_carries_and_keeps_that_size(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 60_000)
    world.stage.talk(60)
    slow = world.stage.slow
    told: list[str | None] = []
    complete = world.stage.backend.open

    async def opened(*arguments: object) -> object:
        told.append(slow.status.notice)
        return await complete(*arguments)  # type: ignore[operator]

    world.stage.backend.open = opened  # type: ignore[attr-defined]
    await world.once()
    assert told[0] is not None
    assert "about 36,000 tokens of judging, so the run makes at most" in told[0]
    assert "raise learning.daily_tokens, or give the skill a check" in told[0]
    assert slow.status.notice is None
    (version,) = world.stage.policies.versions()
    assert 1 <= version.steps <= 10
    assert world.stage.budget.account().used_tokens <= 48_000, (
        "the gate may use more of the day than learning, and not all of it"
    )


async def test_a_candidate_waits_for_the_budget_of_its_gate_and_is_not_rejected(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 1_000_000)
    world.stage.talk(60)
    weigh = world.stage.slow.trial.proof.weigh

    async def spent(*arguments: object, **named: object) -> object:
        async with world.stage.budget.charge(Purpose.LISTEN, world.model.name, 900_000) as charge:
            charge.add(Spent(1, usage=Usage(900_000, 0)))
        return await weigh(*arguments, **named)  # type: ignore[arg-type]

    world.stage.slow.trial.proof.weigh = spent  # type: ignore[method-assign,assignment]
    await world.once()
    assert world.seen[-1][0] is LoopState.UNPAID
    assert world.stage.policies.versions()[0].state is PolicyState.CANDIDATE
    world.restart()
    world.stage.clock.pass_by(days=1)
    await world.once()
    assert world.stage.policies.versions()[0].state is PolicyState.SERVING


async def test_where_checks_score_the_budget_neither_limits_a_run_nor_stops_it(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, daily_tokens=0)
    stage.talk(60)
    assert await stage.slow.once(TurnCount(8))
    assert stage.policies.versions()[0].state is PolicyState.SERVING


def test_a_run_within_the_budget_keeps_its_size_and_one_beyond_it_has_many_small_steps() -> None:
    whole = judged_size(32, 200, [ranking_tokens(300, 30, 16)] * 3)
    assert fit_to_budget(whole, whole.tokens) == whole
    small = fit_to_budget(whole, 180_000)
    assert small.prompts == 4
    assert 20 <= small.steps <= 40
    assert small.tokens <= 180_000
    larger = fit_to_budget(whole, 1_000_000)
    assert small.prompts < larger.prompts < 32
    assert larger.tokens <= 1_000_000
    assert fit_to_budget(whole, 0) == RunSize(4, 8, small.tokens_a_step)


def test_a_run_that_was_made_smaller_has_a_short_warm_up_a_lower_rate_and_few_validation_prompts() -> (
    None
):
    whole = Recipe(has_fixed_rate=False)
    assert whole.step_adam.learning_rate == 3e-4
    assert whole.resized(RunSize(32, 200)) == whole
    small = whole.resized(RunSize(4, 20, 6_000))
    assert (small.steps, small.warm_up, small.validation) == (20, 4, 12)
    assert small.step_adam.learning_rate == 2.5e-4
    assert replace(small, has_fixed_rate=True).step_adam.learning_rate == 3e-4


def test_turns_that_a_check_scores_cost_nothing() -> None:
    assert judged_size(32, 200, [None, None]).tokens == 0
    assert (
        judged_size(32, 200, [1_000, None]).tokens_a_step
        == judged_size(32, 200, [500]).tokens_a_step
    )
