"""One run: a program of its own, a person's chats, `policy train`, and held-out questions through
the proxy.

Nothing here trains, rewards or judges: that is the program's. Every fact that is learned from
outside is a record."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from benchmarks.home import Machine, running, settle, wait_until_judged
from benchmarks.house_rules.courses import Course
from benchmarks.house_rules.pools import Split
from benchmarks.house_rules.tasks import Task
from benchmarks.program_runs import ChatReply, RunLog, chats, train
from tests.support.program import Program

SYSTEM: Final = "You work for an office. Answer with what was asked for, nothing else."
NUMBERS: Final = ("chats", "questions", "max_tokens", "at_once", "minutes")
"""The settings that are numbers."""


class Condition(StrEnum):
    """What the program is given."""

    BASE = "base"
    """No skill, no training."""
    SKILLS = "skills"
    """The skills, no training."""
    FULL = "full"
    """The skills, and training."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Numbers of a run. `chats` and `questions` are for each rule; `sets` are `section.key=value`
    for `metaclaw start --set`.
    """

    chats: int = 160
    questions: int = 40
    max_tokens: int = 48
    at_once: int = 16
    minutes: float = 8.0
    mode: str = "rl"
    device: str = "auto"
    sets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Answered:
    task: Task
    reply: ChatReply

    @property
    def is_exact(self) -> bool:
        """Whether it is the right answer."""
        return self.task.is_exact(self.reply.text)


@dataclass(frozen=True, slots=True)
class _Run:
    course: Course
    settings: Settings
    log: RunLog
    program: Program

    def train(self) -> Mapping[str, object] | None:
        """Chats, and training on them; the newest version."""
        settings, log = self.settings, self.log
        tasks = self.course.tasks(Split.TRAIN, log.seed, settings.chats)
        before_s = log.seconds
        answered = self._ask(tasks, temperature=1.0)
        log.tell(
            "chats",
            seconds=log.seconds - before_s,
            **_summary(answered),
            exact=_share(answered) if self.course.knows_chats else None,
        )
        settle(self.program, 60 * settings.minutes)
        train(log, self.program)
        before_s = log.seconds
        is_over = wait_until_judged(self.program, log.began + 60 * settings.minutes, log.tell)
        versions = self.program.get("/api/policy?limit=100")["versions"]
        for version in versions:
            log.tell("version", **version)
        log.tell("trained", is_over=is_over, seconds=log.seconds - before_s)
        return next(iter(versions), None)

    def examine(self, decision: Mapping[str, object] | None) -> None:
        """Held-out questions. The last record is `end`."""
        log = self.log
        tasks = self.course.tasks(Split.HELD_OUT, log.seed, self.settings.questions)
        before_s = log.seconds
        answered = self._ask(tasks, temperature=0.0)
        for one in answered:
            log.tell(
                "answer",
                rule=one.task.rule,
                question=one.task.question,
                wanted=one.task.answer,
                said=one.reply.text,
                is_exact=one.is_exact,
                version=one.reply.version,
                skills=one.reply.skills,
            )
        log.tell(
            "end",
            seconds=log.seconds - before_s,
            total_s=log.seconds,
            by_rule={
                rule: _share([one for one in answered if one.task.rule == rule])
                for rule in self.course.rules
            },
            decision=None
            if decision is None
            else {key: decision.get(key) for key in ("version", "state", "steps", "note")},
            **_summary(answered),
            exact=_share(answered),
        )

    def _ask(self, tasks: Sequence[Task], *, temperature: float) -> list[_Answered]:
        settings = self.settings
        replies = chats(
            self.log,
            self.program,
            [(("system", SYSTEM), ("user", task.question)) for task in tasks],
            settings.at_once,
            model="any",
            max_tokens=settings.max_tokens,
            temperature=temperature,
        )
        return [_Answered(task, reply) for task, reply in zip(tasks, replies, strict=True)]


def run(
    course: Course, condition: Condition, settings: Settings, log: RunLog, machine: Machine
) -> None:
    """One course under one condition with one seed."""
    is_trained = condition is Condition.FULL
    skills = {} if condition is Condition.BASE else course.skills
    arguments = ["--mode", settings.mode if is_trained else "skills_only"]
    sets = (f"policy.device={settings.device}", *settings.sets) if is_trained else settings.sets
    for one in sets:
        arguments += ["--set", one]
    log.tell("begin", rules=course.rules, settings=asdict(settings))
    config = "[policy]\n" if is_trained else ""
    with running(machine, log.name, *arguments, config=config, skills=skills) as program:
        log.tell("started", policy=program.get("/api/policy"))
        one_run = _Run(course, settings, log, program)
        one_run.examine(one_run.train() if is_trained else None)


def _summary(answered: Sequence[_Answered]) -> dict[str, object]:
    placed = [one for one in answered if one.reply.skills]
    versions = sorted({one.reply.version for one in answered})
    return {"asked": len(answered), "with_skill": len(placed), "versions": versions}


def _share(answered: Sequence[_Answered]) -> float:
    return sum(one.is_exact for one in answered) / max(1, len(answered))
