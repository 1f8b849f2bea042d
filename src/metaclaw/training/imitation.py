"""Imitation of good answers, in addition to learning from rewards. Pure: functions of the records
of a run.

If a policy gives the same answer to a prompt every time, all its rewards are equal, and comparing
them teaches nothing, even if the reward is low. There are four remedies, each a cross-entropy loss
-w Σ ln π(y_t):

- the best answer ever drawn to a prompt is stored, and imitated if the answers of this step are
  worse;
- some of the settled prompts are answered again at a higher temperature, and better answers are
  imitated;
- answers drawn with a hint in the prompt (`prompts`) are taught without the hint, if they are better;
- demonstrations, such as the worked examples of a skill, show the form of an answer and where it
  ends. Their weight falls as rewards rise, and is zero after `_MOST_STEPS` steps: the policy would
  give memorised examples as answers to other questions.

And a habit is formed so: good answers to a prompt with a person's rules are taught behind the same
prompt without them (`habits`).
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum
from metaclaw.training.advantages import MAX_ADVANTAGE, ScoredGroup, spread
from metaclaw.training.progress import key_rewards
from metaclaw.training.records import BestAnswer, StepRecord

LEAST_GAIN: Final = 0.05
_LEAST_SPREAD: Final = 0.1
_LOW: Final = 0.9
_ALIKE: Final = 0.02
_SOMETHING: Final = 0.02
RETRY_TEMPERATURE: Final = 1.5
"""The factor on the temperature for answers to settled prompts. With more, most answers end in
noise.
"""
_ENOUGH: Final = 0.3
_KEPT: Final = 0.9
_HABITS_OF_A_PROMPT: Final = 4
_MOST_STEPS: Final = 24
_TRIED: Final = 64
_LEAST_HELPED: Final = 0.03
_TURN: Final = TurnId("demonstration")


def is_flat(group: ScoredGroup) -> bool:
    """Whether all answers of a group have about the same reward, and it is not high."""
    rewards = [reward for _, reward in group.known]
    if not rewards:
        return False
    mean, deviation = spread(rewards)
    return mean < _LOW and deviation < _ALIKE


def is_settled(group: ScoredGroup) -> bool:
    """Whether the answers to a prompt all have about the same reward, which is neither high nor
    zero.
    """
    return is_flat(group) and group.known[0][1] > _SOMETHING


def best_answers(records: Sequence[StepRecord]) -> dict[str, BestAnswer]:
    """The best answer to each prompt so far."""
    return {answer.turn: answer for record in records for answer in record.found}


def better_answers(groups: Sequence[ScoredGroup], known: dict[str, BestAnswer]) -> list[BestAnswer]:
    """Answers of a step that are clearly better than their group and than every earlier answer to
    the same prompt.
    """
    found = []
    for group in groups:
        whole = [(rollout, reward) for rollout, reward in group.known if rollout.is_whole]
        if not whole:
            continue
        mean, _ = spread([reward for _, reward in group.known])
        rollout, reward = max(whole, key=lambda pair: (pair[1], -len(pair[0].tokens_T)))
        before = known.get(group.turn)
        if reward > mean + LEAST_GAIN and (before is None or reward > before.reward):
            found.append(BestAnswer(group.turn, list(rollout.tokens_T), reward))
    return found


def imitate_best(groups: Sequence[ScoredGroup], known: dict[str, BestAnswer]) -> tuple[Datum, ...]:
    """Data for cross entropy: the best answer to each prompt whose answers are worse now. Its
    weight is the advantage that it would have among them."""
    data = []
    for group in groups:
        best, rewards = known.get(group.turn), [reward for _, reward in group.known]
        if best is None or not rewards or max(rewards) >= best.reward:
            continue
        mean, deviation = spread(rewards)
        weight = min(MAX_ADVANTAGE, (best.reward - mean) / max(_LEAST_SPREAD, deviation))
        if best.reward > mean + LEAST_GAIN:
            data.append(
                Datum(
                    group.turn, group.prompt, tuple(best.tokens), (weight,) * len(best.tokens), None
                )
            )
    return tuple(data)


class Demonstration(msgspec.Struct, frozen=True, array_like=True):
    """A right answer, with its end token, and prompts from different conversations that ask for it;
    `key` is their key.
    """

    key: str
    prompts: list[list[int]]
    tokens: list[int]


def demonstration_share(records: Sequence[StepRecord], key: str) -> float:
    """The weight of a key's demonstrations in the next step, relative to its drawn answers, from 1
    down to 0.
    """
    earned = key_rewards(records).get(key, 0.0)
    return max(0.0, 1.0 - earned / _ENOUGH) * max(0.0, 1.0 - len(records) / _MOST_STEPS)


def demonstrate(
    known: Sequence[Demonstration], records: Sequence[StepRecord], weight: float
) -> list[Datum]:
    """Data for cross entropy. Keys share the weight equally, and so do the tokens of a key; with a
    weight of 0 each token has a weight of 1."""
    by_key: dict[str, list[Demonstration]] = {}
    for demonstration in known:
        by_key.setdefault(demonstration.key, []).append(demonstration)
    data: list[Datum] = []
    for key, same_key in by_key.items():
        share, tokens = (
            demonstration_share(records, key),
            sum(len(demonstration.tokens) for demonstration in same_key),
        )
        each = share * (weight / len(by_key) / tokens if weight else 1.0)
        if each <= 0.0:
            continue
        for demonstration in same_key:
            prompt = demonstration.prompts[len(records) % len(demonstration.prompts)]
            answer = tuple(demonstration.tokens)
            data.append(Datum(_TURN, tuple(prompt), answer, (each,) * len(answer), None))
    return data


def longest_demonstration(known: Sequence[Demonstration]) -> int:
    """Tokens of the longest demonstrated answer; 0 without demonstrations."""
    return max((len(demonstration.tokens) for demonstration in known), default=0)


def may_help(records: Sequence[StepRecord]) -> bool:
    """Whether hints are worth drawing: they have not been tried often yet, or they helped now and
    then.
    """
    tried = sum(record.hinted for record in records)
    return tried < _TRIED or sum(record.helped for record in records) >= _LEAST_HELPED * tried


def habits(
    groups: Sequence[ScoredGroup], unruled: Callable[[str], tuple[int, ...] | None]
) -> tuple[Datum, ...]:
    """Data for cross entropy: of each prompt a few good answers, behind the same prompt without its
    rules.
    """
    data: list[Datum] = []
    for group in groups:
        prompt = unruled(group.turn)
        good = [one for one, reward in group.known if one.is_whole and reward >= _KEPT]
        if prompt is not None:
            data += [
                Datum(group.turn, prompt, one.tokens_T, (1.0,) * len(one.tokens_T), None)
                for one in good[:_HABITS_OF_A_PROMPT]
            ]
    return tuple(data)


def distil(
    plainly: Sequence[ScoredGroup], with_hint: Sequence[ScoredGroup], weight: float = 1.0
) -> tuple[Datum, ...]:
    """Data for cross entropy: of each prompt the whole answers with the hint that earned more than
    those without it, behind the prompt without the hint."""
    data: list[Datum] = []
    for before, hinted in zip(plainly, with_hint, strict=True):
        rewards = [reward for _, reward in before.known]
        good = sum(rewards) / len(rewards) + LEAST_GAIN
        data += [
            Datum(
                before.turn,
                hinted.prompt,
                one.tokens_T,
                (weight,) * len(one.tokens_T),
                None,
            )
            for one, reward in hinted.known
            if one.is_whole and reward > good
        ]
    return tuple(data)
