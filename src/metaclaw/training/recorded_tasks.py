"""Whole tasks: rollouts that go on through recorded tool results, and recorded answers that are
credited with the outcome of their task.

**Rollouts.** An answer that calls tools is worth what it leads to. While the calls of a drawn answer
are those of the recording (the same tools with the same arguments, in any order and spacing), the
recorded results follow it, and the policy answers the prompt of the next recorded turn. The reward
at the end counts as much as the answer's own; an answer with other calls has left the recording,
and only its own measure scores it. The report of the gate says how often that happens.

**Recorded answers.** When a task is over, its last verdict is the score of all its answers, but one
that repeats a failure of the same signature earns nothing. A recorded answer joins those that are
drawn to its prompt (`held_calls`)."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, TypeAlias

from metaclaw.domain.chat import Message, Role, ToolCall, ToolResult
from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Rollout
from metaclaw.domain.turn import Step, Turn
from metaclaw.domain.verdict import Outcome, Verdict
from metaclaw.learn import RecordedSteps
from metaclaw.outcome import failure_signature
from metaclaw.training.answers import calls_of, parts_of
from metaclaw.training.held_calls import recorded_answer
from metaclaw.training.training_turns import MakeTurn, TrainingTurn

MOST_TURNS: Final = 6
"""The most recorded turns that a rollout goes on through."""
Draw: TypeAlias = Callable[[TrainingTurn, int], Awaitable[Sequence[Rollout]]]
"""Draws so many answers to the prompt of a turn."""
Score: TypeAlias = Callable[[TrainingTurn, Sequence[Rollout]], Awaitable[list[float | None]]]


@dataclass(eq=False, kw_only=True)
class RecordedTasks:
    """Reads what is recorded of the tasks of turns. `verdict` is the verdict that stands on a turn;
    `may_lead` says whether a rollout may go on through a turn. Blocks.
    """

    recorded: RecordedSteps
    verdict: Callable[[TurnId], Verdict | None]
    may_lead: Callable[[TurnId], bool]

    def steps(self, turn: TurnId) -> list[Step]:
        """The step of a turn, and those that went on with the results of its calls."""
        found: list[Step] = []
        following: TurnId | None = turn
        while following is not None and len(found) <= MOST_TURNS:
            one = self.recorded.with_following(following)
            if one is None:
                break
            found.append(one.step)
            goes_on = one.step.calls and one.step.said_after is None
            following = one.followed_by if goes_on else None
        return found

    def complete(self, turn: TrainingTurn, recorded: Turn, make: MakeTurn) -> TrainingTurn:
        """The turn with the next one of its task, and with the answer of then if the outcome of the
        task is known.
        """
        if not turn.step.calls:
            return turn
        steps = self.steps(turn.id)
        leading = list(takewhile(self.may_lead, (step.turn for step in steps[1:])))
        following: TrainingTurn | None = None
        for found in map(make, reversed(leading)):
            following = None if found is None else replace(found, following=following)
        answers = turn.recorded
        worth = outcome_of_task(steps, self.verdict(steps[-1].turn)) if steps else None
        if not answers and worth is not None:
            answer = recorded_answer(recorded, worth)
            answers = () if answer is None else (answer,)
        return replace(turn, recorded=answers, following=following)


async def rewards_of_tasks(
    turn: TrainingTurn,
    answers: Sequence[Rollout],
    own: Sequence[float | None],
    draw: Draw,
    score: Score,
) -> list[float | None]:
    """What answers to a turn are worth, with what they lead to; `own` is what they are worth by
    themselves. Recorded answers, which stand last, lead nowhere new.
    """
    drawn = answers[: len(answers) - len(turn.recorded)]
    same = [at for at, answer in enumerate(drawn) if follows(answer, turn.step)]
    if turn.following is None or not same:
        return list(own)
    next_turn = replace(turn.following, recorded=())
    said = await draw(next_turn, len(same))
    later = await rewards_of_tasks(next_turn, said, await score(next_turn, said), draw, score)
    rewards = list(own)
    for at, reward in zip(same, later, strict=True):
        known = [one for one in (own[at], reward) if one is not None]
        rewards[at] = sum(known) / len(known) if known else None
    return rewards


def follows(answer: Rollout, step: Step) -> bool:
    """Whether an answer makes the calls that were recorded."""
    said = calls_of(parts_of(answer.text, step.tools))
    return answer.is_whole and bool(said) and said == calls_of(step.answer)


def outcome_of_task(steps: Sequence[Step], verdict: Verdict | None) -> float | None:
    """What the first of these steps, which lead to the end of the task, earned by the verdict on
    the last; None if that is not known.
    """
    if repeats_failure(steps[0]):
        return 0.0
    if verdict is None or verdict.outcome is Outcome.UNKNOWN:
        return None
    return float(verdict.outcome is Outcome.PASS)


def repeats_failure(step: Step) -> bool:
    """Whether a call of the step failed as an earlier one of the same task did."""
    earlier = _failures(_since_task(step.history))
    asked = Message(Role.ASSISTANT, step.answer)
    return bool(earlier & _failures((asked, *step.after)))


def _since_task(history: Sequence[Message]) -> Sequence[Message]:
    """The messages behind the person's last one."""
    asked = [
        at
        for at, message in enumerate(history)
        # Results of tools are messages of the user on one wire.
        if message.role is Role.USER
        and not any(isinstance(part, ToolResult) for part in message.parts)
    ]
    return history[asked[-1] :] if asked else history


def _failures(messages: Sequence[Message]) -> set[str]:
    parts = [part for message in messages for part in message.parts]
    calls = {part.id: part for part in parts if isinstance(part, ToolCall)}
    found = {
        failure_signature(calls[part.call_id], part)
        for part in parts
        if isinstance(part, ToolResult) and part.call_id in calls
    }
    return found - {""}
