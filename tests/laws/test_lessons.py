"""The law of the lesson loop: wherever the program is killed, a failure of a session that goes on is
read after the restart, and makes its lesson once."""

from itertools import count
from pathlib import Path

import pytest

from metaclaw.domain.candidate import Standing
from metaclaw.domain.chat import Text
from metaclaw.store import open_database
from tests.laws.test_learning_loops import Fragile, Kill, survived
from tests.learn.learning import Talk, running
from tests.learn.recordings import call
from tests.learn.test_lessons import BARE, SHOP, UV, writes

pytestmark = pytest.mark.anyio


async def work(talk: Talk) -> None:
    """A session that fails, finds the remedy, and does not end."""
    talk.agent.hear("Fix the rounding.")
    talk.segment = 0
    for command, result in (BARE, UV):
        await talk.answer(call("Bash", command=command))
        talk.agent.give(result)
    await talk.answer(Text("Done."))


@pytest.mark.slow  # the program starts once for each write
async def test_a_failure_of_an_open_session_is_read_after_a_kill_at_any_write(
    tmp_path: Path,
) -> None:
    empty = tmp_path / "empty.db"
    open_database(f"sqlite:///{empty}").close()
    for write in count(1):
        async with running(empty, tmp_path / str(write), evolver=writes()) as learning:
            learning.lesson_loop.prepare()
            fragile = Fragile(learning.database)
            was_killed = False
            for talk in (Talk(learning, SHOP), Talk(learning, SHOP)):
                await work(talk)
                fragile.kill = None if was_killed else Kill(write, is_done=True)
                if await survived(learning.sense) or await survived(learning.lesson_loop.look):
                    was_killed = True
                    learning.restart()
                    await learning.take_up_again()
                    await learning.lesson_loop.end_interrupted()
                fragile.kill = None
                learning.clock.pass_by(minutes=1)
            for _ in range(2):
                await learning.sense()
                await learning.lesson_loop.look()
                learning.clock.pass_by(minutes=1)
            assert learning.names == ["uv-tests"], write
            assert learning.of_standing(Standing.ACCEPTED) == ["uv-tests"]
            if not was_killed:
                break
    assert write > 6
