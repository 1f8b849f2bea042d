"""The checkers as a judge, asked as the product asks: what they accept passes, what they refuse
fails, and words are repeated.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

import anyio
import pytest

from metaclaw import ports
from metaclaw.domain.chat import ChatRequest, Completion, Finish, Part, Text
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import Scope, Stamp, Step, TurnEnd
from metaclaw.outcome import Judge
from metaclaw_bench.agent.direct import with_files
from metaclaw_bench.simulated.model import Message, Prompt, Purpose, Said
from metaclaw_bench.simulated.rule_judge import RuleJudge
from metaclaw_bench.workdays import TINY, Item, Workdays, generate


@pytest.fixture(scope="module")
def made() -> Workdays:
    return generate(1, TINY)


@pytest.fixture(scope="module")
def marker(made: Workdays) -> RuleJudge:
    before = {item.round.question: day.begins_with for day in made.days for item in day.items}
    return RuleJudge(made.items, before)


class Asked:
    """A model whose answers are the marker's."""

    name = "checkers"

    def __init__(self, marker: RuleJudge) -> None:
        self._marker = marker

    async def ask(self, request: ChatRequest, purpose: ports.Purpose) -> Completion:
        said = [Message(str(one.role), _text(one.parts)) for one in request.messages]
        thought = self._marker.answer(Prompt(tuple(said), purpose=Purpose(purpose)))
        assert isinstance(thought, Said)
        return Completion("c", "checkers", (Text(thought.text),), Finish.STOP)


def _text(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))


def _step(item: Item) -> Step:
    stamp = Stamp(0, 0, "", ())
    task = item.round.question
    return Step(
        TurnId("t"), SessionId("s"), Scope(), stamp, "m", task, (), (), (), TurnEnd.COMPLETED
    )


def _task(step: Step) -> str:
    return step.task


def share_failed(marker: RuleJudge, item: Item, answer: str) -> float | None:
    return anyio.run(Judge(Asked(marker), 1, _task).judge_answer, _step(item), answer).share_failed


def test_right_answers_rank_before_near_misses(made: Workdays, marker: RuleJudge) -> None:
    item = next(item for item in made.items if item.near_misses)
    miss = item.near_misses[0]
    answers = [
        with_files(miss.text, miss.files),
        with_files(item.reference.text, item.reference.files),
    ]
    assert anyio.run(Judge(Asked(marker), 1, _task).rank, _step(item), answers) == [0.0, 1.0]


def test_an_answer_that_does_more_of_the_task_ranks_before_one_that_does_less(
    made: Workdays, marker: RuleJudge
) -> None:
    item = next(item for item in made.items if item.parts and item.near_misses)
    done = (item.near_misses[0], item.reference)
    answers = ["I will not.", *(with_files(one.text, one.files) for one in done)]
    ranked = anyio.run(Judge(Asked(marker), 1, _task).rank, _step(item), answers)
    assert ranked == [0.0, 0.5, 1.0]


def test_the_answer_to_an_example_in_a_rule_is_no_answer_to_another_task(
    made: Workdays, marker: RuleJudge
) -> None:
    asked, example = [item for item in made.items if item.parts][:2]
    shown = with_files(example.reference.text, example.reference.files)
    rules = f"Rules that hold for the answer:\nExample:\n{example.round.question} -> {shown}"
    step = replace(_step(asked), task=f"{asked.round.question}\n\n{rules}")
    votes = anyio.run(Judge(Asked(marker), 1, _task).judge_answer, step, shown)
    assert votes.share_failed == 1.0


def test_every_reference_passes_and_every_near_miss_fails(
    made: Workdays, marker: RuleJudge
) -> None:
    for item in made.items:
        assert (
            share_failed(marker, item, with_files(item.reference.text, item.reference.files)) == 0.0
        )
        for miss in item.near_misses:
            assert share_failed(marker, item, with_files(miss.text, miss.files)) == 1.0


def test_files_that_are_written_by_calls_are_seen(made: Workdays, marker: RuleJudge) -> None:
    item = next(item for item in made.items if item.reference.files)
    calls = [
        f"[calls write with {json.dumps({'path': path, 'content': text})}]"
        for path, text in item.reference.files.items()
    ]
    assert share_failed(marker, item, "\n".join([*calls, "Done."])) == 0.0


def test_what_it_writes_is_what_the_person_said_and_nothing_else(
    made: Workdays, marker: RuleJudge
) -> None:
    item = next(item for item in made.items if item.round.feedback.incorrect)
    shown = (
        f"{item.round.question}\n\n## What the person said next\n{item.round.feedback.incorrect}"
    )
    thought = marker.answer(Prompt((Message("user", shown),), purpose=Purpose.EVOLVE))
    assert isinstance(thought, Said)
    (skill,) = json.loads(thought.text)["skills"]
    assert " ".join(item.round.feedback.incorrect.split()) in skill["body"]
    silent = marker.answer(Prompt((Message("user", item.round.question),), purpose=Purpose.EVOLVE))
    assert isinstance(silent, Said)
    assert json.loads(silent.text) == {"skills": []}
