"""One condition with one seed, day by day to the held-out days; every day, every step and the end are one line of JSON."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks.house_rules.general import Golden
from benchmarks.house_rules.kept import questions, share_right
from benchmarks.house_rules.loop import Policy
from benchmarks.house_rules.rehearsal import Rehearsal, conversations
from benchmarks.house_rules.run import Machine, peak_bytes
from benchmarks.workdays.asking import Desk, Sessions, batches, questions_of
from benchmarks.workdays.evolver import Evolver
from benchmarks.workdays.guard import Guard
from benchmarks.workdays.house import Heard, House
from benchmarks.workdays.marks import samples, summarise
from benchmarks.workdays.nights import Ledger, Teacher, eligible
from benchmarks.workdays.rewards import letters_in
from benchmarks.workdays.settings import Condition, Settings, Support, Writer
from benchmarks.workdays.steady import Steady
from benchmarks.workdays.turns import Asked, Score, reply_to, step_of
from metaclaw.engine.text import Vocabulary
from metaclaw.engine.training.learner import Learner
from metaclaw.engine.training.peft import write_adapter
from metaclaw_bench.workdays.model import Workday

Record = Mapping[str, object]
Sink = Callable[[Record], None]


@dataclass(frozen=True, slots=True)
class Course:
    """What a seed's run goes through: its days, and days that it never learns from."""

    days: tuple[Workday, ...]
    held_out: tuple[Workday, ...]
    score: Score


class Run:
    """A model in one condition, through one course."""

    def __init__(self, condition: Condition, seed: int, settings: Settings, course: Course, machine: Machine, sink: Sink) -> None:
        self._condition, self._seed, self._settings = condition, seed, settings
        self._course, self._machine, self._sink = course, machine, sink
        self._began = time.perf_counter()
        self.vocabulary = Vocabulary(machine.folder)
        self.learner = Learner(
            machine.folder, rank=settings.rank, seed=seed, device=machine.device, dtype=machine.dtype, threads=machine.threads
        )
        self._policy: Policy = Steady(self.learner) if machine.device.startswith("cuda") else self.learner
        self._desk = Desk(
            self._policy,
            self.vocabulary,
            course.score,
            max_tokens=settings.max_tokens,
            max_prompt_tokens=settings.max_prompt_tokens,
            shows_examples=settings.examples,
        )
        self._house = House() if condition.has_skills else None
        self._evolver = Evolver(settings.shown) if settings.writer is Writer.SCRIPTED else None
        self._ledger = Ledger()
        self._version = 0

    def go(self) -> None:
        """Every day with its night, then the questions kept for the end. What the clock cuts off is days, not the end."""
        settings, learns = self._settings, self._condition.learns
        self._tell("begin", settings=asdict(settings), device=self._machine.device, dtype=self._machine.dtype)
        guard = self._guard() if settings.golden and learns else None
        teacher = Teacher(self._policy, settings, self._course.score, self._seed, self._rehearsal()) if learns else None
        first: list[list[Asked]] = []
        for number, day in enumerate(self._course.days[: settings.days]):
            if not self._has_time():
                break
            first.append(self._day(day))
            if teacher is not None:
                self._night(teacher, number, guard)
        facts = self._exams(first[: settings.early_days])
        if guard is not None:
            facts |= guard.facts()
        self._tell("end", wall_s=self._seconds(), days=len(first), peak_bytes=peak_bytes(self._machine.device), **facts)

    def _day(self, day: Workday) -> list[Asked]:
        asked: list[Asked] = []
        heard: list[Heard] = []
        sessions = Sessions()
        for batch in batches(questions_of(day, self._settings.questions), self._settings.batches):
            answered = self._desk.ask(batch, self._house, sessions, self._version)
            heard += [self._hear(one) for one in answered]
            asked += answered
        self._ledger.turns += asked
        self._tell(
            "day",
            day=day.number,
            user=day.user,
            language=day.language,
            summary=summarise(asked).record(),
            version=self._version,
            generation=self._house.view.generation if self._house else 0,
            skills=self._house.view.count if self._house else 0,
            born=[name for one in heard for name in one.born],
            gone=[name for one in heard for name in one.gone],
            wall_s=self._seconds(),
        )
        return asked

    def _hear(self, asked: Asked) -> Heard:
        """What comes of the person's reply; a turn that taught is support from now on."""
        if self._house is None:
            return Heard()
        if self._evolver is not None:
            proposals = self._evolver.hear(asked)
            heard = self._house.take(proposals)
            self._ledger.support |= {turn: self._house.view.generation for one in proposals for turn in one.support}
            return heard
        heard = self._house.hear(step_of(asked, reply_to(asked.question, letters_in(asked.said), passed=asked.passed)))
        if heard.born or (heard.is_instruction and self._settings.support is Support.HEARD):
            self._ledger.support[asked.question.turn] = self._house.view.generation
        return heard

    def _guard(self) -> Guard:
        golden = Golden(self._machine.folder, self.vocabulary)
        return Guard(
            self.learner, partial(golden.take, self._policy), partial(share_right, self._policy, self.vocabulary, questions()[1])
        )

    def _night(self, teacher: Teacher, number: int, guard: Guard | None) -> None:
        lessons, refused = eligible(self._ledger, self._house, self._version, self._settings.flush)
        steps = 0
        while lessons and steps < self._settings.steps and self._has_time():
            step = teacher.step(lessons, self._progress(number))
            steps += 1
            self._tell("step", night=number + 1, wall_s=self._seconds(), phases=dict(teacher.clock.seconds), **asdict(step))
        judged = guard.judge() if guard is not None and steps else None
        if steps and (judged is None or judged.scale is not None):
            self._version += 1
            self._ledger.taught |= {lesson.question.turn for lesson in lessons}
        counts = {str(reason): count for reason, count in refused.items()}
        self._tell(
            "night",
            night=number + 1,
            lessons=len(lessons),
            refused=counts,
            steps=steps,
            version=self._version,
            judged=asdict(judged) if judged is not None else None,
        )

    def _exams(self, first: Sequence[Sequence[Asked]]) -> dict[str, object]:
        """Held-out days; the same without (or, for RL only, also without) skills; early days again."""
        settings = self._settings
        held_out = [
            question
            for day in self._course.held_out[: settings.held_out_days]
            for question in questions_of(day, settings.questions)
        ]
        answered = self._desk.ask(held_out, self._house, Sessions(), self._version)
        facts: dict[str, object] = {"held_out": summarise(answered).record(), "samples": samples(answered)}
        if self._condition is Condition.FULL:
            facts["held_out_without_skills"] = summarise(self._desk.ask(held_out, None, Sessions(), self._version)).record()
        if first:
            early = [one for day in first for one in day]
            again = self._desk.ask([one.question for one in early], self._house, Sessions(), self._version)
            facts["early_first"], facts["early_again"] = summarise(early).record(), summarise(again).record()
        return facts

    def _rehearsal(self) -> Rehearsal | None:
        settings = self._settings
        if not settings.rehearsal:
            return None
        talks = conversations(settings.rehearsed_questions, self._seed)
        kept = [[("user", question.ask)] for question in questions()[0]] if settings.golden else []
        prompts, sure = ([tuple(self.vocabulary.render(talk, "")) for talk in some] for some in (talks, kept))
        return Rehearsal(self._policy, prompts, settings.rehearsed_prompts, self._seed, sure)

    def _progress(self, night: int) -> float:
        """How much of the run is over, by days or by the clock, whichever is further."""
        days = min(self._settings.days, len(self._course.days))
        return max(night / days, self._seconds() / (60.0 * self._settings.minutes))

    def _has_time(self) -> bool:
        return self._seconds() < 60.0 * self._settings.minutes

    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def keep(self, folder: Path) -> None:
        """Write the adapter in PEFT's format."""
        write_adapter(folder, self.learner.adapter(), str(self._machine.folder))

    def _tell(self, kind: str, **facts: object) -> None:
        self._sink({"kind": kind, "condition": self._condition, "seed": self._seed, **facts})
