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

from benchmarks.house_rules.general import Golden, compared
from benchmarks.house_rules.loop import Exam, Loop, examine, held_out
from benchmarks.house_rules.prompts import encode
from benchmarks.house_rules.rehearsal import Rehearsal, conversations
from benchmarks.house_rules.settings import Condition, Settings
from benchmarks.house_rules.tasks import Task
from metaclaw.engine.text import Vocabulary
from metaclaw.engine.training.learner import Learner
from metaclaw.engine.training.peft import write_adapter

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

    def go(self) -> None:
        """Look before, learn if the condition does, look after."""
        settings = self._settings
        self._tell(
            "begin", settings=asdict(settings), device=self._machine.device, dtype=self._machine.dtype, loaded_s=self._loaded_s
        )
        golden = Golden(self._machine.folder, self.vocabulary) if settings.golden and self._condition.learns else None
        before = golden.take(self.learner) if golden else None
        seconds = self._teach() if self._condition.learns else 0.0
        exams = {"exam": self._examine(self._asked, with_skill=self._condition.has_skill)}
        if self._condition.learns:
            exams["exam_other_prompt"] = self._examine(self._asked, with_skill=not self._condition.has_skill)
        facts = {name: asdict(exam) for name, exam in exams.items()}
        if golden and before:
            facts["golden"] = compared(before, golden.take(self.learner))
        self._tell("end", wall_s=seconds, peak_bytes=peak_bytes(self._machine.device), **facts)

    def _teach(self) -> float:
        """Steps until they, or the minutes, are over; the seconds that took, looks included."""
        settings = self._settings
        began = time.perf_counter()
        loop = Loop(
            self.learner, settings, partial(self._encode, with_skill=self._condition.has_skill), self._seed, self._rehearsal()
        )
        recent: deque[float] = deque(maxlen=_RECENT)
        for number in range(1, settings.steps + 1):
            spent = time.perf_counter() - began
            progress = max((number - 1) / settings.steps, spent / (60.0 * settings.minutes))
            if progress >= 1.0:
                break
            step = loop.step(progress)
            self._tell("step", wall_s=time.perf_counter() - began, phases=dict(loop.clock.seconds), **asdict(step))
            recent.append(step.exact)
            if len(recent) == recent.maxlen and sum(recent) / len(recent) >= settings.enough:
                break
            if number % settings.look_every == 0:
                with loop.clock.phase("look"):
                    exam = self._examine(self._asked[: settings.look_at], with_skill=self._condition.has_skill)
                self._tell("look", step=number, wall_s=time.perf_counter() - began, exam=asdict(exam))
        return time.perf_counter() - began

    def _rehearsal(self) -> Rehearsal | None:
        settings = self._settings
        if not settings.rehearsal:
            return None
        talks = conversations(_REHEARSED_QUESTIONS, self._seed)
        prompts = [tuple(self.vocabulary.render(talk, "")) for talk in talks]
        return Rehearsal(self.learner, prompts, settings.rehearsed_prompts, self._seed)

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
