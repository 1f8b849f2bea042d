"""One run: a program of its own, a person's chats, `policy train`, and held-out questions through
the proxy.

Nothing here trains, rewards or judges: that is the program's. Every fact that is learned from
outside is a record."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Any, Final

import httpx

from benchmarks.home import Machine, running, settle, wait_until_judged
from benchmarks.house_rules.courses import Course
from benchmarks.house_rules.pools import Split
from benchmarks.house_rules.tasks import Task
from tests.support.program import Program

SYSTEM: Final = "You work for an office. Answer with what was asked for, nothing else."
_ANSWER_S: Final = 600.0


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
class Answered:
    """An answer with the headers that say how it was made."""

    task: Task
    text: str
    version: str
    skills: str

    @property
    def is_exact(self) -> bool:
        """Whether it is the right answer."""
        return self.task.is_exact(self.text)


Sink = Callable[[Mapping[str, object]], None]


class Run:
    """One course under one condition with one seed."""

    def __init__(
        self,
        course: Course,
        condition: Condition,
        seed: int,
        settings: Settings,
        machine: Machine,
        write: Sink,
    ) -> None:
        self._course, self._condition, self._seed = course, condition, seed
        self._settings, self._machine, self._write = settings, machine, write
        self._began = time.monotonic()
        self._sessions = count(1)

    @property
    def name(self) -> str:
        """The name of its records and of its home."""
        return f"{self._course.name}-{self._condition}-{self._seed}"

    def go(self) -> None:
        """Do it all. The last record is `end`."""
        settings, course = self._settings, self._course
        is_trained = self._condition is Condition.FULL
        skills = {} if self._condition is Condition.BASE else course.skills
        arguments = ["--mode", settings.mode if is_trained else "skills_only"]
        sets = (f"policy.device={settings.device}", *settings.sets) if is_trained else settings.sets
        for one in sets:
            arguments += ["--set", one]
        self._tell("begin", rules=course.rules, settings=_facts(settings))
        config = "[policy]\n" if is_trained else ""
        with running(self._machine, self.name, *arguments, config=config, skills=skills) as program:
            self._tell("started", policy=program.get("/api/policy"))
            decision = self._train(program) if is_trained else None
            self._examine(program, decision)

    def _train(self, program: Program) -> Mapping[str, object] | None:
        settings = self._settings
        tasks = self._course.tasks(Split.TRAIN, self._seed, settings.chats)
        began = time.monotonic()
        answered = self._ask(program, tasks, temperature=1.0)
        self._tell(
            "chats",
            seconds=time.monotonic() - began,
            **_summary(answered),
            exact=self._exact(answered),
        )
        settle(program, 60 * settings.minutes)
        done = program.command("policy", "train", "--json")
        self._tell(
            "train", status=done.returncode, said=_json(done.stdout), errors=done.stderr[-2000:]
        )
        began = time.monotonic()
        is_over = wait_until_judged(program, self._began + 60 * settings.minutes, self._tell)
        versions = program.get("/api/policy?limit=100")["versions"]
        for version in versions:
            self._tell("version", **version)
        self._tell("trained", is_over=is_over, seconds=time.monotonic() - began)
        return next(iter(versions), None)

    def _examine(self, program: Program, decision: Mapping[str, object] | None) -> None:
        tasks = self._course.tasks(Split.HELD_OUT, self._seed, self._settings.questions)
        began = time.monotonic()
        answered = self._ask(program, tasks, temperature=0.0)
        for one in answered:
            self._tell(
                "answer",
                rule=one.task.rule,
                question=one.task.question,
                wanted=one.task.answer,
                said=one.text,
                is_exact=one.is_exact,
                version=one.version,
                skills=one.skills,
            )
        self._tell(
            "end",
            seconds=time.monotonic() - began,
            total_s=time.monotonic() - self._began,
            by_rule={
                rule: _share([one for one in answered if one.task.rule == rule])
                for rule in self._course.rules
            },
            decision=None
            if decision is None
            else {key: decision.get(key) for key in ("version", "state", "steps", "note")},
            **_summary(answered),
            exact=_share(answered),
        )

    def _exact(self, chats: Sequence[Answered]) -> float | None:
        """The share of chats that are right, or None if nobody knows their right answers."""
        return _share(chats) if self._course.knows_chats else None

    def _ask(
        self, program: Program, tasks: Sequence[Task], *, temperature: float
    ) -> list[Answered]:
        """Every task in a session of its own, some at once, as agents do."""
        limits = httpx.Limits(max_connections=self._settings.at_once)
        with (
            httpx.Client(timeout=_ANSWER_S, limits=limits) as http,
            ThreadPoolExecutor(self._settings.at_once) as pool,
        ):
            return list(
                pool.map(lambda task: self._ask_one(http, program, task, temperature), tasks)
            )

    def _ask_one(
        self, http: httpx.Client, program: Program, task: Task, temperature: float
    ) -> Answered:
        body = {
            "model": "any",
            "messages": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": task.question},
            ],
            "max_tokens": self._settings.max_tokens,
            "temperature": temperature,
        }
        headers = program.auth | {
            "X-Session-Id": f"{self.name}-{next(self._sessions)}",
            "X-Session-Done": "true",
        }
        response = http.post(f"{program.url}/v1/chat/completions", json=body, headers=headers)
        response.raise_for_status()
        text = str(response.json()["choices"][0]["message"]["content"] or "")
        return Answered(
            task,
            text,
            response.headers.get("x-metaclaw-policy", ""),
            response.headers.get("x-metaclaw-skills", ""),
        )

    def _tell(self, kind: str, **facts: object) -> None:
        head = {
            "kind": kind,
            "course": self._course.name,
            "condition": self._condition,
            "seed": self._seed,
        }
        self._write({**head, "at_s": round(time.monotonic() - self._began, 2), **facts})


def _summary(answered: Sequence[Answered]) -> dict[str, object]:
    placed = [one for one in answered if one.skills]
    versions = sorted({one.version for one in answered})
    return {"asked": len(answered), "with_skill": len(placed), "versions": versions}


def _share(answered: Sequence[Answered]) -> float:
    return sum(one.is_exact for one in answered) / max(1, len(answered))


def _facts(settings: Settings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in Settings.__dataclass_fields__}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
