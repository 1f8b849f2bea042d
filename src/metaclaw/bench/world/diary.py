"""Writes a simulated run down, every line marked as simulated."""

from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

from metaclaw.bench.questions import ChoiceCheck
from metaclaw.bench.records import EventKind, EventRecord, Phase, PlanRecord, Record, RoundRecord
from metaclaw.bench.workdays.model import Item, Workday
from metaclaw.bench.world.policy import Answered, rules_of
from metaclaw.bench.world.settings import Ablation, Condition, Practice
from metaclaw.domain.ids import SkillName

SLOWED: Final = 3.0
"""An answer takes so much longer while a step is under way beside it."""


class _Made(TypedDict):
    run: str
    benchmark: str
    condition: str
    ablation: tuple[str, ...]
    seed: int
    simulated: bool


class Diary:
    """The records of one run, in order."""

    def __init__(self, condition: Condition, ablation: Ablation, seed: int, benchmark: str, practice: Practice) -> None:
        self._practice = practice
        self._made: _Made = {
            "run": run_name(condition, ablation, seed),
            "benchmark": benchmark,
            "condition": condition,
            "ablation": ablation.labels,
            "seed": seed,
            "simulated": True,
        }
        self.records: list[Record] = []

    def plan(self, *, stream: int, again: int, held_out: int, words: str) -> None:
        """What the run sets out to do."""
        self.records.append(PlanRecord(stream=stream, again=again, held_out=held_out, words=words, **self._made))

    def event(
        self,
        kind: EventKind,
        day: Workday,
        after: int,
        *,
        number: int | None = None,
        name: str | None = None,
        why: str = "",
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        """Something happened, after so many rounds of a day."""
        event = EventRecord(
            day=day.day.id,
            day_number=day.number,
            after=after,
            kind=kind,
            number=number,
            name=name,
            why=why,
            numbers=dict(numbers or {}),
            **self._made,
        )
        self.records.append(event)

    def round(
        self,
        day: Workday,
        item: Item,
        phase: Phase,
        answered: Answered,
        *,
        clocks: tuple[int, int],
        skills: Sequence[SkillName],
        reward: float | None = None,
        is_slowed: bool = False,
    ) -> None:
        """How a round went. `clocks` are the generation and the version it was answered in."""
        practice = self._practice
        record = RoundRecord(
            day=day.day.id,
            day_number=day.number,
            round=item.round.id,
            kind="multi_choice" if isinstance(item.round.check, ChoiceCheck) else "file_check",
            score=answered.score,
            passed=answered.passed,
            exact=answered.exact,
            held_out=phase == "held_out",
            phase=phase,
            rules=item.rules,
            generation=clocks[0],
            policy_version=clocks[1],
            skills=tuple(skills),
            reward=reward,
            tokens_in=practice.prompt_tokens + practice.skill_tokens * len(skills),
            tokens_out=practice.answer_tokens,
            seconds=practice.answer_s * (SLOWED if is_slowed else 1.0),
            tail=_tail(item, answered),
            **self._made,
        )
        self.records.append(record)


def run_name(condition: Condition, ablation: Ablation, seed: int) -> str:
    """Names a run, and its file."""
    return "-".join(("simulated", condition, *(label.replace("=", "_") for label in ablation.labels), str(seed)))


def _tail(item: Item, answered: Answered) -> str:
    followed = ", ".join(rule for rule in rules_of(item) if rule not in answered.broken) or "nothing"
    return f"(simulated) followed: {followed}; broken: {', '.join(sorted(answered.broken)) or 'nothing'}"
