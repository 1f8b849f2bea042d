"""Titles of sessions: the first words of a person, read in the background so that a search finds
every session.
"""

import json
from dataclasses import replace
from typing import Any

import pytest

from metaclaw.api import Titles
from metaclaw.api.web.content import PageContent
from metaclaw.domain.ids import SessionId, new_session_id
from metaclaw.domain.turn import Exchange
from metaclaw.store import Overview
from tests.api.recorded import record
from tests.api.stage import Stage

pytestmark = pytest.mark.anyio


def own_words(agent: str, text: str) -> str:
    return text.removeprefix("<glued/>")


async def say(stage: Stage, *words: str) -> SessionId:
    """A session whose first request holds these messages of a person."""
    first = await record(stage)
    messages = [
        {"role": "system", "content": "You help."},
        *({"role": "user", "content": one} for one in words),
    ]
    body = json.dumps({"model": "m-1", "messages": messages}).encode()
    session = new_session_id()
    turn = replace(
        first,
        id=type(first.id)(f"{first.id}x"),
        session=session,
        exchange=Exchange(request=body, said=b"{}"),
    )
    await stage.record(turn)
    return session


async def test_a_title_is_the_first_thing_a_person_said(stage: Stage) -> None:
    session = await say(stage, "<glued/>", "<glued/>Where do   owls sleep?", "And bats?")
    titles = Titles(Overview(stage.database), own_words)
    assert titles.of([session]) == {session: "Where do owls sleep?"}


async def test_all_titles_are_read_so_that_a_search_is_complete(stage: Stage) -> None:
    sessions = {await say(stage, f"Where does owl {number} sleep?") for number in range(25)}
    titles = Titles(Overview(stage.database), own_words)
    ids = Overview(stage.database).ids()
    assert titles.search("OWL sleep", 0, ids) == ([], 50)

    async def call(*asked: Any, **query: str) -> dict[str, Any]:
        raise AssertionError("titles come from the store")

    await PageContent(replace(stage.app.api_parts.home, titles=titles), call).read_titles()
    assert titles.unread() == []
    found, unread = titles.search("OWL sleep", 0, ids)
    assert (set(found), unread) == (sessions, 0)
    titles.forget(found[0])
    assert titles.unread() == [found[0]]
