"""What a skill in force is worth, from the tasks on which its placing was left to chance since it is what it is."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from metaclaw.domain.skill import Skill
from metaclaw.domain.verdict import Outcome
from metaclaw.skills.gate import CanaryReport, CanaryRules, LiveTrial, judge_canary
from metaclaw.skills.hygiene import Uplift, measure_uplift
from metaclaw.store import DrawnTurn, LedgerReader, SqlGenerations

_LEAST_TURNS: Final = 20
_RECENT: Final = 60
_MOST_OF: Final = 2 / 3
_ORDER: Final = (Outcome.UNKNOWN, Outcome.PASS, Outcome.FAIL)


class Worth:
    """Reads the ledger. Blocks."""

    def __init__(self, reader: LedgerReader, generations: SqlGenerations) -> None:
        self._reader = reader
        self._generations = generations

    def uplift(self, skill: Skill) -> Uplift:
        """The difference it makes on matching tasks, from all that was drawn since it says what it says."""
        since = self._generations.in_force(skill.name)
        drawn = [] if since is None else self._reader.drawn_turns(skill.name, since=since.text_since)
        return measure_uplift(trials_of(drawn))

    def canary(self, skill: Skill) -> CanaryReport:
        """What its trial on live tasks says: this trial alone. One that has been a canary before has less error left to spend."""
        since = self._generations.in_force(skill.name)
        if since is None:
            return judge_canary(())
        drawn = self._reader.drawn_turns(skill.name, since=since.generation)
        return judge_canary(trials_of(drawn), CanaryRules(attempt=max(1, since.canaries)))

    def model(self, skill: Skill) -> str | None:
        """The model that serves most of the tasks it matches now; None where no model clearly does, or there were too few."""
        return model_of_most(self._reader.drawn_turns(skill.name, _RECENT))


def trials_of(drawn: Sequence[DrawnTurn]) -> list[LiveTrial]:
    """Turns, newest first, as trials, oldest first: a task's turns share one coin, so they count as one; it failed if any did."""
    tasks: dict[tuple[str, int], LiveTrial] = {}
    for one in reversed(drawn):
        key, outcome = (one.session, one.segment), one.outcome or Outcome.UNKNOWN
        before = tasks.get(key)
        worse = outcome if before is None else max(before.outcome, outcome, key=_ORDER.index)
        tasks[key] = LiveTrial(one.placed, one.propensity, worse)
    return list(tasks.values())


def model_of_most(drawn: Sequence[DrawnTurn]) -> str | None:
    """The model of at least two thirds of these turns."""
    if len(drawn) < _LEAST_TURNS:
        return None
    model, turns = Counter(one.model for one in drawn).most_common(1)[0]
    return model if turns >= _MOST_OF * len(drawn) else None
