"""Distillation: oneself in hindsight, or a teacher; what does not line up is an error, what teaches nothing is counted."""

from collections.abc import Sequence

import pytest

from metaclaw.domain.chat import ChatRequest, Message, Role, Text, Wire
from metaclaw.domain.ids import TurnId
from metaclaw.errors import TrainingError
from metaclaw.train.distill import hinted, imitate, taught
from metaclaw.train.distill.ratio import Corrected, ratio_advantages
from metaclaw.train.scored import Scored, Skip
from tests.train.made import rollout

TURN = TurnId("t1")


def asking(*said: tuple[Role, str]) -> ChatRequest:
    return ChatRequest(Wire.CHAT, "m", tuple(Message(role, (Text(text),)) for role, text in said))


def words(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, Text))


def test_a_hint_goes_to_the_end_of_the_last_thing_the_person_said_and_nowhere_else() -> None:
    request = asking((Role.SYSTEM, "s"), (Role.USER, "first"), (Role.ASSISTANT, "a"), (Role.USER, "which date?"), (Role.TOOL, "r"))
    told = hinted(request, " use ISO dates \n")
    assert words(told.messages[3]).startswith("which date?\n\n(Keep to this: use ISO dates\n")
    assert "use ISO dates\n" in words(told.messages[3])
    assert [told.messages[at] for at in (0, 1, 2, 4)] == [request.messages[at] for at in (0, 1, 2, 4)]


@pytest.mark.parametrize(("role", "correction"), [(Role.SYSTEM, "better so"), (Role.USER, "  ")])
def test_there_is_no_hint_where_nobody_asked_or_nothing_was_corrected(role: Role, correction: str) -> None:
    with pytest.raises(ValueError, match="a hint needs"):
        hinted(asking((role, "x")), correction)


def test_only_whole_answers_that_were_found_good_are_imitated_and_without_the_hint() -> None:
    rollouts = (rollout(7, 8), rollout(7, 9), rollout(7, is_whole=False), rollout(4))
    harvest = imitate([Scored(TURN, (1, 2), rollouts, (1.0, 0.2, 1.0, None))], good=0.5, weight=0.7)
    (taught_one,) = harvest.data
    assert (taught_one.prompt, taught_one.tokens_T) == ((1, 2), (7, 8))
    assert taught_one.advantages_T == (0.7, 0.7)
    assert taught_one.logprobs_T is None
    assert harvest.skipped.rollouts == {Skip.NOT_GOOD: 1, Skip.CUT: 1, Skip.UNSCORED: 1}


def test_each_token_is_as_good_as_the_teacher_finds_it_likelier_within_bounds() -> None:
    drawn = rollout(7, 8, 9, logprob=-3.0)
    (one,) = ratio_advantages([Corrected(TURN, (1,), drawn, (-2.5, -3.0, -9.0))]).data
    assert one.advantages_T == (0.5, 0.0, -2.0)
    assert one.logprobs_T == drawn.logprobs_T


def test_a_rollout_that_is_just_as_likely_to_the_teacher_is_counted() -> None:
    harvest = ratio_advantages([Corrected(TURN, (1,), rollout(7, 8), (-0.5, -0.5))])
    assert harvest.data == ()
    assert harvest.skipped.rollouts == {Skip.SILENT: 1}


def test_scores_of_other_tokens_are_an_error_with_the_turns_name() -> None:
    with pytest.raises(TrainingError, match="turn t1: 1 scores for 2 tokens"):
        ratio_advantages([Corrected(TURN, (1,), rollout(7, 8), (-0.5,))])


class Fond:
    """A teacher that likes one token and dislikes the others, or is broken."""

    name = "fond"

    def __init__(self, of: int, lost: int = 0) -> None:
        self._of = of
        self._lost = lost
        self.asked: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    async def score(self, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[float, ...]:
        self.asked.append((tuple(prompt), tuple(tokens)))
        return tuple(-0.1 if token == self._of else -1.0 for token in tokens)[: len(tokens) - self._lost]


@pytest.mark.anyio
async def test_a_teacher_says_of_each_token_how_much_better_it_would_have_been() -> None:
    teacher = Fond(of=7)
    harvest = await taught(teacher, [(TURN, (1, 2), [rollout(7, 8), rollout(8)]), (TurnId("t2"), (3,), [rollout(7)])])
    assert [one.advantages_T for one in harvest.data] == [
        pytest.approx((0.4, -0.5)),
        pytest.approx((-0.5,)),
        pytest.approx((0.4,)),
    ]
    assert [one.turn for one in harvest.data] == ["t1", "t1", "t2"]
    assert teacher.asked == [((1, 2), (7, 8)), ((1, 2), (8,)), ((3,), (7,))]


@pytest.mark.anyio
async def test_a_teacher_that_scored_fewer_tokens_is_an_error() -> None:
    with pytest.raises(TrainingError, match="not the same"):
        await taught(Fond(of=7, lost=1), [(TURN, (1, 2), [rollout(7, 8)])])
