"""Distillation: oneself in hindsight, or a teacher; what does not line up is an error, what teaches
nothing is counted.
"""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from metaclaw.domain.chat import ChatRequest, Json, Message, Role, Text, Wire
from metaclaw.domain.ids import TurnId
from metaclaw.errors import TrainingError
from metaclaw.train.advantages import ScoredGroup, Skip
from metaclaw.train.imitation import imitate_hinted, with_hint
from metaclaw.train.teacher import (
    Corrected,
    EndpointTeacher,
    Teacher,
    ratio_advantages,
    teacher_advantages,
)
from tests.support.cases import each
from tests.train.made import rollout
from tests.upstream.loopback import Conversation, Heard, endpoint, plain, serve

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
    assert words(told.messages[3]).startswith("which date?\n\n(Keep to this: use ISO dates\n")
    assert "use ISO dates\n" in words(told.messages[3])
    assert [told.messages[at] for at in (0, 1, 2, 4)] == [
        request.messages[at] for at in (0, 1, 2, 4)
    ]


@pytest.mark.parametrize(("role", "correction"), [(Role.SYSTEM, "better so"), (Role.USER, "  ")])
def test_there_is_no_hint_where_nobody_asked_or_nothing_was_corrected(
    role: Role, correction: str
) -> None:
    with pytest.raises(ValueError, match="a hint needs"):
        with_hint(asking((role, "x")), correction)


def test_only_whole_answers_that_were_found_good_are_imitated_and_without_the_hint() -> None:
    rollouts = (rollout(7, 8), rollout(7, 9), rollout(7, is_whole=False), rollout(4))
    harvest = imitate_hinted(
        [ScoredGroup(TURN, (1, 2), rollouts, (1.0, 0.2, 1.0, None))], good=0.5, weight=0.7
    )
    (taught_one,) = harvest.data
    assert (taught_one.prompt, taught_one.tokens_T) == ((1, 2), (7, 8))
    assert taught_one.advantages_T == (0.7, 0.7)
    assert taught_one.logprobs_T is None
    assert harvest.skipped == {Skip.NOT_GOOD: 1, Skip.CUT: 1, Skip.UNSCORED: 1}


def test_each_token_is_as_good_as_the_teacher_finds_it_likelier_within_bounds() -> None:
    drawn = rollout(7, 8, 9, logprob=-3.0)
    (one,) = ratio_advantages([Corrected(TURN, (1,), drawn, (-2.5, -3.0, -9.0))]).data
    assert one.advantages_T == (0.5, 0.0, -2.0)
    assert one.logprobs_T == drawn.logprobs_T


def test_a_rollout_that_is_just_as_likely_to_the_teacher_is_counted() -> None:
    harvest = ratio_advantages([Corrected(TURN, (1,), rollout(7, 8), (-0.5, -0.5))])
    assert harvest.data == ()
    assert harvest.skipped == {Skip.SILENT: 1}


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
        return tuple(-0.1 if token == self._of else -1.0 for token in tokens)[
            : len(tokens) - self._lost
        ]


@pytest.mark.anyio
async def test_a_teacher_says_of_each_token_how_much_better_it_would_have_been() -> None:
    teacher = Fond(of=7)
    harvest = await teacher_advantages(
        teacher, [(TURN, (1, 2), [rollout(7, 8), rollout(8)]), (TurnId("t2"), (3,), [rollout(7)])]
    )
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
        await teacher_advantages(Fond(of=7, lost=1), [(TURN, (1, 2), [rollout(7, 8)])])


WORDS = {1: "<|im_start|>", 5: " hello", 6: "\ufffd", 7: " world", 8: "\n"}
PROMPT, TOKENS = (1, 5), (6, 7)
Choice = dict[str, Json]


def word(token: int) -> str:
    return WORDS[token]


def prompted(sent: list[int]) -> Choice:
    """As vLLM answers: a table for each position but the first."""
    told: list[Json] = [
        {
            str(token): {"logprob": -0.1 * token, "rank": 1, "decoded_token": WORDS[token]},
            "999": {"logprob": -0.01},
        }
        for token in sent
    ]
    return {"index": 0, "text": "x", "prompt_logprobs": [None, *told[1:]]}


def echoed(sent: list[int]) -> Choice:
    """As others answer: the words of the prompt and of the one token it had to write."""
    tokens: list[Json] = [*(WORDS[token].replace(" ", "Ġ") for token in sent), "!"]
    logprobs: list[Json] = [None, *(-0.1 * token for token in sent[1:]), -2.0]
    return {"index": 0, "text": "x", "logprobs": {"tokens": tokens, "token_logprobs": logprobs}}


def numbered(sent: list[int]) -> Choice:
    """As vLLM echoes where it was told to give ids in place of words."""
    tokens: list[Json] = [f"token_id:{token}" for token in sent]
    return {
        "logprobs": {
            "tokens": tokens,
            "token_logprobs": [None, *(-0.1 * token for token in sent[1:])],
        }
    }


@asynccontextmanager
async def teaching(
    answer: Callable[[list[int]], Choice | bytes], status: str = "200 OK"
) -> AsyncIterator[tuple[EndpointTeacher, list[Heard]]]:
    heard: list[Heard] = []

    async def script(conversation: Conversation) -> None:
        while True:
            heard.append(await conversation.hear())
            choice = answer(json.loads(heard[-1].body)["prompt"])
            body = (
                choice
                if isinstance(choice, bytes)
                else json.dumps({"id": "c", "choices": [choice]}).encode()
            )
            await conversation.say(plain(body, status, "Content-Type: application/json"))

    async with serve(script) as loopback, endpoint(f"{loopback.url}/v1") as provider:
        yield EndpointTeacher(provider, "big", word), heard


@pytest.mark.anyio
@pytest.mark.parametrize("answer", [prompted, echoed, numbered])
async def test_a_teacher_gives_the_log_probability_of_each_drawn_token(
    answer: Callable[[list[int]], Choice],
) -> None:
    async with teaching(answer) as (teacher, heard):
        assert await teacher.score(PROMPT, TOKENS) == pytest.approx((-0.6, -0.7))
    asked = json.loads(heard[0].body)
    assert (asked["model"], asked["prompt"], asked["max_tokens"]) == ("big", [1, 5, 6, 7], 1)
    assert heard[0].line == "POST /v1/completions HTTP/1.1"
    assert heard[0].header("x-metaclaw-purpose") == "teach"


@pytest.mark.anyio
async def test_an_endpoint_is_a_teacher_whose_word_becomes_data() -> None:
    async with teaching(prompted) as (endpoint_teacher, _):
        teacher: Teacher = endpoint_teacher
        (one,) = (
            await teacher_advantages(
                teacher, [(TurnId("t1"), PROMPT, [rollout(*TOKENS, logprob=-1.0)])]
            )
        ).data
    assert one.advantages_T == pytest.approx((0.4, 0.3))


def changed(choice: Choice, part: str, at: int, value: Json) -> Choice:
    """The same choice with one entry of a list replaced."""
    where = choice["logprobs"] if part in ("tokens", "token_logprobs") else choice
    assert isinstance(where, dict)
    told = where[part]
    assert isinstance(told, list)
    told[at] = value
    return choice


@pytest.mark.anyio
@each(
    ("answer", "complaint"),
    [
        (
            lambda sent: changed(prompted(sent), "prompt_logprobs", 2, {"42": {"logprob": -1.0}}),
            "scored other tokens",
        ),
        (
            lambda sent: changed(
                prompted(sent),
                "prompt_logprobs",
                3,
                {"7": {"logprob": -1.0, "decoded_token": " wind"}},
            ),
            "vocabulary",
        ),
        (
            lambda sent: changed(prompted(sent), "prompt_logprobs", 3, None),
            "returned the log-probability None",
        ),
        (
            lambda sent: changed(prompted(sent), "prompt_logprobs", 3, {"7": {"logprob": 0.5}}),
            "returned the log-probability 0.5",
        ),
        (lambda sent: prompted(sent[:-1]), "scored 3 tokens, but 4 were sent"),
        (lambda sent: echoed(sent[:-2]), "scored 3 tokens, but 4 were sent"),
        (lambda sent: changed(echoed(sent), "tokens", 3, "wind"), "not one vocabulary"),
        (
            lambda sent: changed(numbered(sent), "tokens", 3, "token_id:70"),
            "scored token 70, but 7 was sent",
        ),
        (
            lambda sent: changed(echoed(sent), "token_logprobs", 3, None),
            "returned the log-probability None",
        ),
        (lambda sent: {"text": "x"}, "returns no log-probabilities of a prompt"),
        (lambda sent: b"<html>", "not a completion"),
        (lambda sent: b'{"choices": []}', "answered without choices"),
    ],
)
async def test_a_teacher_that_did_not_read_the_students_tokens_is_an_error_and_nothing_is_padded(
    answer: Callable[[list[int]], Choice | bytes], complaint: str
) -> None:
    async with teaching(answer) as (teacher, _):
        with pytest.raises(TrainingError, match=complaint):
            await teacher.score(PROMPT, TOKENS)


@pytest.mark.anyio
async def test_a_teacher_that_refuses_or_is_not_there_is_a_training_error() -> None:
    async with teaching(lambda sent: b'{"error": "no such model"}', "404 Not Found") as (
        teacher,
        _,
    ):
        with pytest.raises(TrainingError, match="primary/big refused to score: 404"):
            await teacher.score(PROMPT, TOKENS)
    async with endpoint("http://127.0.0.1:9/v1") as provider:
        with pytest.raises(TrainingError, match="primary/big cannot be asked"):
            await EndpointTeacher(provider, "big", word).score(PROMPT, TOKENS)


@pytest.mark.anyio
async def test_an_answer_without_end_is_not_read_to_it() -> None:
    async with teaching(lambda sent: b" " * 4_000) as (teacher, _):
        bounded = EndpointTeacher(teacher._provider, "big", word, max_answer_bytes=1_000)
        with pytest.raises(TrainingError, match="more than 1000 bytes"):
            await bounded.score(PROMPT, TOKENS)


@pytest.mark.anyio
async def test_nothing_is_asked_about_nothing() -> None:
    async with teaching(prompted) as (teacher, heard):
        for prompt, tokens in (((), TOKENS), (PROMPT, ())):
            with pytest.raises(TrainingError):
                await teacher.score(prompt, tokens)
    assert heard == []
