"""Advantages per token from somebody who knows better: where they find a drawn token likelier, it was good; where not, bad.

    A_t = clip(ln p_better(y_t | …) - ln p_student(y_t | prompt, y_<t), ±most)

The student draws, so it is taught where it really goes (on-policy); summed over what it draws, this is the negative reverse KL to
the better one. The clip keeps one token that the better one would never write from drowning all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from metaclaw.domain.batch import Datum, Rollout
from metaclaw.domain.ids import TurnId
from metaclaw.errors import TrainingError
from metaclaw.train.scored import Harvest, Skip, clip, skips

CLIP = 2.0
_NOTHING = 1e-6


@dataclass(frozen=True, slots=True)
class Corrected:
    """A rollout of the student's, and the log-probability of each of its tokens to somebody who knows better.

    Raises TrainingError where the two do not line up: that is a mistake of whoever scored them, and is never padded over.
    """

    turn: TurnId
    prompt: tuple[int, ...]
    rollout: Rollout
    better_T: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.better_T) != len(self.rollout.tokens_T):
            counts = f"{len(self.better_T)} scores for {len(self.rollout.tokens_T)} tokens"
            raise TrainingError(f"turn {self.turn}: {counts}; the tokens are not the same")


def ratio_advantages(corrected: Sequence[Corrected], most: float = CLIP) -> Harvest:
    """Data for a loss with importance ratios. A rollout that is just as likely to both teaches nothing and is counted."""
    data: list[Datum] = []
    silent = 0
    for one in corrected:
        pairs = zip(one.better_T, one.rollout.logprobs_T, strict=True)
        advantages = tuple(clip(better - student, most) for better, student in pairs)
        if max(map(abs, advantages)) < _NOTHING:
            silent += 1
        else:
            data.append(Datum(one.turn, one.prompt, one.rollout.tokens_T, advantages, one.rollout.logprobs_T))
    return Harvest(tuple(data), skips([Skip.SILENT] * silent))
