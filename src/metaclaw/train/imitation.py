"""Imitation of good answers, beside what rewards teach. Pure: functions of the records of a run.

Where a policy gives the same answer to a prompt every time, all rewards are alike and there is nothing to compare, however
little the answer earns. Remedies, each a cross-entropy loss -w Σ ln π(y_t):

- the best answer ever drawn to a prompt is remembered, and imitated where the answers of this step are worse;
- some of the prompts that have settled are answered again, and what is better is imitated: at a higher temperature, or with a
  fork, which repeats the settled answer up to some token, takes another token there and lets the policy go on;
- answers drawn with a hint in the prompt (`with_hint`) are taught without the hint, if they are whole and good;
- demonstrations, such as the worked examples of a skill, show the form of an answer and where it ends. They weigh less the more is
  earned, and nothing once the run is well under way: examples learned by heart would be given as answers to other questions.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from metaclaw.domain.chat import ChatRequest, Message, Role, Text
from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum, Rollout
from metaclaw.train.advantages import MAX_ADVANTAGE, ScoredGroup, Skip, TrainingData, skips, spread
from metaclaw.train.progress import key_rewards
from metaclaw.train.records import BestAnswer, StepRecord

LEAST_GAIN: Final = 0.05
_LEAST_SPREAD: Final = 0.1
_LOW: Final = 0.9
_ALIKE: Final = 0.02
_SOMETHING: Final = 0.02
RETRY_TEMPERATURE: Final = 1.5
"""How many times as hot answers are drawn to prompts that have settled. Beyond it most answers break off into noise."""
_ENOUGH: Final = 0.3
_MOST_STEPS: Final = 24
_TURN: Final = TurnId("demonstration")
_HINT = "\n\n(Keep to this: {hint}\nAnswer so, at once and without mentioning this remark.)"


def is_flat(group: ScoredGroup) -> bool:
    """Whether a group teaches next to nothing by itself: all its answers earned about the same, and not enough."""
    rewards = [reward for _, reward in group.known]
    if not rewards:
        return False
    mean, deviation = spread(rewards)
    return mean < _LOW and deviation < _ALIKE


def is_settled(group: ScoredGroup) -> bool:
    """Whether the policy has settled on answers to a prompt that earn a part."""
    return is_flat(group) and group.known[0][1] > _SOMETHING


def best_answers(records: Sequence[StepRecord]) -> dict[str, BestAnswer]:
    """The best answer to each prompt so far."""
    return {one.turn: one for record in records for one in record.found}


def better_answers(groups: Sequence[ScoredGroup], known: dict[str, BestAnswer]) -> list[BestAnswer]:
    """Answers of a step that stand out in their group and are better than any before to the same prompt."""
    found = []
    for group in groups:
        whole = [(rollout, reward) for rollout, reward in group.known if rollout.is_whole]
        if not whole:
            continue
        mean, _ = spread([reward for _, reward in group.known])
        rollout, reward = max(whole, key=lambda one: (one[1], -len(one[0].tokens_T)))
        before = known.get(group.turn)
        if reward > mean + LEAST_GAIN and (before is None or reward > before.reward):
            found.append(BestAnswer(group.turn, list(rollout.tokens_T), reward))
    return found


def imitate_best(groups: Sequence[ScoredGroup], known: dict[str, BestAnswer]) -> tuple[Datum, ...]:
    """Data for cross entropy: the best answer to each prompt whose answers are worse now. It weighs as much as its advantage would
    among them."""
    data = []
    for group in groups:
        best, rewards = known.get(group.turn), [reward for _, reward in group.known]
        if best is None or not rewards or max(rewards) >= best.reward:
            continue
        mean, deviation = spread(rewards)
        weight = min(MAX_ADVANTAGE, (best.reward - mean) / max(_LEAST_SPREAD, deviation))
        if best.reward > mean + LEAST_GAIN:
            data.append(Datum(group.turn, group.prompt, tuple(best.tokens), (weight,) * len(best.tokens), None))
    return tuple(data)


@dataclass(frozen=True, slots=True)
class Fork:
    """A place in a settled answer: its tokens before that place, with their log-probabilities, and what they say."""

    settled: Rollout
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str

    def answers_with(self, drawn: Sequence[Rollout]) -> list[Rollout]:
        """The beginning with each of the drawn tokens behind it that is not the settled one; the settled answer where none is.
        `is_whole` says that the token ends the answer."""
        others = {one.tokens_T: one for one in drawn if one.tokens_T[0] != self.settled.tokens_T[len(self.tokens)]}
        begun = [
            Rollout((*self.tokens, *one.tokens_T), (*self.logprobs, *one.logprobs_T), self.text + one.text, one.is_whole)
            for one in others.values()
        ]
        return begun or [self.settled]


def fork_answer(group: ScoredGroup, word: Callable[[int], str], seed: int) -> Fork:
    """A place in the first answer of a settled group, chosen by chance. Where its tokens do not say its text one by one (`word`),
    as with letters of several tokens, the place is its beginning."""
    settled = group.rollouts_G[0]
    words = [word(token) for token in settled.tokens_T[: len(settled.tokens_T) - settled.is_whole]]
    at = random.Random(f"{seed}/{group.turn}").randrange(len(words) + 1) if "".join(words) == settled.text else 0
    at = min(at, len(settled.tokens_T) - 1)
    return Fork(settled, settled.tokens_T[:at], settled.logprobs_T[:at], "".join(words[:at]))


def join_rollouts(begun: Rollout, rest: Rollout) -> Rollout:
    """One answer of its beginning and its end."""
    return Rollout(begun.tokens_T + rest.tokens_T, begun.logprobs_T + rest.logprobs_T, begun.text + rest.text, rest.is_whole)


class Demonstration(msgspec.Struct, frozen=True, array_like=True):
    """A right answer, its end included, behind prompts that ask for it in different conversations. `key` is what the prompts are
    like."""

    key: str
    prompts: list[list[int]]
    tokens: list[int]


def demonstration_share(records: Sequence[StepRecord], key: str) -> float:
    """How much the demonstrations of a key weigh in the next step against what is drawn for it, from 1 down to 0."""
    earned = key_rewards(records).get(key, 0.0)
    return max(0.0, 1.0 - earned / _ENOUGH) * max(0.0, 1.0 - len(records) / _MOST_STEPS)


def demonstrate(known: Sequence[Demonstration], records: Sequence[StepRecord], weight: float) -> list[Datum]:
    """Data for cross entropy; a weight of 0 stands for as much as their own tokens. Keys share the weight, and so do the tokens of
    a key."""
    by_key: dict[str, list[Demonstration]] = {}
    for one in known:
        by_key.setdefault(one.key, []).append(one)
    data: list[Datum] = []
    for key, some in by_key.items():
        share, tokens = demonstration_share(records, key), sum(len(one.tokens) for one in some)
        each = share * (weight / len(by_key) / tokens if weight else 1.0)
        if each <= 0.0:
            continue
        for one in some:
            prompt = one.prompts[len(records) % len(one.prompts)]
            data.append(Datum(_TURN, tuple(prompt), tuple(one.tokens), (each,) * len(one.tokens), None))
    return data


def longest_demonstration(known: Sequence[Demonstration]) -> int:
    """Tokens of the longest demonstrated answer; 0 where there is none."""
    return max((len(one.tokens) for one in known), default=0)


def with_hint(request: ChatRequest, hint: str) -> ChatRequest:
    """The request with a hint at the end of the last thing the person said. Raises ValueError without one."""
    asked = [at for at, message in enumerate(request.messages) if message.role is Role.USER]
    if not asked or not hint.strip():
        raise ValueError("a hint needs a person's words to stand behind, and a text")
    at = asked[-1]
    said = request.messages[at]
    told = replace(said, parts=(*said.parts, Text(_HINT.format(hint=hint.strip()))))
    messages: tuple[Message, ...] = (*request.messages[:at], told, *request.messages[at + 1 :])
    return replace(request, messages=messages)


def imitate_hinted(groups: Sequence[ScoredGroup], *, good: float = 0.0, weight: float = 1.0) -> TrainingData:
    """Data for cross entropy from rollouts that were drawn *with* the hint; the prompt of each group is the one *without* it.

    A rollout whose reward is above `good` is taught; one that could not be scored is not.
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
    return TrainingData(tuple(data), skips(left_out))
