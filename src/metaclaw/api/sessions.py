"""Routes for sessions and turns: lists, search by words, one session or turn, its end, projects."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from anyio.to_thread import run_sync

from metaclaw.api.home_routes import HomeRoutes
from metaclaw.api.router import ApiError, ApiRequest, route
from metaclaw.api.turns import last_words, messages_of, words_in
from metaclaw.api.views import (
    enforced_view,
    role_view,
    session_view,
    turn_row_view,
    turn_view,
    verdict_view,
)
from metaclaw.domain.chat import Text, ToolCall, ToolResult
from metaclaw.domain.ids import SessionId
from metaclaw.domain.turn import Turn, TurnKind
from metaclaw.store import SessionFilter, SessionRow, TurnRow
from metaclaw.wires import said_parts

_MOST_ROWS: Final = 100_000
_MOST_SEARCHED: Final = 1_000_000
_TURNS_SEARCHED: Final = 200
_LEAST_PREFIX: Final = 10
_PAUSE_S: Final = 0.002
"""After each session that is searched, so that requests are served in between."""


@dataclass(frozen=True, slots=True)
class SessionRoutes:
    """The routes for sessions and turns."""

    home: HomeRoutes

    @route(
        "GET",
        "/api/sessions",
        "Sessions, newest first",
        ("limit", "before", "kind", "words", "among", "detail"),
    )
    def _sessions(self, request: ApiRequest) -> object:
        limit, before = request.number("limit", 50, _MOST_ROWS), request.query.get("before")
        among = request.number("among", 1000, _MOST_SEARCHED)
        wanted = SessionFilter(with_side_only=request.query.get("kind") != "main")
        if words := request.query.get("words", "").casefold().split():
            newest = self.home.overview.sessions(SessionFilter(), among)
            rows = list(islice((row for row in newest if self._holds(row.id, words)), limit))
        else:
            earlier = None if before is None else SessionId(before)
            rows = self.home.overview.sessions(wanted, limit, earlier)
        ids = [row.id for row in rows]
        titles, attempts = self.home.titles.of(ids), self.home.reader.attempts_in(ids)
        rows = [replace(row, turns=row.turns - attempts.get(row.id, 0)) for row in rows]
        views = [session_view(row, titles.get(row.id)) for row in rows]
        if request.query.get("detail") != "verdicts":
            return {"sessions": views}
        outcomes, failed = self.home.overview.outcomes(ids), self.home.overview.failed(ids)
        for view, session in zip(views, ids, strict=True):
            view["prefix"] = shortest(session, self.home.reader.find_sessions)
            view["verdicts"] = {
                outcome.value: count for outcome, count in outcomes.get(session, {}).items()
            }
            view["failed"] = failed.get(session, 0)
        total = self.home.overview.count(wanted)
        hidden = self.home.overview.count(replace(wanted, with_side_only=True)) - total
        return {"sessions": views, "total": total, "hidden": hidden}

    def _holds(self, session: SessionId, wanted: Sequence[str]) -> bool:
        """Whether every word is in a person's requests or in the answers."""
        time.sleep(_PAUSE_S)
        missing = set(wanted)
        for row in self.home.reader.turns_of(session, _TURNS_SEARCHED):
            whole = self.home.reader.turn(row.id) if row.kind is TurnKind.MAIN else None
            if whole is not None:
                said = (
                    f"{last_words(whole.turn, self.home.words)}\n{answered(whole.turn)}".casefold()
                )
                missing -= {word for word in missing if word in said}
            if not missing:
                return True
        return False

    @route(
        "GET",
        "/api/sessions/{id}",
        "One session with its turns",
        ("limit", "after", "newest", "kind", "detail"),
    )
    def _session(self, request: ApiRequest) -> object:
        row = self._row(request.path["id"])
        title = self.home.titles.of([row.id]).get(row.id)
        show = {"words": self._in_words, "whole": self._whole}.get(
            request.query.get("detail", ""), lambda turn: turn_row_view(turn)
        )
        if "newest" in request.query:
            everything = self.home.reader.turns_of(row.id, row.turns + 1)
            main = [turn for turn in everything if turn.kind is TurnKind.MAIN]
            turns = main if request.query.get("kind") == "main" else everything
            turns = turns[-request.number("newest", 50, _MOST_ROWS) :]
            counts = {"main_turns": len(main), "side_turns": len(everything) - len(main)}
        else:
            limit, after = request.number("limit", 200, _MOST_ROWS), request.number("after", 0)
            turns, counts = self.home.reader.turns_of(row.id, limit, after), {}
        shown = [{**show(turn), "cursor": turn.seq} for turn in turns]
        return {**session_view(row, title), **counts, "turns": shown}

    def _row(self, named: str) -> SessionRow:
        session = self.home.session_id(named)
        row = self.home.reader.session(session)
        if row is None:
            raise ApiError(f"there is no session {session}", 404)
        return row

    def _whole(self, row: TurnRow) -> dict[str, Any]:
        found = self.home.reader.turn(row.id)
        return turn_row_view(row) if found is None else turn_view(found.turn)

    def _in_words(self, row: TurnRow) -> dict[str, Any]:
        """A turn as people read it: their words, the answer, what was held and broken, the
        verdict.
        """
        found, standing = self.home.reader.turn(row.id), self.home.reader.standing_of(row.id)
        view = {**turn_row_view(row), "prefix": shortest(row.id, self.home.reader.find_turns)}
        if found is None:
            return view
        turn, enforcement = found.turn, found.turn.enforcement
        return {
            **view,
            "asked": last_words(turn, self.home.words),
            "continued": self._is_continued(turn),
            "answered": answered(turn),
            "enforced": [enforced_view(one) for one in enforcement.rules] if enforcement else [],
            "attempts": len(enforcement.attempts) if enforcement else 0,
            "broken": [
                {"rule": rule, "reason": reason}
                for rule, reason in self.home.reader.broken_rules(row.id)
            ],
            "verdict": verdict_view(None if standing is None else standing.verdict),
        }

    def _is_continued(self, turn: Turn) -> bool:
        """Whether the request ends with tool results and no words of the person."""
        last = (messages_of(turn.wire, turn.exchange.request) or (None,))[-1]
        if last is None or not any(isinstance(part, ToolResult) for part in last.parts):
            return False
        return not words_in(self.home.words, turn.agent, last)

    @route("POST", "/api/sessions/{id}/end", "End a session")
    async def _end(self, request: ApiRequest) -> object:
        session = await run_sync(self.home.session_id, request.path["id"])
        if not await self.home.end_session(session):
            raise ApiError(f"there is no running session {session}", 404)
        return {"session": session, "ended": True}

    @route("GET", "/api/turns", "The newest main turn")
    def _turns(self, request: ApiRequest) -> object:
        newest = self.home.reader.newest_main_turn()
        return {"turns": [] if newest is None else [turn_row_view(newest)]}

    @route("GET", "/api/turns/{id}", "One turn: request, answer, stamp, times, usage")
    def _turn(self, request: ApiRequest) -> object:
        turn = self.home.turn_id(request.path["id"])
        found, standing = self.home.reader.turn(turn), self.home.reader.standing_of(turn)
        if found is None or standing is None:
            raise ApiError(f"there is no turn {turn}", 404)
        return {
            **turn_view(found.turn),
            "role": role_view(found.turn, standing),
            "verdict": verdict_view(standing.verdict),
        }

    @route("GET", "/api/projects", "Projects of sessions and of rules")
    def _projects(self, request: ApiRequest) -> object:
        return {"projects": self.home.projects()}


def shortest(whole: str, find: Callable[[str], Sequence[str]]) -> str:
    """The shortest unique beginning of an id. Ids begin with the time, so that recent ones share
    theirs; an id that a client has named stays whole.
    """
    if not whole.startswith(("s_", "t_")):
        return whole
    low, high = _LEAST_PREFIX, len(whole)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(find(whole[:middle])) == 1 else (middle + 1, high)
    return whole[:low]


def answered(turn: Turn) -> str:
    """The model's answer: its text, and one line for each tool call."""
    lines: list[str] = []
    for part in said_parts(turn.wire, turn.stream, turn.exchange.shown, partial=True):
        if isinstance(part, Text) and part.text.strip():
            lines.append(part.text.strip())
        elif isinstance(part, ToolCall):
            lines.append(f"→ {part.name}({_first_argument(part.arguments)})")
    return "\n".join(lines)


def _first_argument(arguments: str) -> str:
    try:
        given = json.loads(arguments)
    except ValueError:
        given = arguments
    texts = (
        [one for one in given.values() if isinstance(one, str)]
        if isinstance(given, dict)
        else [str(given)]
    )
    return " ".join(texts[0].split()) if texts else ""
