"""One condition with one seed, from the untrained model to its exam; every step and every look is one line of JSON."""

import json
import resource
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.house_rules.choosing import choose, measured
from benchmarks.house_rules.general import Golden, compared
from benchmarks.house_rules.kept import questions, share_right
from benchmarks.house_rules.loop import Exam, Loop, Step, examine, held_out, validation
from benchmarks.house_rules.prompts import encode
from benchmarks.house_rules.rehearsal import Rehearsal, conversations
from benchmarks.house_rules.settings import Condition, Settings
from benchmarks.house_rules.tasks import Task
from metaclaw.engine.text import Vocabulary
from metaclaw.engine.training.learner import Learner
from metaclaw.engine.training.lora import Adapter
from metaclaw.engine.training.peft import write_adapter
from metaclaw.train.golden import GoldenScore
from metaclaw.train.regression import compare_golden

Record = Mapping[str, object]
Sink = Callable[[Record], None]

_REHEARSED_QUESTIONS = 300
_RECENT = 5


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run computes on. `threads` None leaves the choice to torch."""

    folder: Path
    device: str
    dtype: str
    threads: int | None


class Run:
    """A learner in one condition."""

    def __init__(self, condition: Condition, seed: int, settings: Settings, machine: Machine, sink: Sink) -> None:
        self._condition, self._seed, self._settings = condition, seed, settings
        self._sink, self._machine = sink, machine
        began = time.perf_counter()
        self.vocabulary = Vocabulary(machine.folder)
        self.learner = Learner(
            machine.folder, rank=settings.rank, seed=seed, device=machine.device, dtype=machine.dtype, threads=machine.threads
        )
        self._loaded_s = time.perf_counter() - began
        self._asked = held_out(settings, seed)
        self._golden: Golden | None = None
        self._before: GoldenScore | None = None

    def go(self) -> None:
        """Look before, learn if the condition does, look after."""
        settings = self._settings
        self._tell(
            "begin", settings=asdict(settings), device=self._machine.device, dtype=self._machine.dtype, loaded_s=self._loaded_s
        )
        guarded = settings.golden and self._condition.learns
        self._golden = Golden(self._machine.folder, self.vocabulary) if guarded else None
        self._before = self._golden.take(self.learner) if self._golden else None
        kept = self._share_kept() if guarded else None
        seconds = self._teach() if self._condition.learns else 0.0
        exams = {"exam": self._examine(self._asked, with_skill=self._condition.has_skill)}
        if self._condition.learns:
            exams["exam_other_prompt"] = self._examine(self._asked, with_skill=not self._condition.has_skill)
        facts: dict[str, object] = {name: asdict(exam) for name, exam in exams.items()}
        if self._golden and self._before:
            facts["golden"] = compared(self._before, self._golden.take(self.learner))
        if kept is not None:
            after = self._share_kept()
            facts["kept"] = {"before": kept, "after": after, "points": 100.0 * (after - kept)}
        self._tell("end", wall_s=seconds, peak_bytes=peak_bytes(self._machine.device), **facts)

    def _teach(self) -> float:
        """Steps until they, or the minutes, are over or enough is right; then some to settle. The seconds of all that."""
        settings = self._settings
        began = time.perf_counter()
        loop = Loop(
            self.learner, settings, partial(self._encode, with_skill=self._condition.has_skill), self._seed, self._rehearsal()
        )
        recent: deque[float] = deque(maxlen=_RECENT)
        for number in range(1, settings.steps + 1):
            progress = max((number - 1) / settings.steps, self._spent(began))
            if progress >= 1.0:
                break
            step = self._step(loop, progress, began)
            recent.append(step.exact)
            if len(recent) == recent.maxlen and sum(recent) / len(recent) >= settings.enough:
                self._settle(loop, began)
                break
            if number % settings.look_every == 0:
                with loop.clock.phase("look"):
                    exam = self._examine(self._asked[: settings.look_at], with_skill=self._condition.has_skill)
                self._tell("look", step=number, wall_s=time.perf_counter() - began, exam=asdict(exam))
        return time.perf_counter() - began

    def _spent(self, began: float) -> float:
        return (time.perf_counter() - began) / (60.0 * self._settings.minutes)

    def _step(self, loop: Loop, progress: float, began: float) -> Step:
        step = loop.step(progress)
        self._tell("step", wall_s=time.perf_counter() - began, phases=dict(loop.clock.seconds), **asdict(step))
        return step

    def _settle(self, loop: Loop, began: float) -> None:
        """Some more steps while the rate falls; then the best of the weights that were put aside meanwhile."""
        settings = self._settings
        if not settings.settle_steps:
            return
        aside = [(0, self.learner.adapter())]
        for number in range(1, settings.settle_steps + 1):
            if self._spent(began) >= 1.0:
                break
            self._step(loop, 1.0 - settings.cool_down * (1.0 - number / settings.settle_steps), began)
            if number % settings.settle_every == 0:
                aside.append((number, self.learner.adapter()))
        with loop.clock.phase("choose"):
            self._choose(aside, began)

    def _choose(self, aside: list[tuple[int, Adapter]], began: float) -> None:
        tasks = validation(self._settings, self._seed)

        def exact(adapter: Adapter) -> float:
            self.learner.adopt(adapter)
            return self._examine(tasks, with_skill=self._condition.has_skill).exact

        found = measured(aside, exact, self._golden_points)
        chosen = choose([one for one, _ in found], self._settings.settle_at)
        self.learner.adopt(next(adapter for one, adapter in found if one is chosen))
        checkpoints = [asdict(one) for one, _ in found]
        self._tell("choice", wall_s=time.perf_counter() - began, checkpoints=checkpoints, chosen=asdict(chosen))

    def _golden_points(self, adapter: Adapter) -> float | None:
        """What the golden set says of weights against the untrained, where it is asked at all."""
        if not (self._golden and self._before):
            return None
        self.learner.adopt(adapter)
        return compare_golden(self._before, self._golden.take(self.learner)).points

    def _share_kept(self) -> float:
        return share_right(self.learner, self.vocabulary, questions()[1])

    def _rehearsal(self) -> Rehearsal | None:
        settings = self._settings
        if not settings.rehearsal:
            return None
        talks = conversations(_REHEARSED_QUESTIONS, self._seed)
        kept = [[("user", question.ask)] for question in questions()[0]] if settings.settle_steps else []
        prompts, sure = ([tuple(self.vocabulary.render(talk, "")) for talk in some] for some in (talks, kept))
        return Rehearsal(self.learner, prompts, settings.rehearsed_prompts, self._seed, sure)

    def _encode(self, tasks: list[Task], *, with_skill: bool) -> list[tuple[int, ...]]:
        return encode(self.vocabulary, tasks, with_skill=with_skill)

    def _examine(self, tasks: list[Task], *, with_skill: bool) -> Exam:
        return examine(self.learner, tasks, self._encode(tasks, with_skill=with_skill), self._settings.max_tokens)

    def keep(self, folder: Path) -> None:
        """Write the adapter in PEFT's format."""
        write_adapter(folder, self.learner.adapter(), str(self._machine.folder))

    def _tell(self, kind: str, **facts: object) -> None:
        self._sink({"kind": kind, "condition": self._condition, "seed": self._seed, **facts})


def peak_bytes(device: str) -> int:
    """The most memory taken so far: the GPU's where there is one, else the process's."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_reserved())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write_line(path: Path, record: Record) -> None:
    """Append a record to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
