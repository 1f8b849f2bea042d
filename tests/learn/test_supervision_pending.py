"""Pending work is counted at every stage, and is zero when everything has been learned."""

from dataclasses import dataclass

import anyio
import pytest

from metaclaw.learn.supervision import LISTEN_CURSOR, TURNS_CURSOR, PendingWork
from tests.learn.conftest import NewHouse
from tests.learn.house import CORRECTION, DATES, TASK, House, Speaker, Talk

pytestmark = pytest.mark.anyio
NONE = {"turns": 0, "sessions": 0, "listening": 0, "lessons": 0, "evolutions": 0, "candidates": 0}


@dataclass
class Told:
    """A learner that has looked at every turn, and is still reading some messages."""

    house: House
    reading: int = 0

    @property
    def reached(self) -> int:
        return self.house.reader.turns_after(0)[-1].seq

    @property
    def lessons(self) -> int:
        return self.house.fast.lessons

    @property
    def writing(self) -> int:
        return self.house.fast.writing


def pending(house: House) -> dict[str, int]:
    return dict(PendingWork(house.reader, house.cursors, house.candidates, house).count())


async def test_a_failure_is_pending_from_its_turn_until_its_skill_is_in_force(new_house: NewHouse) -> None:
    seen: list[dict[str, int]] = []

    def write(prompt: str) -> object:
        seen.append(pending(house))
        return {"skills": [DATES]}

    house = await new_house(evolver=Speaker("world/evolver", write))
    assert pending(house) == NONE
    talk = Talk(house)
    await talk.say(TASK.format(1))
    await talk.say(CORRECTION)
    assert pending(house) == {**NONE, "turns": 2, "listening": 2}
    await house.sense()
    assert pending(house)["lessons"] > 0
    await house.listen()
    assert pending(house)["listening"] == 0
    await house.learn()
    assert seen[0]["evolutions"] == 1
    await house.fast.wakeup.wait(0)
    await house.sense()
    assert house.names == ["iso-release-dates"]
    assert pending(house) == NONE


async def test_the_end_of_a_session_is_pending_until_its_last_turn_was_looked_at(new_house: NewHouse) -> None:
    house = await new_house()
    talk = Talk(house)
    await talk.say(TASK.format(1))
    await house.live()
    await house.sense()
    await house.fast.wakeup.wait(0)
    await talk.end()
    assert pending(house) == {**NONE, "sessions": 1}
    await house.sense()
    assert pending(house) == NONE


async def test_an_evolver_that_is_waited_for_is_pending_over_a_restart_too(new_house: NewHouse) -> None:
    house = await new_house(evolver=Speaker("world/evolver", lambda prompt: {"skills": [DATES]}))
    talk = Talk(house)
    turn = await talk.say(TASK.format(1))
    await talk.say(CORRECTION)
    house.candidates.begin_attempt("dates", 0, [turn])
    house.restart()
    for cursor in (TURNS_CURSOR, LISTEN_CURSOR):
        house.cursors.move_cursor(cursor, house.reader.turns_after(0)[-1].seq)
    again = PendingWork(house.reader, house.cursors, house.candidates, house)
    assert (again.is_anything(), again.is_anything()) == (True, False)  # what was left is looked for once
    assert pending(house)["evolutions"] == 1
    with anyio.fail_after(60):
        await house.take_up_again()
    assert pending(house)["evolutions"] == 0


async def test_what_waits_for_the_budget_is_not_pending(new_house: NewHouse) -> None:
    house = await new_house(evolver=Speaker("world/evolver", lambda prompt: {"skills": [DATES]}))
    talk = Talk(house)
    turn = await talk.say(TASK.format(1))
    house.candidates.begin_attempt("dates", 0, [turn])
    house.cursors.move_cursor(TURNS_CURSOR, house.reader.turns_after(0)[-1].seq)

    def count(**waiting: int) -> dict[str, int]:
        learner = Told(house, reading=2)
        return dict(PendingWork(house.reader, house.cursors, house.candidates, learner, lambda: waiting).count())

    assert (count()["evolutions"], count()["listening"]) == (1, 2)
    assert (count(evolve=1)["evolutions"], count(evolve=1)["listening"]) == (0, 2)
    assert (count(listen=1)["evolutions"], count(listen=1)["listening"]) == (1, 0)
