"""On-policy distillation (OPD): the student answers, a stronger teacher says how likely it finds each of the student's tokens.

    A_t = clip(ln p_teacher(y_t | x, y_<t) - ln p_student(y_t | x, y_<t))      y drawn by the student

Dense (a word about every token), on-policy, and cheap: the teacher reads and writes nothing. Both must share one vocabulary; a
teacher that scored other tokens than the student drew is a TrainingError, never padded over.
"""

from collections.abc import Sequence
from typing import Protocol

from metaclaw.domain.batch import Rollout
from metaclaw.domain.ids import TurnId
from metaclaw.train.distill.ratio import CLIP, Corrected, ratio_advantages
from metaclaw.train.scored import Harvest


class Teacher(Protocol):
    """Somebody who can say how likely they find what another drew."""

    @property
    def name(self) -> str: ...
    async def score(self, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[float, ...]:
        """The log-probability of each token after the prompt and the tokens before it. Raises TrainingError."""


async def taught(
    teacher: Teacher, drawn: Sequence[tuple[TurnId, tuple[int, ...], Sequence[Rollout]]], most: float = CLIP
) -> Harvest:
    """Data from rollouts of some turns' prompts. Raises TrainingError if the teacher cannot score them."""
    corrected: list[Corrected] = []
    for turn, prompt, rollouts in drawn:
        for rollout in rollouts:
            corrected.append(Corrected(turn, prompt, rollout, await teacher.score(prompt, rollout.tokens_T)))
    return ratio_advantages(corrected, most)
