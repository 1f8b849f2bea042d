"""Ablations: the skills condition with one thing changed, run through the real program with the
simulated model.

A change is either a setting of the proxy (`gate`, `judge`, `placed`) or how well the simulated
evolver writes (`evolver`)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from metaclaw.plugin import ConfigError
from metaclaw_bench.conditions import CONDITIONS, Condition
from metaclaw_bench.report.figures import Study, placements_of_learned
from metaclaw_bench.report.markup import number, spread
from metaclaw_bench.running.plan import Plan
from metaclaw_bench.simulated.skills import Writing
from metaclaw_bench.stats import Interval

_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "evolver": tuple(one.value for one in Writing if one is not Writing.STRONG),
    "gate": ("off",),
    "judge": ("off",),
    "placed": ("1", "2"),
}
_SETTINGS: Final = {
    "gate": "skills.gate={value}",
    "judge": "judge.max_share=0.0",
    "placed": "skills.max_placed={value}",
}
USUAL: Final = (
    "gate=off",
    "evolver=weak",
    "evolver=noisy",
    "evolver=garbage",
    "judge=off",
    "placed=1",
)


@dataclass(frozen=True, slots=True)
class Ablation:
    """Changes by name, sorted."""

    changes: tuple[tuple[str, str], ...]

    @staticmethod
    def parse(text: str) -> "Ablation":
        """From `name=value,…`. Raises ConfigError naming what there is."""
        changes = tuple(
            sorted(
                (name, value) for name, _, value in (one.partition("=") for one in text.split(","))
            )
        )
        for name, value in changes:
            if value not in _VALUES.get(name, ()):
                offered = "; ".join(
                    f"{one}: {', '.join(values)}" for one, values in _VALUES.items()
                )
                raise ConfigError(f"there is no ablation {name}={value}; there are {offered}")
        return Ablation(changes)

    def of(self, plan: Plan) -> Plan:
        """The plan with these changes, labelled with them."""
        labels = tuple(f"{name}={value}" for name, value in self.changes)
        settings = [
            _SETTINGS[name].format(value=value) for name, value in self.changes if name in _SETTINGS
        ]
        condition = replace(plan.condition, changed=labels)
        return replace(plan, condition=condition, sets=(*plan.sets, *settings))


def writing_of(condition: Condition) -> Writing:
    """How the simulated evolver writes under this condition."""
    found = (label.partition("=")[2] for label in condition.changed if label.startswith("evolver="))
    return Writing(next(found, Writing.STRONG.value))


def ablated(plan: Plan, ablations: Sequence[Ablation]) -> Iterator[Plan]:
    """The plan as it is without skills, with skills, and with skills and each of the changes."""
    yield replace(plan, condition=CONDITIONS["baseline"])
    skills = replace(plan, condition=CONDITIONS["skills"])
    yield skills
    for one in ablations:
        yield one.of(skills)


HEADERS: Final = (
    "CHANGED",
    "SEEDS",
    "ACCURACY",
    "DIFFERENCE",
    "HELD-OUT",
    "DIFFERENCE",
    "SKILLS LEARNED",
    "LEARNED SKILLS PLACED",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One cell: its accuracy, and the difference from the condition without changes (of that, from
    the baseline).
    """

    changed: str
    seeds: int
    accuracy: Interval | None
    difference: Interval | None
    held_out: Interval | None
    held_out_difference: Interval | None
    skills_learned: float
    learned_skills_placed: float

    def words(self) -> Sequence[str]:
        """The row for people."""
        return (
            self.changed,
            str(self.seeds),
            spread(self.accuracy),
            spread(self.difference, "points"),
            spread(self.held_out),
            spread(self.held_out_difference, "points"),
            number(self.skills_learned),
            number(self.learned_skills_placed),
        )


def rows(study: Study) -> Iterator[Row]:
    """A row for each cell. Skills learned are those the evolver wrote; the person's own
    instructions are not counted.
    """
    for cell in study.cells:
        born = [
            one for one in cell.events if one.kind == "skill_born" and one.numbers.get("by_evolver")
        ]
        yield Row(
            ", ".join(cell.ablation) or f"{cell.label}, nothing changed",
            len(cell.seeds),
            study.accuracy(cell),
            study.gain(cell),
            study.accuracy(cell, "held_out"),
            study.gain(cell, "held_out"),
            len(born) / max(1, len(cell.seeds)),
            placements_of_learned(cell),
        )
