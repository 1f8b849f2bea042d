"""Pending work is counted at every stage, and is zero when everything has been learned."""

from dataclasses import dataclass

import anyio
import pytest

from metaclaw.learn.supervision import LISTEN_CURSOR, TURNS_CURSOR, PendingWork
from tests.learn.conftest import NewLearning
from tests.learn.learning import CORRECTION, DATES, TASK, ScriptedLearning, Speaker, Talk

pytestmark = pytest.mark.anyio
NONE = {"turns": 0, "sessions": 0, "listening": 0, "lessons": 0, "evolutions": 0, "candidates": 0}


@dataclass
class Told:
    """A learner that has looked at every turn, and is still reading some messages."""

    learning: ScriptedLearning
    reading: int = 0

    @property
    def reached(self) -> int:
        return self.learning.reader.turns_after(0)[-1].seq

    @property
    def lessons(self) -> int:
        return self.learning.fast.lessons

    @property
    def writing(self) -> int:
        return self.learning.fast.writing


def pending(learning: ScriptedLearning) -> dict[str, int]:
    return dict(
        PendingWork(learning.reader, learning.cursors, learning.candidates, learning).count()
    )


async def test_a_failure_is_pending_from_its_turn_until_its_skill_is_in_force(
    new_learning: NewLearning,
) -> None:
    seen: list[dict[str, int]] = []

    def write(prompt: str) -> object:
        seen.append(pending(learning))
        return {"skills": [DATES]}

    learning = await new_learning(evolver=Speaker("world/evolver", write))
    assert pending(learning) == NONE
    talk = Talk(learning)
    await talk.say(TASK.format(1))
    await talk.say(CORRECTION)
    assert pending(learning) == {**NONE, "turns": 2, "listening": 2}
    await learning.sense()
    assert pending(learning)["lessons"] > 0
    await learning.listen()
    assert pending(learning)["listening"] == 0
    await learning.learn()
    assert seen[0]["evolutions"] == 1
    await learning.fast.wakeup.wait(0)
    await learning.sense()
    assert learning.names == ["iso-release-dates"]
    assert pending(learning) == NONE


async def test_the_end_of_a_session_is_pending_until_its_last_turn_was_looked_at(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    talk = Talk(learning)
    await talk.say(TASK.format(1))
    await learning.live()
    await learning.sense()
    await learning.fast.wakeup.wait(0)
    await talk.end()
    assert pending(learning) == {**NONE, "sessions": 1}
    await learning.sense()
    assert pending(learning) == NONE


async def test_an_evolver_that_is_waited_for_is_pending_over_a_restart_too(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(
        evolver=Speaker("world/evolver", lambda prompt: {"skills": [DATES]})
    )
    talk = Talk(learning)
    turn = await talk.say(TASK.format(1))
    await talk.say(CORRECTION)
    learning.candidates.begin_attempt("dates", 0, [turn])
    learning.restart()
    for cursor in (TURNS_CURSOR, LISTEN_CURSOR):
        learning.cursors.move_cursor(cursor, learning.reader.turns_after(0)[-1].seq)
    again = PendingWork(learning.reader, learning.cursors, learning.candidates, learning)
    assert (again.is_anything(), again.is_anything()) == (
        True,
        False,
    )  # what was left is looked for once
    assert pending(learning)["evolutions"] == 1
    with anyio.fail_after(60):
        await learning.take_up_again()
    assert pending(learning)["evolutions"] == 0


async def test_what_waits_for_the_budget_is_not_pending(new_learning: NewLearning) -> None:
    learning = await new_learning(
        evolver=Speaker("world/evolver", lambda prompt: {"skills": [DATES]})
    )
    talk = Talk(learning)
    turn = await talk.say(TASK.format(1))
    learning.candidates.begin_attempt("dates", 0, [turn])
    learning.cursors.move_cursor(TURNS_CURSOR, learning.reader.turns_after(0)[-1].seq)

    def count(**waiting: int) -> dict[str, int]:
        learner = Told(learning, reading=2)
        return dict(
            PendingWork(
                learning.reader, learning.cursors, learning.candidates, learner, lambda: waiting
            ).count()
        )

    assert (count()["evolutions"], count()["listening"]) == (1, 2)
    assert (count(evolve=1)["evolutions"], count(evolve=1)["listening"]) == (0, 2)
    assert (count(listen=1)["evolutions"], count(listen=1)["listening"]) == (1, 0)
