"""One day: a fresh workspace, its rounds in order, each scored at once; then the barrier, the
hooks, and what was learned.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
from anyio.to_thread import run_sync

from metaclaw.plugin import MetaClawError
from metaclaw_bench.agent.chat import Usage
from metaclaw_bench.agent.port import Agent, Answered, Asked, Failed
from metaclaw_bench.checking import CheckBroken, run_check
from metaclaw_bench.defects import defects_of
from metaclaw_bench.json_types import Json
from metaclaw_bench.questions import ChoiceCheck, FileCheck, Round
from metaclaw_bench.records import TAIL_CHARS, EventRecord, RecordWriter, RoundRecord
from metaclaw_bench.running.api import ProxyError, at
from metaclaw_bench.running.folder import Folder
from metaclaw_bench.running.learning import Happened, Learned, settle, train
from metaclaw_bench.running.plan import JUDGE, Plan, Stage
from metaclaw_bench.running.proxy import Front
from metaclaw_bench.running.turns import Ledger, Took
from metaclaw_bench.scoring import (
    RoundScore,
    comment,
    message,
    score_broken,
    score_choice,
    score_files,
)
from metaclaw_bench.workspaces import lay_out

MakeAgent: TypeAlias = Callable[[Front, Stage], Agent]
"""An agent for one day in front of this proxy."""

Tell: TypeAlias = Callable[[Plan, Stage, RoundRecord], None]
"""Told of each round as it is done."""


class HookError(MetaClawError):
    """A hook between days failed, and the run was to stop then."""


@dataclass(frozen=True, slots=True)
class Told:
    """A round as it went, and the turn that gave the answer."""

    record: RoundRecord
    turn: str | None


class DayRun:
    """Runs one stage of a plan against a running proxy."""

    def __init__(self, plan: Plan, stage: Stage, folder: Folder, front: Front, tell: Tell) -> None:
        self._plan = plan
        self._stage = stage
        self._folder = folder
        self._front = front
        self._tell = tell
        self._ledger = Ledger(front.api)
        self._learned = Learned(front.api)
        self._defects = {(one.day, one.round): one.kind.value for one in defects_of(plan.benchmark)}

    @property
    def _learns(self) -> bool:
        return self._plan.condition.learns and not self._stage.is_frozen

    async def run(self, agent: Agent) -> None:
        """The whole day. Raises ProxyError where the proxy is gone, and HookError where a hook
        failed and that is to be fatal.
        """
        await self._ledger.new()
        await self._learned.new()
        with tempfile.TemporaryDirectory(
            prefix="metaclaw-day-", ignore_cleanup_errors=True
        ) as room:
            workspace = Path(room) / "workspace"
            await run_sync(lambda: self._lay_out(workspace))
            try:
                await agent.begin(self._stage.day, workspace)
                told, trouble = await self._rounds(agent, workspace)
            finally:
                await agent.end()
            await run_sync(self._folder.keep_workspace, self._stage, workspace)
        await self._ledger.end_sessions()
        happened = [*trouble, *(await self._learn())]
        self._write_events(told, happened)
        await self._write_rewards(told)
        if self._plan.strict_hooks and (
            failed := [one.why for one in happened if one.kind == "trouble"]
        ):
            raise HookError(f"after {self._stage.name}: {'; '.join(failed)}")

    def _lay_out(self, workspace: Path) -> None:
        lay_out(
            self._plan.benchmark, self._stage.day, workspace, show_checkers=self._plan.show_checkers
        )

    async def _rounds(self, agent: Agent, workspace: Path) -> tuple[list[Told], list[Happened]]:
        told: list[Told] = []
        trouble: list[Happened] = []
        said = ""
        for number, round_ in enumerate(self._stage.day.rounds):
            began = time.monotonic()
            asked = await agent.ask(message(said, round_.question))
            seconds = time.monotonic() - began
            score = await self._score(round_, asked, workspace)
            answer = asked.text if isinstance(asked, Answered) else ""
            said = comment(round_, answer, score.passed)
            took = await self._ledger.new()
            if any(turn.provider == JUDGE for turn in took.turns):
                raise ProxyError(
                    f"{self._plan.provider.model} was asked for and the judge has answered; see the"
                    " proxy's log"
                )
            record = self._record(number, score, asked, took, seconds)
            self._keep(round_, asked, record, took, said)
            told.append(Told(record, took.turns[-1].id if took.turns else None))
            self._tell(self._plan, self._stage, record)
            trouble += (
                await self._settle() if self._plan.patience.each_round and self._learns else []
            )
        closed = await agent.ask(message(said, None), closing=True) if said else None
        if isinstance(closed, Failed):
            trouble.append(Happened("trouble", why=f"closing message: {_why(closed)}"))
        return told, trouble

    async def _score(self, round_: Round, asked: Asked, workspace: Path) -> RoundScore:
        day = self._stage.day.id
        if isinstance(asked, Failed):
            return score_broken(day, round_, _why(asked))
        if isinstance(round_.check, ChoiceCheck):
            return score_choice(day, round_.id, round_.check, asked.text)
        outcome = await run_sync(run_check, round_.check, workspace, self._plan.benchmark.checkers)
        if isinstance(outcome, CheckBroken):
            return score_broken(day, round_, f"check: {outcome.why}")
        return score_files(day, round_.id, outcome.passed)

    def _record(
        self, number: int, score: RoundScore, asked: Asked, took: Took, seconds: float
    ) -> RoundRecord:
        plan, stage = self._plan, self._stage
        round_ = stage.day.rounds[number]
        tokens_in, tokens_out = _tokens(took, asked.usage)
        return RoundRecord(
            **plan.made,
            day=stage.day.id,
            day_number=stage.number,
            round=round_.id,
            kind="file_check" if isinstance(round_.check, FileCheck) else "multi_choice",
            score=score.score,
            passed=score.passed,
            exact=score.exact,
            held_out=stage.phase == "held_out",
            phase=stage.phase,
            rules=stage.rules[number] if number < len(stage.rules) else (),
            generation=took.generation,
            policy_version=took.policy_version,
            skills=took.skills,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            cost=None if plan.prices is None else plan.prices.cost(tokens_in, tokens_out),
            seconds=round(seconds, 3),
            failure=score.broken,
            defect=self._defects.get((stage.day.id, round_.id)),
            tail=asked.text[-TAIL_CHARS:] if isinstance(asked, Answered) else "",
        )

    def _keep(
        self, round_: Round, asked: Asked, record: RoundRecord, took: Took, said: str
    ) -> None:
        with RecordWriter(self._folder.rounds) as writer:
            writer.write(record)
        answer = asked.text if isinstance(asked, Answered) else None
        facts: dict[str, Json] = {
            "test_id": self._stage.day.id,
            "group_id": self._stage.day.id,
            "round_id": round_.id,
            "question_type": record.kind,
            "question": round_.question,
            "status": "failed" if answer is None else "success",
            "answer": answer,
            "inline_score": {"passed": record.passed, "score": record.score},
            "feedback": said,
            "run_metadata": {
                "condition": record.cell,
                "seed": record.seed,
                "simulated": record.simulated,
                "failure": record.failure,
            },
            "llm_log": {"messages": [_logged(took)]},
        }
        self._folder.keep_answer(self._stage, round_.id, facts)

    async def _learn(self) -> list[Happened]:
        """Wait for what the day teaches; where weights are trained, train them and wait again."""
        plan, stage, api = self._plan, self._stage, self._front.api
        if not self._learns:
            return []
        happened = await self._settle()
        if plan.condition.weights and plan.train_every and stage.number % plan.train_every == 0:
            happened += await train(api, plan.patience.train_s)
            happened += await self._settle()
        return [*happened, *await self._learned.new()]

    async def _settle(self) -> list[Happened]:
        settled = await settle(self._front.api, self._plan.patience)
        if not settled.left:
            return []
        return [
            Happened(
                "trouble",
                why=f"still under way after {settled.seconds:.0f} s: {', '.join(settled.left)}",
            )
        ]

    def _write_events(self, told: list[Told], happened: list[Happened]) -> None:
        with RecordWriter(self._folder.rounds) as writer:
            for one in happened:
                before = [
                    each
                    for each in told
                    if one.kind == "generation" and each.record.generation >= (one.number or 0)
                ]
                writer.write(self._event(one, len(told) - len(before)))

    def _event(self, one: Happened, after: int) -> EventRecord:
        plan, stage = self._plan, self._stage
        return EventRecord(
            **plan.made,
            day=stage.day.id,
            day_number=stage.number,
            after=after,
            kind=one.kind,
            number=one.number,
            name=one.name,
            why=one.why,
            numbers=one.numbers,
        )

    async def _write_rewards(self, told: list[Told]) -> None:
        """What the proxy itself made of each answer is known only now."""
        if not self._learns:
            return
        rewards: dict[str, float] = {}
        for one in told:
            score = (
                None
                if one.turn is None
                else at(await self._front.api.get("turns", one.turn), "verdict", "score")
            )
            if isinstance(score, int | float):
                rewards[one.record.round] = float(score)
        self._folder.amend(lambda record: self._rewarded(record, rewards))

    def _rewarded(self, record: RoundRecord, rewards: dict[str, float]) -> RoundRecord:
        is_mine = (record.phase, record.day) == (
            self._stage.phase,
            self._stage.day.id,
        ) and record.round in rewards
        return msgspec.structs.replace(record, reward=rewards[record.round]) if is_mine else record


def _why(failed: Failed) -> str:
    return f"{failed.why.value}: {failed.detail}"


def _tokens(took: Took, counted: Usage | None) -> tuple[int | None, int | None]:
    """The ledger's count; the agent's own where the ledger has none."""
    if took.tokens_in is not None or counted is None:
        return took.tokens_in, took.tokens_out
    return counted.input_tokens, counted.output_tokens


def _logged(took: Took) -> Json:
    cached = sum(turn.cached for turn in took.turns)
    return {
        "role": "assistant",
        "usage": {
            "input": took.tokens_in or 0,
            "output": took.tokens_out or 0,
            "cacheRead": cached,
        },
    }
