"""The two measures of the gate on top of the rewards: the reward itself, and whether an answer is right in every respect."""

from collections.abc import Sequence

from metaclaw.domain.batch import Rollout
from metaclaw.domain.step import Step
from metaclaw.learn.slow.rewarding import Rewarding
from metaclaw.train.degeneration import repeats_itself


class RewardMeasures:
    """The reward as it trains; and full marks, for an answer that is not empty and does not repeat itself."""

    def __init__(self, rewarding: Rewarding) -> None:
        self._rewarding = rewarding

    async def score(self, step: Step, answers: Sequence[Rollout]) -> list[float | None]:
        """By the measure that trains."""
        return await self._rewarding.score(step, [one.text for one in answers])

    async def score_strictly(self, step: Step, answers: Sequence[Rollout]) -> list[float | None]:
        """1 for an answer with full marks, else 0."""
        found = zip(answers, await self.score(step, answers), strict=True)
        return [None if worth is None else float(worth == 1.0 and _is_sound(one)) for one, worth in found]


def _is_sound(answer: Rollout) -> bool:
    return bool(answer.text.strip()) and not repeats_itself(answer.text)
