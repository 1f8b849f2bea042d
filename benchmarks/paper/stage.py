"""What every part does: questions that teach, exams that do not, nights of training, and skills and
weights put in force and taken back. All of it by public interfaces.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from benchmarks.home import TO_READ, Machine, settle, wait_until_judged
from benchmarks.program_runs import ANSWER_S, ChatReply, RunLog, chats, train
from metaclaw.engine import MODEL_ID
from tests.support.program import Program

Talk = Sequence[tuple[str, str]]

NUMBERS: Final = (
    *("minutes", "steps", "days", "days_after", "chats", "questions"),
    *("max_tokens", "at_once", "exam_seconds", "settle_seconds"),
)
"""The settings that are numbers."""
MODEL: Final = f"embedded/{MODEL_ID}"
"""Only its provider's name counts."""


class OutOfTimeError(Exception):
    """The run's minutes are over. What it has recorded counts."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Numbers of a run. `chats` and `questions` are for each rule, `exam_seconds` what is left of
    the minutes for exams behind a night, `settle_seconds` the longest wait for what was said to be
    read; `sets` are for `metaclaw start --set`.
    """

    minutes: float = 8.0
    steps: int = 40
    days: int = 5
    days_after: int = 2
    chats: int = 40
    questions: int = 12
    max_tokens: int = 80
    at_once: int = 16
    exam_seconds: float = 60.0
    settle_seconds: float = 30.0
    course: str = "office"
    device: str = "auto"
    sets: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """Of `metaclaw start`. Weights are trained at night and at no other time, so no window
        opens by itself.
        """
        sets = (f"policy.device={self.device}", f"policy.steps={self.steps}", *self.sets)
        return ["--mode", "auto", *(word for one in sets for word in ("--set", one))]


def policy_config(machine: Machine) -> str:
    """The sections that every part's configuration has."""
    return (
        f'[policy]\nbase_model = "{machine.model}"\ntrain_share = 0.0\n'
        "[schedule]\nsleep = []\nidle_minutes = 1440.0\nmax_load = 0.0\n"
    )


@dataclass(frozen=True, slots=True)
class Stage:
    """A running program, and the person before it."""

    settings: Settings
    log: RunLog
    program: Program
    kinds: Sequence[str] = TO_READ
    """What is waited for when something was said."""

    @property
    def seconds_left(self) -> float:
        """Of the run's minutes."""
        return 60 * self.settings.minutes - self.log.seconds

    def ask(self, talks: Sequence[Talk], *, teaches: bool) -> list[ChatReply]:
        """Answers at temperature 1 that teach, or greedy ones in sessions that stay open, of which
        nothing is learned. Raises OutOfTimeError.
        """
        if self.seconds_left <= 0:
            raise OutOfTimeError
        return chats(
            self.log,
            self.program,
            talks,
            self.settings.at_once,
            is_over=teaches,
            model=MODEL,
            max_tokens=self.settings.max_tokens,
            temperature=1.0 if teaches else 0.0,
        )

    def sleep(self, **facts: object) -> None:
        """A night of training. Raises OutOfTimeError if it is not over when only the time for the
        exam is left.
        """
        self.settle()
        known, began = len(self.versions()), self.log.seconds
        reserve = self.settings.exam_seconds
        deadline = self.log.began + 60 * self.settings.minutes - reserve
        is_over = not train(self.log, self.program, **facts) or wait_until_judged(
            self.program, deadline, self._tell_progress(), known
        )
        for version in self.versions()[: -known or None]:
            self.log.tell("version", **facts, **version)
        self.log.tell("night", is_over=is_over, seconds=self.log.seconds - began, **facts)
        if not is_over:
            raise OutOfTimeError

    def versions(self) -> list[dict[str, Any]]:
        """The trained versions, newest first."""
        found: list[dict[str, Any]] = self.program.get("/api/policy?limit=100")["versions"]
        return found

    def correct(self, wrong: Iterable[tuple[str, str]]) -> None:
        """The person says of these turns what was wrong with them."""
        for turn, comment in wrong:
            self.send("POST", "/api/feedback", turn=turn, outcome="fail", comment=comment)

    def settle(self) -> None:
        """Wait until all that was said has been read."""
        most = min(self.settings.settle_seconds, max(1.0, self.seconds_left))
        settle(self.program, most, self.kinds)

    def skills(self) -> dict[str, str]:
        """The text of each skill in force, by name."""
        found = self.program.get("/api/skills?text=true")["skills"]
        return {str(one["name"]): str(one["text"]) for one in found}

    def put(self, skills: Mapping[str, str]) -> None:
        """Have these skills in force, and no other."""
        for name in self.skills().keys() - skills:
            self.send("POST", f"/api/skills/{name}/retire")
        files = [{"path": f"{name}/SKILL.md", "text": text} for name, text in skills.items()]
        if files:
            self.send("POST", "/api/skills", files=files, replace=True)

    def send(self, method: str, path: str, **body: object) -> Any:
        """A request to the program's own API. Raises for an answer that is none."""
        answer = httpx.request(
            method,
            f"{self.program.url}{path}",
            json=body if method != "DELETE" else None,
            headers=self.program.auth,
            timeout=ANSWER_S,
        )
        answer.raise_for_status()
        return answer.json()

    def _tell_progress(self) -> Callable[..., None]:
        """A teller of what training does, once for each state and step."""
        told: set[tuple[object, ...]] = set()

        def tell(kind: str, **facts: object) -> None:
            key = (facts.get("state"), facts.get("step"))
            if key not in told:
                told.add(key)
                kept = ("state", "step", "steps", "mean_reward", "validated", "skipped", "troubles")
                self.log.tell(kind, **{name: facts[name] for name in kept if name in facts})

        return tell
