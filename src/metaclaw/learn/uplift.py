"""The effect of skills in force, from the tasks on which their placing was left to chance."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from metaclaw.domain.candidate import Certificate
from metaclaw.domain.skill import Skill
from metaclaw.domain.verdict import Outcome
from metaclaw.skills import LiveTask, TaskCounts, TrialReport, Uplift, is_harmful, judge_trial, measure_uplift, trial_prior
from metaclaw.store import DrawnTurn, LedgerReader, SqlGenerations

_LEAST_TURNS: Final = 20
_RECENT: Final = 60
_MOST_OF: Final = 2 / 3
_ORDER: Final = (Outcome.UNKNOWN, Outcome.PASS, Outcome.FAIL)


class UpliftReader:
    """Reads the ledger. Blocks."""

    def __init__(self, reader: LedgerReader, generations: SqlGenerations) -> None:
        self._reader = reader
        self._generations = generations

    def uplift(self, skill: Skill) -> Uplift:
        """The difference it makes on matching tasks, from all draws since it has this text."""
        since = self._generations.in_force(skill.name)
        return measure_uplift([] if since is None else self._tasks(skill, since.text_since))

    def trial(self, skill: Skill, certificate: Certificate | None) -> TrialReport:
        """What its live trial says: the tasks since it is on trial, and the replays as the prior."""
        since = self._generations.in_force(skill.name)
        return judge_trial([] if since is None else self._tasks(skill, since.generation), trial_prior(certificate))

    def harm(self, skill: Skill, certificate: Certificate | None) -> TaskCounts | None:
        """The tasks of a live skill that show that it does harm; None where they do not."""
        since = self._generations.in_force(skill.name)
        counts = TaskCounts.of([] if since is None else self._tasks(skill, since.generation))
        return counts if is_harmful(counts, trial_prior(certificate)) else None

    def _tasks(self, skill: Skill, since: int) -> list[LiveTask]:
        return tasks_of(self._reader.drawn_turns(skill.name, since=since))

    def model(self, skill: Skill) -> str | None:
        """The model that serves most of the tasks it matches now; None where no model clearly does, or there were too few."""
        return model_of_most(self._reader.drawn_turns(skill.name, _RECENT))


def tasks_of(drawn: Sequence[DrawnTurn]) -> list[LiveTask]:
    """Turns, newest first, as tasks, oldest first: a task's turns share one draw, so they count as one; it failed if any did."""
    tasks: dict[tuple[str, int], LiveTask] = {}
    for one in reversed(drawn):
        key, outcome = (one.session, one.segment), one.outcome or Outcome.UNKNOWN
        before = tasks.get(key)
        worse = outcome if before is None else max(before.outcome, outcome, key=_ORDER.index)
        tasks[key] = LiveTask(one.placed, one.propensity, worse)
    return list(tasks.values())


def model_of_most(drawn: Sequence[DrawnTurn]) -> str | None:
    """The model of at least two thirds of these turns."""
    if len(drawn) < _LEAST_TURNS:
        return None
    model, turns = Counter(one.model for one in drawn).most_common(1)[0]
    return model if turns >= _MOST_OF * len(drawn) else None
