"""Failures are counted by session, person and project, and go with their session."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.skill import Lesson
from metaclaw.domain.turn import Scope, Turn
from metaclaw.store import Database, LedgerReader, SqlEpisodes, SqlForgetting, SqlLedger
from tests.store.conftest import MOMENT

pytestmark = pytest.mark.anyio
TurnMaker = Callable[..., Turn]
SHOP, LAB = Scope("ada", "shop"), Scope("ada", None)
PUSH = "shell · git push · rejected"
LESSON = Lesson(
    SkillName("pull-first"), "t", "b", scope="user:ada", workspace="shop", signatures=(PUSH,)
)


@pytest.fixture
async def sessions(ledger: SqlLedger, new_turn: TurnMaker) -> list[SessionId]:
    names = [f"s{number}" for number in range(8)]
    for name in names:
        assert await ledger.record(new_turn(name))
    return [SessionId(name) for name in names]


async def test_a_failure_is_due_once_it_came_in_enough_sessions_of_one_project(
    database: Database, sessions: list[SessionId]
) -> None:
    episodes = SqlEpisodes(database)
    for session, scope in zip(sessions, (SHOP, LAB, SHOP), strict=False):
        assert episodes.recurring(2) == []
        episodes.record(session, scope, MOMENT, {PUSH})
    [due] = episodes.recurring(2)
    assert (due.signature, due.scope) == (PUSH, SHOP)
    assert due.sessions == (sessions[2], sessions[0])
    episodes.mark_shown([PUSH], due.sessions)
    assert episodes.recurring(2) == []


async def test_a_session_that_ends_again_is_counted_once_and_stays_shown(
    database: Database, sessions: list[SessionId]
) -> None:
    episodes = SqlEpisodes(database)
    episodes.record(sessions[0], SHOP, MOMENT, {PUSH})
    episodes.mark_shown([PUSH], sessions[:1])
    episodes.record(sessions[0], SHOP, MOMENT, {PUSH})
    assert episodes.recurring(1) == []
    assert episodes.use(LESSON, {}).count.before == 1


async def test_a_lesson_is_refuted_by_five_sessions_unless_more_were_spared(
    database: Database, sessions: list[SessionId]
) -> None:
    episodes = SqlEpisodes(database)
    third = LedgerReader(database).session(sessions[2])
    assert third is not None
    began, later = third.began_at, MOMENT + timedelta(days=1)
    dates = {LESSON.name: (began, None)}
    for session in sessions[:2]:  # they began before the lesson, and one goes on
        episodes.record(session, SHOP, MOMENT if session == "s0" else later, {PUSH})
    for session in sessions[2:7]:
        assert not episodes.use(LESSON, dates).has_failed
        episodes.record(session, SHOP, later, {PUSH}, {LESSON.name})
    use = episodes.use(LESSON, dates)
    assert (use.count.before, use.count.since, use.count.avoided) == (2, 5, 0)
    assert use.has_failed
    assert episodes.use(LESSON, {}).count.before == 7  # while it waits for a person


async def test_a_forgotten_session_leaves_no_failure(
    database: Database, sessions: list[SessionId]
) -> None:
    episodes = SqlEpisodes(database)
    episodes.record(sessions[0], SHOP, MOMENT, {PUSH})
    SqlForgetting(database).forget_session(sessions[0])
    assert episodes.recurring(1) == []
    episodes.record(sessions[0], SHOP, MOMENT, {PUSH})
    assert episodes.recurring(1) == []
