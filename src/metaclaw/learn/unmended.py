"""Failures that no skill can mend any more: they are not shown to an evolver, and stay free to train the weights.

What an evolver is shown is support for ever and never trains. Where weights can learn from a turn and the person did not speak
against it, it is shown only if a skill may come of it. None will where the check of a skill in its prompt failed: the lesson was
there. Nor where failures of its kind, with the same skills in their prompts, were shown before, and no skill for their speaker has
come or changed since. This is remembered as long as the process runs; after that, a few are shown again (decision 39).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.verdict import Source
from metaclaw.skills.evolve import MOST_SHOWN, Failure, Kind, group, is_spoken_against


@dataclass(frozen=True, slots=True)
class Shown:
    """A failure that an evolver is shown, or was, and the generation of skills at that time."""

    failure: Failure
    generation: int


class UnmendedFailures:
    """Remembers what was shown, by attempt. `may_train` says whether weights could learn from a turn; it blocks."""

    def __init__(self, may_train: Callable[[TurnId], bool]) -> None:
        self._may_train = may_train
        self._shown: dict[int, tuple[Shown, ...]] = {}

    @property
    def shown(self) -> tuple[Shown, ...]:
        """All of them."""
        return tuple(one for some in self._shown.values() for one in some)

    def add(self, attempt: int, failures: Sequence[Failure], generation: int) -> None:
        """An evolver is going to be shown these."""
        self._shown[attempt] = tuple(Shown(one, generation) for one in failures)

    def remove(self, attempt: int) -> None:
        """The evolver could not be asked."""
        self._shown.pop(attempt, None)

    def keep(self, shown: Sequence[Shown]) -> None:
        """Forget all but these."""
        kept = {one.failure.step.turn for one in shown}
        self._filter(lambda one: one.failure.step.turn in kept)

    def forget(self, session: SessionId) -> None:
        """Forget the failures of a session."""
        self._filter(lambda one: one.failure.step.session != session)

    def _filter(self, stays: Callable[[Shown], bool]) -> None:
        found = {attempt: tuple(filter(stays, some)) for attempt, some in self._shown.items()}
        self._shown = {attempt: some for attempt, some in found.items() if some}

    def kinds_to_show(self, failures: Sequence[Failure], shown: Sequence[Shown]) -> list[Kind]:
        """Open failures by kind, without those that are left to the weights; `shown` is what still counts of what was shown. Of
        failures that could train, a kind has no more than an evolver reads in full. Blocks."""
        left = {one.step.turn for one in failures if not is_spoken_against(one) and self._may_train(one.step.turn)}
        before = {one.failure.step.turn: one.failure for one in shown}
        open_ones = {one.step.turn: one for one in failures if not (one.step.turn in left and one.verdict.source is Source.CHECK)}
        kinds = (self._without_known(kind, before, left) for kind in group([*(before | open_ones).values()]))
        return [kind for kind in kinds if kind.failures]

    def _without_known(self, kind: Kind, before: dict[TurnId, Failure], left: set[TurnId]) -> Kind:
        known = {before[turn].step.stamp.skills for turn in kind.turns if turn in before}
        asked = [one for one in kind.failures if one.step.turn not in before]
        kept = [one for one in asked if one.step.turn not in left]
        new = [one for one in asked if one.step.turn in left and one.step.stamp.skills not in known]
        chosen = sorted([*kept, *new[:MOST_SHOWN]], key=lambda one: one.step.turn)
        return replace(kind, failures=tuple(chosen))
