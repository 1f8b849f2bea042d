"""Hindsight distillation: the policy itself, told what is wanted, shows what would have been right.

With a hint c put into the prompt x the same weights answer better; that answer is taught without the hint.

    L = - w · Σ_t ln π(y_t | x, y_<t)      y drawn by π(· | x + c)

It is steady and works with one example; it copies answers, so only those that are whole and were found good are taught.
"""

from collections.abc import Sequence
from dataclasses import replace

from metaclaw.domain.batch import Datum
from metaclaw.domain.chat import ChatRequest, Message, Role, Text
from metaclaw.train.scored import Harvest, Scored, Skip, skips

_HINT = "\n\n(Keep to this: {hint}\nAnswer so, at once and without mentioning this remark.)"


def hinted(request: ChatRequest, hint: str) -> ChatRequest:
    """The request with a hint at the end of the last thing the person said. Raises ValueError where nobody asked."""
    asked = [at for at, message in enumerate(request.messages) if message.role is Role.USER]
    if not asked or not hint.strip():
        raise ValueError("a hint needs a person's words to stand behind, and a text")
    at = asked[-1]
    said = request.messages[at]
    told = replace(said, parts=(*said.parts, Text(_HINT.format(hint=hint.strip()))))
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
