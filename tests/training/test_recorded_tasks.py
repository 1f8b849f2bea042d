"""Whole tasks: rollouts go on through recorded results, and recorded answers are credited."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from metaclaw.domain.chat import Message, Role, Text, Tool, ToolCall, ToolResult
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.training import Drawing, Rollout
from metaclaw.domain.turn import Scope, Stamp, Step, TurnEnd
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.training.held_calls import teaches
from metaclaw.training.recorded_tasks import follows, outcome_of_task, repeats_failure
from metaclaw.training.run import _PLAIN
from tests.support.cases import each
from tests.training.stage import Stage

pytestmark = pytest.mark.anyio
LOOK = ToolCall("", "look", '{"path": "a", "deep": true}')
CALL = '<tool_call>{"name": "look", "arguments": {"deep": true, "path": "a"}}</tool_call>'
OTHER = '<tool_call>{"name": "look", "arguments": {"path": "b"}}</tool_call>'
TOOLS = (Tool("look", "", {}),)
FAILED = "bash: uv: command not found\nexit code 127"


def step(
    *answer: ToolCall, history: tuple[Message, ...] = (), after: tuple[Message, ...] = ()
) -> Step:
    return Step(
        TurnId("t"),
        SessionId("s"),
        Scope(),
        Stamp(1, 0, "", ()),
        "m",
        "Look.",
        history,
        TOOLS,
        answer,
        TurnEnd.COMPLETED,
        after=after,
    )


def drawn(text: str, *, is_whole: bool = True) -> Rollout:
    return Rollout((1,), (-0.5,), text, is_whole)


@each(
    ("text", "is_same"),
    [(CALL, True), (f"Let me see. {CALL}", True), (OTHER, False), ("Nothing.", False)],
)
def test_an_answer_follows_the_recording_if_its_calls_are_the_same(
    text: str, is_same: bool
) -> None:
    assert follows(drawn(text), step(LOOK)) is is_same
    assert not follows(drawn(text, is_whole=False), step(LOOK))
    assert not follows(drawn("Nothing."), step())


def ran(identity: str, result: str) -> tuple[Message, Message]:
    call = ToolCall(identity, "Bash", '{"command": "uv sync"}')
    return (
        Message(Role.ASSISTANT, (call,)),
        Message(Role.TOOL, (ToolResult(identity, (Text(result),), True),)),
    )


def test_a_failure_that_comes_again_in_a_task_is_a_bad_step() -> None:
    asked = Message(Role.USER, (Text("Sync."),))
    (said, result), earlier = ran("2", FAILED), ran("1", FAILED)
    (call,) = said.parts
    assert isinstance(call, ToolCall)

    again = step(call, history=(asked, *earlier), after=(result,))
    assert repeats_failure(again)
    assert outcome_of_task([again], Verdict(TurnId("t"), Outcome.PASS, Source.CHECK, 0.0)) == 0.0
    # In an earlier task it is not a repetition.
    assert not repeats_failure(replace(again, history=(asked, *earlier, asked)))
    assert not repeats_failure(step(call, history=(asked,), after=(result,)))


@each(("outcome", "worth"), [(Outcome.PASS, 1.0), (Outcome.FAIL, 0.0), (Outcome.UNKNOWN, None)])
def test_the_last_verdict_of_a_task_is_the_score_of_its_answers(
    outcome: Outcome, worth: float | None
) -> None:
    fault = Fault.AGENT if outcome is Outcome.FAIL else None
    verdict = Verdict(TurnId("t"), outcome, Source.CHECK, 0.0, fault=fault)
    assert outcome_of_task([step(LOOK)], verdict) == worth
    assert outcome_of_task([step(LOOK)], None) is None


async def test_rollouts_are_worth_what_they_lead_to_in_the_recording(tmp_path: Path) -> None:
    stage = Stage(tmp_path, policy={"held_out_share": 1e-9})
    call, answer = stage.talk_task(LOOK, "a file", "x*", Outcome.PASS)
    stage.talk(8)
    number = stage.turns.open_batch(stage.slow.least, 16, 1)
    assert number is not None
    batch = stage.batches.batch(number)
    assert batch is not None
    turns = {turn.id: turn for turn in stage.turns.of_batch(batch)}
    following = turns[call].following
    assert following is not None
    assert following.id == answer
    assert [one.reward for one in turns[call].recorded] == [1.0]
    assert turns[answer].following is None

    asked: list[tuple[Sequence[int], int]] = []

    async def sample(
        prompts: Sequence[Sequence[int]], drawing: Drawing, weights: object = None
    ) -> list[list[Rollout]]:
        asked.extend((prompt, drawing.count) for prompt in prompts)
        texts = [CALL, OTHER, CALL, "x*"] if prompts[0] == turns[call].prompt else ["x*", "no"]
        return [[drawn(text) for text in texts[: drawing.count]] for _ in prompts]

    stage.backend.sample = sample  # type: ignore[attr-defined]
    run = await stage.slow.trainer._run(batch, list(turns.values()))
    run.recipe = replace(run.recipe, group_size=4)
    await stage.backend.open(run.plan)  # type: ignore[operator]
    (group,) = await run._draw(0, 0, [turns[call]], _PLAIN)

    assert asked == [(turns[call].prompt, 4), (turns[answer].prompt, 2)]
    # The first and the third answer went on, to an answer with a star and to one without; the last
    # left the recording and has a star; the recorded answer is credited with its task.
    assert group.rewards_G == (1.0, None, 0.0, 1.0, 1.0)
    assert group.recorded == 1
    assert teaches(group)


async def test_a_rollout_ends_where_the_next_turn_is_kept_for_the_gate(tmp_path: Path) -> None:
    stage = Stage(tmp_path, policy={"held_out_share": 0.999})
    stage.talk_task(LOOK, "a file", "x*", Outcome.PASS)

    kept = stage.turns.held_out(10)
    assert kept
    assert all(turn.following is None for turn in kept)
