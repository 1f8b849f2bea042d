"""One run of the pipeline: stage after stage, asked again where a contract is broken, led back
where a gate or a decision says so.

Every stage is a conversation of its own, as such pipelines have it: a system text and the task. A
broken contract is said in the next message of that conversation: with a rule that holds from now
on, or only reported (`states_rules`). The proxy in between may place what it makes of it at this
stage of a later run; within this run it is only an ordinary correction."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from metaclaw.plugin import MetaClawError
from metaclaw_bench.research.asking import Model, Reply
from metaclaw_bench.research.contracts import CONTRACTS, Broken, Contract
from metaclaw_bench.research.contracts.experiments import (
    MORE_VALUES_RULE,
    decision_of,
    design_in,
    is_thin,
    results_in,
)
from metaclaw_bench.research.contracts.scoping import invented_catalogue, kept_in
from metaclaw_bench.research.contracts.writing import citations, is_accepted
from metaclaw_bench.research.forms import ContractError, unfenced
from metaclaw_bench.research.laboratory import Laboratory
from metaclaw_bench.research.metrics import MOST_REFINES
from metaclaw_bench.research.prompts import (
    Message,
    acceptance,
    correction,
    opening,
    reconsideration,
    report,
)
from metaclaw_bench.research.records import AttemptRecord, Ending, RunRecord
from metaclaw_bench.research.stages import (
    AUTHOR_OF,
    GATES,
    LEADS_BACK_TO,
    STAGES,
    Decision,
    Stage,
    title_of,
)

log = logging.getLogger(__name__)

_MOST_RUNS: Final = 60
_LEAST_KEPT: Final = 2
_MOST_REFUSALS: Final = 1

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Which run this is, and how patient it is."""

    condition: str
    seed: int
    number: int
    simulated: bool
    topic: str
    max_retries: int = 2
    max_refines: int = MOST_REFINES
    states_rules: bool = True

    @property
    def name(self) -> str:
        """Unique among the runs of a comparison."""
        return f"research-{self.condition}-{self.seed}-{self.number}"


@dataclass(frozen=True, slots=True)
class Ran:
    """A run as it went."""

    run: RunRecord
    attempts: tuple[AttemptRecord, ...]


@dataclass(slots=True)
class _Talk:
    """A stage's conversation."""

    session: str
    messages: list[Message]
    visit: int


class _StageFailedError(MetaClawError):
    """A stage could not be done; the run ends here."""


@dataclass(slots=True)
class Pipeline:
    """One run, from its beginning to its end. The files it made are in `files`, and in `folder`
    where there is one.
    """

    model: Model
    laboratory: Laboratory
    plan: RunPlan
    folder: Path | None = None
    progress: Progress = lambda line: None
    files: dict[str, str] = field(default_factory=dict)
    _done: set[Stage] = field(default_factory=set)
    _talks: dict[Stage, _Talk] = field(default_factory=dict)
    _attempts: list[AttemptRecord] = field(default_factory=list)
    _refusals: dict[Stage, int] = field(default_factory=dict)
    _refines: int = 0

    async def run(self) -> Ran:
        """Run all stages. What goes wrong ends the run and is in its record."""
        self._write("catalogue.json", invented_catalogue(self.plan.topic))
        ending: Ending = "completed"
        why = ""
        try:
            await self._run_all()
        except _StageFailedError as error:
            ending, why = "failed", str(error)
        except MetaClawError as error:
            ending, why = "broken", str(error)
            log.warning("research_run_broken run=%s reason=%s", self.plan.name, error)
        return Ran(self._record(ending, why), tuple(self._attempts))

    async def _run_all(self) -> None:
        at = 0
        begins_with: Message | None = None
        while at < len(STAGES):
            stage = STAGES[at]
            await self._perform(stage, begins_with)
            self._done.add(stage)
            self.progress(f"{self.plan.name} {int(stage):02d}/{len(STAGES)} {title_of(stage)}")
            back = self._led_back(stage)
            at, begins_with = (at + 1, None) if back is None else (STAGES.index(back[0]), back[1])

    async def _perform(self, stage: Stage, begins_with: Message | None) -> None:
        """Do a stage. `begins_with` is said in the stage's earlier conversation instead of the
        task.
        """
        contract, author = CONTRACTS[stage], AUTHOR_OF.get(stage)
        if author is None:
            await self._ask_until_kept(contract, begins_with)
            return
        broken = await self._do_ourselves(contract)
        for _ in range(self.plan.max_retries):
            if broken is None:
                return
            said = (
                correction(broken) if self.plan.states_rules else reconsideration(broken.why, None)
            )
            await self._ask_until_kept(CONTRACTS[author], said, is_retry=True)
            broken = await self._do_ourselves(contract)
        if broken is not None:
            raise _failed(stage, broken)

    async def _ask_until_kept(
        self, contract: Contract, begins_with: Message | None, *, is_retry: bool = False
    ) -> None:
        talk = self._begin(contract, begins_with)
        for attempt in range(self.plan.max_retries + 1):
            reply = await self.model.ask(talk.messages, talk.session)
            text = unfenced(reply.text)
            broken = await self._examine(contract, text)
            self._count(
                contract.stage, talk, attempt, reply, broken, is_retry=is_retry or attempt > 0
            )
            talk.messages.append(Message("assistant", reply.text))
            if broken is None:
                self._write(contract.makes, text)
                if not self.plan.states_rules:
                    await self._tell(talk, acceptance(contract.makes))
                return
            if self.plan.states_rules:
                talk.messages.append(correction(broken))
            elif attempt < self.plan.max_retries:
                talk.messages.append(report(contract.makes, broken))
            else:
                await self._tell(talk, report(contract.makes, broken))
            if attempt == self.plan.max_retries:
                raise _failed(contract.stage, broken)

    async def _tell(self, talk: _Talk, said: Message) -> None:
        """Say what became of a file, and ask for nothing more."""
        talk.messages.append(said)
        reply = await self.model.ask(talk.messages, talk.session, is_last=True)
        talk.messages.append(Message("assistant", reply.text))

    def _begin(self, contract: Contract, begins_with: Message | None) -> _Talk:
        earlier = self._talks.get(contract.stage)
        if earlier is not None and begins_with is not None:
            earlier.messages.append(begins_with)
            earlier.visit += 1
            return earlier
        visit = 1 if earlier is None else earlier.visit + 1
        session = f"{self.plan.name}-{int(contract.stage):02d}-{visit}"
        talk = _Talk(session, list(opening(contract, self.plan.topic, self.files)), visit)
        self._talks[contract.stage] = talk
        return talk

    async def _examine(self, contract: Contract, text: str) -> Broken | None:
        broken = contract.broken_by(text, self.files)
        if broken is None and contract.stage is Stage.ITERATIVE_REFINE:
            # What was improved must still run, and its results are those that count from here on.
            return await self._run_program(
                CONTRACTS[Stage.EXPERIMENT_RUN], text, contract.form_rule
            )
        return broken

    async def _do_ourselves(self, contract: Contract) -> Broken | None:
        if contract.stage is Stage.EXPERIMENT_RUN:
            return await self._run_program(
                contract, self.files["experiment.py"], contract.form_rule
            )
        text = json.dumps(citations(self.files), indent=1) + "\n"
        self._write(contract.makes, text)
        return contract.broken_by(text, self.files)

    async def _run_program(self, contract: Contract, source: str, rule: str) -> Broken | None:
        try:
            printed = await self.laboratory.run(source)
        except ContractError as error:
            return Broken(str(error), rule)
        broken = contract.broken_by(printed, self.files)
        if broken is None:
            self._write(contract.makes, printed)
        return None if broken is None else Broken(broken.why, rule)

    def _led_back(self, stage: Stage) -> tuple[Stage, Message] | None:
        if stage in GATES:
            return self._refused(stage)
        return self._reconsidered() if stage is Stage.RESEARCH_DECISION else None

    def _refused(self, stage: Stage) -> tuple[Stage, Message] | None:
        why = self._gate_refuses(stage)
        if why is None:
            return None
        self._done.discard(stage)
        self._refusals[stage] = self._refusals.get(stage, 0) + 1
        if self._refusals[stage] > _MOST_REFUSALS:
            raise _StageFailedError(
                f"the gate at stage {int(stage)} ({title_of(stage)}) refused it twice: {why}"
            )
        return GATES[stage], reconsideration(why, None)

    def _gate_refuses(self, stage: Stage) -> str | None:
        match stage:
            case Stage.LITERATURE_SCREEN:
                return (
                    None
                    if len(kept_in(self.files)) >= _LEAST_KEPT
                    else "fewer than two works are relevant"
                )
            case Stage.EXPERIMENT_DESIGN:
                design = design_in(self.files)
                is_small = len(design.conditions) * len(design.seeds) <= _MOST_RUNS
                return None if is_small else "an experiment that tests this takes too many runs"
            case _:
                return (
                    None
                    if is_accepted(self.files["quality.json"])
                    else "the paper is not good enough to be published"
                )

    def _reconsidered(self) -> tuple[Stage, Message] | None:
        """Where a decision leads back to; once too many have, it is taken as the word to
        proceed.
        """
        decision, because = decision_of(self.files["decision.json"])
        if decision is Decision.PROCEED or self._refines >= self.plan.max_refines:
            return None
        self._refines += 1
        is_preventable = decision is Decision.REFINE and is_thin(results_in(self.files))
        is_stated = is_preventable and self.plan.states_rules
        return LEADS_BACK_TO[decision], reconsideration(
            because, MORE_VALUES_RULE if is_stated else None
        )

    def _write(self, name: str, text: str) -> None:
        self.files[name] = text
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text, encoding="utf-8")

    def _count(
        self,
        stage: Stage,
        talk: _Talk,
        attempt: int,
        reply: Reply,
        broken: Broken | None,
        *,
        is_retry: bool,
    ) -> None:
        self._attempts.append(
            AttemptRecord(
                pipeline="own",
                condition=self.plan.condition,
                seed=self.plan.seed,
                run=self.plan.number,
                simulated=self.plan.simulated,
                stage=int(stage),
                visit=talk.visit,
                attempt=attempt + 1,
                is_retry=is_retry,
                broken=None if broken is None else broken.why,
                skills=reply.skills,
                turn=reply.turn,
                tokens_in=reply.tokens_in,
                tokens_out=reply.tokens_out,
            )
        )

    def _record(self, ending: Ending, why: str) -> RunRecord:
        return RunRecord(
            pipeline="own",
            condition=self.plan.condition,
            seed=self.plan.seed,
            run=self.plan.number,
            simulated=self.plan.simulated,
            topic=self.plan.topic,
            scorable=len(STAGES),
            completed=len(self._done),
            attempts=len(self._attempts),
            retries=sum(attempt.is_retry for attempt in self._attempts),
            refines=self._refines,
            rollbacks=sum(self._refusals.values()),
            ending=ending,
            why=why,
            tokens_in=_sum([one.tokens_in for one in self._attempts]),
            tokens_out=_sum([one.tokens_out for one in self._attempts]),
        )


def _sum(counts: Sequence[int | None]) -> int | None:
    """The sum; None where one of them was not counted, or there is none."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _failed(stage: Stage, broken: Broken) -> _StageFailedError:
    return _StageFailedError(f"stage {int(stage)} ({title_of(stage)}) failed: {broken.why}")
