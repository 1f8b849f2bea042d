"""The learning part on real parts: database, ledger, library, gate and loops; the models are scripted, and time stands still."""

import json
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio

from metaclaw.domain.candidate import Candidate, Standing
from metaclaw.domain.chat import ChatRequest, Completion, Finish, Json, Part, Text, Usage, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.turn import Draw, Scope, Stamp, Step, Times
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.learn.admission import CandidateAdmission, SafetyReview
from metaclaw.learn.assessment import Assessment, ReplayScorer
from metaclaw.learn.chores import Expiry, Retrial, RuleWatch, ScopePromotion, SkillMerge
from metaclaw.learn.compliance import CheckTrial
from metaclaw.learn.failures import FailureReader, Probes, SkillChanges
from metaclaw.learn.fast import FastLoop
from metaclaw.learn.listen import Listening
from metaclaw.learn.maintenance import Maintenance, UpliftReader
from metaclaw.learn.messages import Messages
from metaclaw.learn.outcomes import JudgeAllowance, OutcomeLoop
from metaclaw.learn.owner import OwnerActions
from metaclaw.learn.replay import CassetteReplayer
from metaclaw.learn.retention import SessionErasure
from metaclaw.learn.rules import RuleWriter
from metaclaw.learn.steps import RecordedSteps, StepBuilder
from metaclaw.learn.supervision import AttemptLog, WorkAttempts, WorkItem
from metaclaw.outcome import Calibration, Judge
from metaclaw.ports import Purpose
from metaclaw.privacy import Redactor, render_step
from metaclaw.skills import Evolver, Gate, GateMode, SkillLibrary, write_skill
from metaclaw.store import (
    Database,
    LedgerLimits,
    LedgerReader,
    SqlBatches,
    SqlCandidates,
    SqlCursors,
    SqlGenerations,
    SqlLedger,
    SqlUses,
    SqlVerdicts,
    connect,
)
from tests.learn.recordings import Agent, words

VOTES = 3
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
ADA = Scope("ada")
TASK = "Write the changelog entry for release {} with its release date."
CORRECTION = "No, that's wrong. Release dates in the changelog must be written as YYYY-MM-DD."
THANKS = "Thanks, that is exactly right!"
DATES: dict[str, Json] = {
    "name": "iso-release-dates",
    "trigger": "When writing a changelog entry or release notes that contain a release date",
    "body": "1. Find every release date in the entry.\n2. Write each as YYYY-MM-DD.\n3. Check the finished entry for other formats."
    "\n\nDo not write release dates as day/month/year or with month names.",
    "category": "writing",
}
PASSED: dict[str, Json] = {"outcome": "pass", "score": 1, "reason": "it did what was asked"}
FAILED: dict[str, Json] = {"outcome": "fail", "score": -1, "reason": "it did not do what was asked"}


class Clock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, **of: float) -> None:
        self.now += timedelta(**of)


class Speaker:
    """A model that answers by a rule: text, something to be said as JSON, or an error to be raised."""

    def __init__(self, name: str, rule: Callable[[str], object]) -> None:
        self.name = name
        self.rule = rule
        self.asked: list[str] = []
        self.purposes: list[Purpose] = []
        self.questions = 0
        """How many questions a judge was asked, whether for one vote or several."""

    async def ask(self, request: ChatRequest, purpose: Purpose) -> Completion:
        await anyio.lowlevel.checkpoint()
        prompt = prompt_text(request)
        self.asked.append(prompt)
        self.questions += request.sampling.seed == 1
        self.purposes.append(purpose)
        said = self.rule(prompt)
        if isinstance(said, Exception):
            raise said
        text = said if isinstance(said, str) else json.dumps(said)
        return Completion("x", "m", (Text(text),), Finish.STOP, Usage(100, 10))


def prompt_text(request: ChatRequest) -> str:
    """Every word of a request."""
    return "\n".join(part.text for message in request.messages for part in message.parts if isinstance(part, Text))


@dataclass
class House:
    """One installation. `restart` stops the learning part wherever it is and builds it anew on what is on disk."""

    folder: Path
    gate: GateMode = GateMode.LINT
    min_failures: int = 1
    share: float = 1.0
    can_pay: bool = True
    judge: Speaker | None = None
    evolver: Speaker | None = None
    worker: Speaker | None = None
    listener: Speaker | None = None
    teams: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pauses_s: tuple[float, ...] = (0.0,)
    clock: Clock = field(default_factory=Clock)
    may_train: Callable[[TurnId], bool] = lambda turn: False
    told: list[tuple[str, dict[str, Json]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database: Database = connect(f"sqlite:///{self.folder / 'ledger.db'}")
        self.ledger = SqlLedger(self.database, LedgerLimits(patience_s=10), clock=self.clock)
        self.build()

    def build(self, attempts: WorkAttempts | None = None) -> None:
        database = self.database
        self.book = AttemptLog(attempts)
        self.reader, self.verdicts = LedgerReader(database), SqlVerdicts(database, self.clock)
        self.candidates, self.generations = SqlCandidates(database, self.clock), SqlGenerations(database, self.clock)
        self.cursors, self.uses, self.batches = SqlCursors(database), SqlUses(database), SqlBatches(database, self.clock)
        self.library = SkillLibrary(self.folder / "skills", self.generations)
        self.library.load()
        self.steps = StepBuilder(words)
        self.recorded = RecordedSteps(self.reader, self.steps)
        self.redactor = Redactor()
        self.probes = Probes(self.reader, self.verdicts, self.steps, self.teams)
        self.allowance = JudgeAllowance(self.share)
        scorer = ReplayScorer(self.judge_for, self.redact)
        self.replayer = CassetteReplayer(self.reader, self.steps, lambda provider, model: self.worker, scorer, self.generations.at)
        self.admission = CandidateAdmission(
            gate=Gate(self.gate, self.replayer, [SafetyReview(self.recorded.step, self.library, self.redactor)]),
            library=self.library,
            candidates=self.candidates,
            announce=self.announce,
            redact=self.redact,
            now=self.clock,
            book=self.book,
        )
        self.uplift = UpliftReader(self.reader, self.generations)
        messages = Messages(self.reader, self.recorded, self.steps)
        self.listening = Listening(
            reader=self.reader,
            cursors=self.cursors,
            candidates=self.candidates,
            messages=messages,
            rules=RuleWriter(
                library=self.library,
                candidates=self.candidates,
                verdicts=self.verdicts,
                announce=self.announce,
                redact=self.redact,
                foreign=messages.foreign,
                teams=self.teams,
                trial=CheckTrial(self.reader, self.recorded, self.redact, self.judge_for, self.may_ask),
                now=self.clock,
            ),
            listener=lambda provider, model: self.listener,
            timeout_s=5.0,
            redact=self.redact,
            today=lambda: self.clock.now.date(),
            now=lambda: self.clock.now.timestamp(),
            book=self.book,
        )
        self.fast = FastLoop(
            failures=FailureReader(
                reader=self.reader,
                verdicts=self.verdicts,
                candidates=self.candidates,
                recorded=self.recorded,
                library=self.library,
                changes=SkillChanges(self.generations, self.teams),
                book=self.book,
            ),
            candidates=self.candidates,
            library=self.library,
            admission=self.admission,
            probes=self.probes,
            writer_for=lambda model: self.writer(),
            min_failures=self.min_failures,
            teams=self.teams,
            pauses_s=self.pauses_s,
            book=self.book,
            may_train=self.may_train,
        )
        self.outcomes = OutcomeLoop(
            reader=self.reader,
            cursors=self.cursors,
            verdicts=self.verdicts,
            steps=self.steps,
            assessor=Assessment(judge_for=self.judge_for, skill=lambda name: self.library.view.get(name), calibration=Calibration),
            allowance=self.allowance,
            may_ask=self.may_ask,
            failed=self.fast.wakeup.notify,
            now=lambda: self.clock.now.timestamp(),
            book=self.book,
        )
        self.maintenance = self.build_maintenance()
        self.owner = OwnerActions(
            reader=self.reader,
            verdicts=self.verdicts,
            candidates=self.candidates,
            erasure=SessionErasure(database, self.library, self.library.folder.parent / "policies"),
            library=self.library,
            admission=self.admission,
            uplift=self.uplift,
            announce=self.announce,
            failed=self.fast.wakeup.notify,
            let_go=lambda session: self.replayer.forget(),
        )

    def build_maintenance(self) -> Maintenance:
        shared: dict[str, Any] = {"library": self.library, "candidates": self.candidates, "cursors": self.cursors}
        tried: dict[str, Any] = {"probes": self.probes, "admission": self.admission}
        skill_merge = SkillMerge(**shared, **tried, replayer=self.replayer, model_for=lambda model: self.evolver, now=self.clock)
        scope_promotion = ScopePromotion(**shared, **tried, teams=self.teams)
        expiry = Expiry(uses=self.uses, generations=self.generations, admission=self.admission, teams=self.teams, now=self.clock)
        watch = RuleWatch(
            uses=self.uses,
            generations=self.generations,
            cursors=self.cursors,
            library=self.library,
            announce=self.announce,
            teams=self.teams,
        )
        retrial = Retrial(uses=self.uses, candidates=self.candidates, admission=self.admission, uplift=self.uplift, now=self.clock)
        return Maintenance(
            **shared,
            reader=self.reader,
            uses=self.uses,
            admission=self.admission,
            uplift=self.uplift,
            chores=(expiry, skill_merge, scope_promotion, watch, *([retrial] if self.gate is GateMode.FULL else [])),
            now=self.clock,
            book=self.book,
        )

    async def may_ask(self) -> bool:
        return self.can_pay

    def judge_for(self, model: str) -> Judge | None:
        return None if self.judge is None else Judge(self.judge, VOTES, self.render)

    def writer(self) -> Evolver | None:
        if self.evolver is None:
            return None
        return Evolver(
            self.evolver, self.render, 3, redact=self.redact, is_taken=lambda name: self.library.view.get(name) is not None
        )

    def render(self, step: Step) -> str:
        return render_step(step, self.redactor, 24_000)

    def redact(self, text: str) -> str:
        return self.redactor.text(text).text

    async def announce(self, kind: str, data: dict[str, Json]) -> None:
        self.told.append((kind, data))

    def restart(self) -> None:
        """The program was killed, and started again."""
        self.build()

    def die_of(self, loop: str, item: object, times: int = 3) -> None:
        """Learners were killed so many times in a row while they had this in hand, and there is another one."""
        self.build(WorkAttempts(counts={WorkItem(loop, str(item)): times}))

    async def sense(self) -> None:
        """Look once, and wait until the judge has answered."""
        async with anyio.create_task_group() as judging:
            await self.outcomes.look(judging)

    @property
    def reading(self) -> int:
        """As the learner tells the program: messages that are being read."""
        return self.listening.reading

    @property
    def reached(self) -> int:
        return self.listening.reached

    @property
    def lessons(self) -> int:
        return self.fast.lessons

    @property
    def writing(self) -> int:
        return self.fast.writing

    async def listen(self) -> None:
        """Read every message that can be read now."""
        for _ in range(100):
            before = self.listening.reading
            async with anyio.create_task_group() as asking:
                found = await self.listening.look(asking)
            if not found and self.listening.reading >= before:
                return

    async def learn(self) -> None:
        """Take up once what there is, and wait until everything that went aside is done."""
        async with anyio.create_task_group() as aside:
            await self.fast.learn(aside)

    async def take_up_again(self) -> None:
        async with anyio.create_task_group() as aside:
            await self.fast.take_up_again(aside)

    async def tend(self) -> None:
        async with anyio.create_task_group() as aside:
            await self.maintenance.look(aside)

    async def live(self) -> None:
        """One round of the loops."""
        await self.sense()
        await self.listen()
        await self.learn()

    @property
    def names(self) -> list[str]:
        """The skills in force."""
        return [str(skill.name) for skill in self.library.view.skills]

    def skill(self, name: str) -> Skill:
        found = self.library.view.get(name)
        assert found is not None, f"{name} is not among {self.names}"
        return found

    def verdict(self, turn: TurnId) -> Verdict:
        found = self.verdicts.verdict_of(turn)
        assert found is not None
        return found

    def outcome(self, turn: TurnId) -> Outcome | None:
        found = self.verdicts.verdict_of(turn)
        return None if found is None else found.outcome

    def role(self, turn: TurnId) -> str | None:
        role = self.reader.role_of(turn)
        return None if role is None else role.kind.value

    def only_candidate(self) -> Candidate:
        (found,) = self.candidates.candidates()
        return found

    def of_standing(self, standing: Standing) -> list[str]:
        return [str(one.proposal.skill.name) for one in self.candidates.candidates(standing)]

    def write_by_hand(self, skill: Skill) -> None:
        write_skill(self.library.folder, skill)
        self.library.sync()

    def say(self, turn: TurnId, outcome: Outcome, source: Source = Source.DETECTOR, fault: Fault = Fault.AGENT) -> None:
        """A verdict from somewhere else."""
        is_fail = outcome is Outcome.FAIL
        self.verdicts.record_verdict(Verdict(turn, outcome, source, None, fault=fault if is_fail else None))

    def put_in_force(self, name: str, **fields: Any) -> Skill:
        """A learned skill, as if it had come through."""
        skill = learned_skill(name, **fields)
        self.library.publish([skill], (), f"learned {name}")
        return self.skill(name)


class Talk:
    """One session with one person. Every answer is a turn, stamped with the generation in force."""

    def __init__(self, house: House, scope: Scope = ADA, model: str = "m-1", wire: Wire = Wire.CHAT) -> None:
        self.house = house
        self.scope = scope
        self.agent = Agent(wire, model=model)
        self.segment = -1

    @property
    def session(self) -> SessionId:
        return SessionId(self.agent.session)

    async def say(self, text: str, answer: str = "Released on 01/02/2026.", **fields: Any) -> TurnId:
        """The person says something, and the agent answers."""
        self.agent.hear(text)
        self.segment += 1
        return await self.answer(Text(answer), **fields)

    async def answer(self, *parts: Part, **fields: Any) -> TurnId:
        view = self.house.library.view
        skills: Sequence[str] = fields.pop("skills", ())
        placed = tuple(SkillName(name) for name in skills)
        stamp = Stamp(fields.pop("generation", view.generation), fields.pop("version", 0), view.hash, placed)
        self.house.clock.pass_by(seconds=1)
        times = Times(self.house.clock(), 0.1, 0.2)
        self.agent.answer(*parts, stamp=stamp, scope=self.scope, segment=self.segment, times=times, **fields)
        turn = self.agent.turns[-1].turn
        assert await self.house.ledger.record(turn)
        return turn.id

    async def end(self) -> None:
        self.house.clock.pass_by(seconds=1)
        await self.house.ledger.end_session(self.session, "the test says so")


def learned_skill(name: str, **fields: Any) -> Skill:
    """A skill as an evolver writes it, in force for ada."""
    chosen: dict[str, Any] = {"scope": "user:ada", "author": Authorship.EVOLVER, "state": SkillState.LIVE} | fields
    trigger = chosen.pop("trigger", f"When writing about {name.replace('-', ' ')} in a report")
    body = chosen.pop("body", f"1. Look for {name}.\n2. Write it down.\n\nDo not leave {name} out.")
    return Skill(SkillName(name), trigger, body, **chosen)


def drawn(name: str, *, placed: bool, propensity: float = 0.5) -> tuple[Draw, ...]:
    return (Draw(SkillName(name), placed, propensity),)


@asynccontextmanager
async def running(empty: Path, folder: Path, **fields: Any) -> AsyncIterator[House]:
    """A house on a fresh ledger, which is a copy of an empty one: making the tables takes longer than most tests."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(empty, folder / "ledger.db")
    house = House(folder, **fields)
    await house.ledger.start()
    try:
        yield house
    finally:
        with anyio.fail_after(60):
            await house.ledger.aclose()
        house.database.close()
