"""Hindsight distillation: a person corrected an answer; the policy itself, told of that, shows what would have been right.

With the correction c put into the prompt x (the hint), the same weights answer better; that answer is taught without the hint.

    imitate:  L = - w · Σ_t ln π(y_t | x, y_<t)                            y drawn by π(· | x + c)
    nudge:    A_t = clip(ln π(y_t | x + c, y_<t) - ln π(y_t | x, y_<t))    y drawn by π(· | x)

Imitation is steady and works with one example; it copies answers, so only those that are whole and were found good are taught.
Nudging stays with what the policy draws anyway and says of each token whether the correction favours it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metaclaw.domain.batch import Datum, Rollout
from metaclaw.domain.chat import ChatRequest, Message, Role, Text
from metaclaw.domain.ids import TurnId
from metaclaw.train.distill.ratio import CLIP, Corrected, ratio_advantages
from metaclaw.train.scored import Harvest, Scored, Skip, skips

_HINT = (
    "\n\n(Said later by the person who asked, about an earlier answer to this: {correction}\n"
    "Answer as they wish, at once and without mentioning this remark.)"
)


@dataclass(frozen=True, slots=True)
class Hindsight:
    """Answers to a corrected turn's prompt, each scored twice by the same weights: without the hint as drawn, and with it."""

    turn: TurnId
    prompt: tuple[int, ...]
    rollouts_G: tuple[Rollout, ...]
    hinted_G: tuple[tuple[float, ...], ...]


def hinted(request: ChatRequest, correction: str) -> ChatRequest:
    """The request with the correction at the end of the last thing the person said. Raises ValueError where nobody asked."""
    asked = [at for at, message in enumerate(request.messages) if message.role is Role.USER]
    if not asked or not correction.strip():
        raise ValueError("a hint needs a person's words, and a correction of the answer to them")
    at = asked[-1]
    said = request.messages[at]
    told = replace(said, parts=(*said.parts, Text(_HINT.format(correction=correction.strip()))))
    messages: tuple[Message, ...] = (*request.messages[:at], told, *request.messages[at + 1 :])
    return replace(request, messages=messages)


def imitate(groups: Sequence[Scored], *, good: float = 0.0, weight: float = 1.0) -> Harvest:
    """Data for cross entropy from rollouts that were drawn *with* the hint; the prompt of each group is the one *without* it.

    A rollout whose reward is above `good` is taught; one that nobody could score is not.
    """
    data: list[Datum] = []
    left_out: list[Skip] = []
    for group in groups:
        for rollout, reward in zip(group.rollouts_G, group.rewards_G, strict=True):
            if not rollout.is_whole:
                left_out.append(Skip.CUT)
            elif reward is None or reward <= good:
                left_out.append(Skip.UNSCORED if reward is None else Skip.NOT_GOOD)
            else:
                data.append(Datum(group.turn, group.prompt, rollout.tokens_T, (weight,) * len(rollout.tokens_T), None))
    return Harvest(tuple(data), skips(left_out))


def nudge(turns: Sequence[Hindsight], most: float = CLIP) -> Harvest:
    """Data for a loss with importance ratios from rollouts that were drawn without the hint. Raises TrainingError on a mismatch."""
    return ratio_advantages(
        [
            Corrected(turn.turn, turn.prompt, rollout, better)
            for turn in turns
            for rollout, better in zip(turn.rollouts_G, turn.hinted_G, strict=True)
        ],
        most,
    )
