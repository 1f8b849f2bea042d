"""Hints: answers to prompts with a hint are taught without it."""

import pytest

from metaclaw.domain.chat import ChatRequest, Message, Role, Text, Wire
from metaclaw.domain.ids import TurnId
from metaclaw.training.advantages import ScoredGroup
from metaclaw.training.imitation import distil
from metaclaw.training.prompts import with_hint
from tests.training.made import rollout

TURN = TurnId("t1")


def asking(*said: tuple[Role, str]) -> ChatRequest:
    return ChatRequest(Wire.CHAT, "m", tuple(Message(role, (Text(text),)) for role, text in said))


def words(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, Text))


def test_a_hint_goes_to_the_end_of_the_last_thing_the_person_said_and_nowhere_else() -> None:
    request = asking(
        (Role.SYSTEM, "s"),
        (Role.USER, "first"),
        (Role.ASSISTANT, "a"),
        (Role.USER, "which date?"),
        (Role.TOOL, "r"),
    )
    told = with_hint(request, " use ISO dates \n")
    assert told is not None
    assert words(told.messages[3]).startswith("which date?\n\n(Keep to this: use ISO dates\n")
    assert "use ISO dates\n" in words(told.messages[3])
    assert [told.messages[at] for at in (0, 1, 2, 4)] == [
        request.messages[at] for at in (0, 1, 2, 4)
    ]


@pytest.mark.parametrize(("role", "correction"), [(Role.SYSTEM, "better so"), (Role.USER, "  ")])
def test_there_is_no_hint_where_nobody_asked_or_nothing_was_corrected(
    role: Role, correction: str
) -> None:
    assert with_hint(asking((role, "x")), correction) is None


def test_only_whole_answers_that_are_better_than_without_the_hint_are_taught_without_it() -> None:
    plainly = ScoredGroup(TURN, (1, 2), (rollout(5),), (0.3,))
    rollouts = (rollout(7, 8), rollout(7, 9), rollout(7, is_whole=False), rollout(4))
    hinted = ScoredGroup(TURN, (1, 2), rollouts, (1.0, 0.2, 1.0, None))
    (taught_one,) = distil([plainly], [hinted], weight=0.7)
    assert (taught_one.prompt, taught_one.tokens_T) == ((1, 2), (7, 8))
    assert taught_one.advantages_T == (0.7, 0.7)
    assert taught_one.logprobs_T is None
