"""Failures that no skill can fix: they are not shown to the evolver, and stay free to train the weights.

A turn that the evolver was shown is support and never trains. Where weights can learn from a turn and the person did not speak
against it, it is shown only if a skill may come of it. None will where the check of a skill in its prompt failed: the rule was
there already. Nor where a similar failure was shown before, and no skill for its speaker was added or changed since. Failures
are similar if they have the same cause and the same rules and skills in the prompt; where no skill is among these, the tasks
must be of one kind as well. This is remembered as long as the process runs; after a restart a few are shown again (decision
39).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.verdict import Source
from metaclaw.skills import MOST_SHOWN, Failure, FailureGroup, group_failures, is_spoken_against


@dataclass(frozen=True, slots=True)
class Shown:
    """A failure that an evolver is shown, or was, and the generation of skills at that time."""

    failure: Failure
    generation: int


class UnmendedFailures:
    """Remembers what was shown, by attempt. `may_train` says whether weights could learn from a turn, and blocks; `is_skill` says
    whether a name is a skill's, not that of a rule or fact, which may stand in every prompt."""

    def __init__(self, may_train: Callable[[TurnId], bool], is_skill: Callable[[SkillName], bool]) -> None:
        self._may_train = may_train
        self._is_skill = is_skill
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

    def kinds_to_show(self, failures: Sequence[Failure], shown: Sequence[Shown]) -> list[FailureGroup]:
        """Open failures by kind, without those that are left to the weights; `shown` is what still counts of what was shown. Of
        failures that could train, a kind has no more than an evolver reads in full. Blocks."""
        left = {one.step.turn for one in failures if not is_spoken_against(one) and self._may_train(one.step.turn)}
        before = {one.failure.step.turn: one.failure for one in shown}
        open_ones = {one.step.turn: one for one in failures if not (one.step.turn in left and one.verdict.source is Source.CHECK)}
        kinds = group_failures([*(before | open_ones).values()])
        known = {_prompt(kind, one) for kind in kinds for one in kind.failures if one.step.turn in before and self._has_skill(one)}
        found = (_to_show(kind, before, left, known) for kind in kinds)
        return [kind for kind in found if kind.failures]

    def _has_skill(self, failure: Failure) -> bool:
        return any(self._is_skill(name) for name in failure.step.stamp.skills)


_Prompt = tuple[str, str, frozenset[SkillName]]


def _prompt(kind: FailureGroup, failure: Failure) -> _Prompt:
    return kind.scope, kind.cause, frozenset(failure.step.stamp.skills)


def _to_show(
    kind: FailureGroup, before: Mapping[TurnId, Failure], left: Collection[TurnId], known: Collection[_Prompt]
) -> FailureGroup:
    """The kind without what was shown before and without what is left to the weights."""
    here = {_prompt(kind, one) for one in kind.failures if one.step.turn in before}
    asked = [one for one in kind.failures if one.step.turn not in before]
    kept = [one for one in asked if one.step.turn not in left]
    new = [one for one in asked if one.step.turn in left and _prompt(kind, one) not in here and _prompt(kind, one) not in known]
    return replace(kind, failures=tuple(sorted([*kept, *new[:MOST_SHOWN]], key=lambda one: one.step.turn)))
