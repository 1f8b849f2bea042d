"""The learning part with real database, ledger, library, gate and loops; the models are scripted,
and the clock is fixed.
"""

import json
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio

from metaclaw.config import Config, EvolverConfig, JudgeConfig, ListenConfig
from metaclaw.domain.candidate import Candidate, Standing
from metaclaw.domain.chat import ChatRequest, Completion, Finish, Json, Part, Text, Usage, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.turn import ModelAt, Scope, Stamp, Times
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.learn.assembly import Learning, LearningStores, owner_of
from metaclaw.learn.budget import Budget
from metaclaw.learn.models import Models
from metaclaw.learn.retention import SessionErasure
from metaclaw.learn.supervision import AttemptLog, WorkAttempts, WorkItem
from metaclaw.ports import Model, Purpose
from metaclaw.skills import GateMode, SkillLibrary, write_skill
from metaclaw.store import (
    Database,
    LedgerLimits,
    SqlBatches,
    SqlCandidates,
    SqlCompliance,
    SqlCursors,
    SqlEpisodes,
    SqlGenerations,
    SqlLedger,
    SqlSpending,
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
    "body": (
        "1. Find every release date in the entry.\n2. Write each as YYYY-MM-DD.\n3. Check the"
        " finished entry for other formats.\n\nDo not write release dates as day/month/year or with"
        " month names."
    ),
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
    """A model that answers by a rule: text, something to be said as JSON, or an error to be
    raised.
    """

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
    return "\n".join(
        part.text
        for message in request.messages
        for part in message.parts
        if isinstance(part, Text)
    )


class Speakers(Models):
    """The scripted models that the learning part has at the moment."""

    def __init__(self, learning: "ScriptedLearning") -> None:
        super().__init__(())
        self._learning = learning

    def listener(
        self, section: ListenConfig, judge: JudgeConfig
    ) -> Callable[[str, str], Model | None]:
        return lambda provider, model: self._learning.listener

    def chosen(self, section: JudgeConfig | EvolverConfig) -> Callable[[ModelAt], Model | None]:
        return lambda served: (
            self._learning.judge if isinstance(section, JudgeConfig) else self._learning.evolver
        )


class Purse(Budget):
    """A budget that has money for the judge or has none."""

    def __init__(self, config: Config, spending: SqlSpending, learning: "ScriptedLearning") -> None:
        super().__init__(config, spending)
        self._learning = learning

    async def may_spend(
        self, purpose: Purpose, tokens: int, model: str = "", *, with_reserve: bool = True
    ) -> bool:
        return purpose is not Purpose.JUDGE or self._learning.can_pay


@dataclass
class ScriptedLearning:
    """One installation. `restart` stops the learning part wherever it is and builds it anew on what
    is on disk.
    """

    folder: Path
    gate: GateMode = GateMode.LINT
    min_failures: int = 1
    share: float = 1.0
    can_pay: bool = True
    judge: Speaker | None = None
    evolver: Speaker | None = None
    listener: Speaker | None = None
    teams: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pauses_s: tuple[float, ...] = (0.0,)
    clock: Clock = field(default_factory=Clock)
    may_train: Callable[[TurnId], bool] = lambda turn: False
    told: list[tuple[str, dict[str, Json]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database: Database = connect(f"sqlite:///{self.folder / 'ledger.db'}")
        self.ledger = SqlLedger(self.database, LedgerLimits(patience_s=60), clock=self.clock)
        self.build()

    def build(self, attempts: WorkAttempts | None = None) -> None:
        """The product's own assembly, with scripted models, this clock, and a budget that pays or
        does not.
        """
        database = self.database
        self.cursors, self.uses, self.batches = (
            SqlCursors(database),
            SqlUses(database),
            SqlBatches(database, self.clock),
        )
        spending = SqlSpending(database)
        stores = LearningStores(
            SqlVerdicts(database, self.clock),
            SqlCandidates(database, self.clock),
            self.cursors,
            self.uses,
            spending,
            SqlCompliance(database, self.clock),
            SqlEpisodes(database),
        )
        self.library = SkillLibrary(self.folder / "skills", SqlGenerations(database, self.clock))
        self.library.sync()
        config = self.config()
        learning = Learning(
            config,
            database=database,
            announce=self.announce,
            library=self.library,
            providers=(),
            words=words,
            stores=stores,
            attempt_log=AttemptLog(attempts),
            budget=Purse(config, spending, self),
            models=Speakers(self),
            now=self.clock,
            steady_s=lambda: self.clock.now.timestamp(),
        )
        self.attempt_log = learning.attempt_log
        self.reader = learning.reader
        self.verdicts = learning.verdicts
        self.candidates = learning.candidates
        self.generations = learning.generations
        self.steps = learning.steps
        self.recorded = learning.recorded
        self.redactor = learning.redactor
        self.redact = learning.redact
        self.judge_for = learning.judge_for
        self.allowance = learning.allowance
        self.admission = learning.admission
        self.counts = learning.counts
        self.listening = learning.listening
        self.fast = learning.fast
        self.lesson_loop = learning.lessons
        self.procedure_loop = learning.procedures
        self.outcomes = learning.outcomes
        self.maintenance = learning.maintenance
        self.compliance = learning.compliance
        self.checks = learning.checks
        self.fast.pauses_s, self.fast.may_train = self.pauses_s, self.may_train
        self.owner = owner_of(
            learning,
            self.library,
            SessionErasure(database, self.library, self.folder / "policies"),
            on_failure=learning.wake_fast_loop,
            on_forget=lambda session: None,
            serve=self.serve,
        )

    async def serve(self, batches: Sequence[int]) -> None:
        """Serves nothing."""

    def config(self) -> Config:
        """The settings of this installation."""
        return Config.model_validate(
            {
                "skills": {"gate": self.gate.value},
                "judge": {"max_share": self.share, "votes": VOTES},
                "listen": {"timeout_s": 5.0},
                "evolver": {"min_failures": self.min_failures},
                "teams": [{"name": name, "users": users} for name, users in self.teams.items()],
                "privacy": {"redact": False},
            }
        )

    async def announce(self, kind: str, data: dict[str, Json]) -> bool:
        self.told.append((kind, data))
        return True

    def restart(self) -> None:
        """The program was killed, and started again."""
        self.build()

    def die_of(self, loop: str, item: object, times: int = 3) -> None:
        """Learners were killed so many times in a row while they had this in hand, and there is
        another one.
        """
        self.build(WorkAttempts(counts={WorkItem(loop, str(item)): times}))

    async def sense(self) -> None:
        """Look once, and wait until the judge has answered."""
        async with anyio.create_task_group() as judging:
            await self.outcomes.poll(judging)

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
                found = await self.listening.poll(asking)
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
        await self.maintenance.run_once()

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

    def say(
        self,
        turn: TurnId,
        outcome: Outcome,
        source: Source = Source.DETECTOR,
        fault: Fault = Fault.AGENT,
    ) -> None:
        """A verdict from somewhere else."""
        is_fail = outcome is Outcome.FAIL
        self.verdicts.record_verdict(
            Verdict(turn, outcome, source, None, fault=fault if is_fail else None)
        )

    def put_in_force(self, name: str, **fields: Any) -> Skill:
        """A learned skill, as if it had come through."""
        skill = learned_skill(name, **fields)
        self.library.publish([skill], (), f"learned {name}")
        return self.skill(name)


class Talk:
    """One session with one person. Every answer is a turn, stamped with the generation in force."""

    def __init__(
        self,
        learning: ScriptedLearning,
        scope: Scope = ADA,
        model: str = "m-1",
        wire: Wire = Wire.CHAT,
    ) -> None:
        self.learning = learning
        self.scope = scope
        self.agent = Agent(wire, model=model)
        self.segment = -1

    @property
    def session(self) -> SessionId:
        return SessionId(self.agent.session)

    async def say(
        self, text: str, answer: str = "Released on 01/02/2026.", **fields: Any
    ) -> TurnId:
        """The person says something, and the agent answers."""
        self.agent.hear(text)
        self.segment += 1
        return await self.answer(Text(answer), **fields)

    async def answer(self, *parts: Part, **fields: Any) -> TurnId:
        view = self.learning.library.view
        skills: Sequence[str] = fields.pop("skills", ())
        placed = tuple(SkillName(name) for name in skills)
        stamp = Stamp(
            fields.pop("generation", view.generation), fields.pop("version", 0), view.hash, placed
        )
        self.learning.clock.pass_by(seconds=1)
        times = Times(self.learning.clock(), 0.1, 0.2)
        self.agent.answer(
            *parts, stamp=stamp, scope=self.scope, segment=self.segment, times=times, **fields
        )
        turn = self.agent.turns[-1].turn
        assert await self.learning.ledger.record(turn)
        return turn.id

    async def end(self) -> None:
        self.learning.clock.pass_by(seconds=1)
        await self.learning.ledger.end_session(self.session, "the test says so")


def learned_skill(name: str, **fields: Any) -> Skill:
    """A skill as an evolver writes it, in force for ada."""
    chosen: dict[str, Any] = {
        "scope": "user:ada",
        "author": Authorship.EVOLVER,
        "state": SkillState.LIVE,
    } | fields
    trigger = chosen.pop("trigger", f"When writing about {name.replace('-', ' ')} in a report")
    body = chosen.pop("body", f"1. Look for {name}.\n2. Write it down.\n\nDo not leave {name} out.")
    kind: type[Skill] = chosen.pop("kind", Skill)
    return kind(SkillName(name), trigger, body, **chosen)


@asynccontextmanager
async def running(empty: Path, folder: Path, **fields: Any) -> AsyncIterator[ScriptedLearning]:
    """The learning part on a fresh ledger, which is a copy of an empty one: making the tables takes
    longer than most tests.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(empty, folder / "ledger.db")
    learning = ScriptedLearning(folder, **fields)
    await learning.ledger.start()
    try:
        yield learning
    finally:
        with anyio.fail_after(60):
            await learning.ledger.aclose()
        learning.database.close()
