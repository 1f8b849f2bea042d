"""Routes for learning (feedback, skills, generations, candidates, forgetting), and the stream of events."""

import asyncio
import logging
import random
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from metaclaw.api.router import ApiError, ApiRequest, ApiStream, Field, Route
from metaclaw.api.rules import RuleRoutes
from metaclaw.api.views import (
    candidate_view,
    generation_view,
    retired_skill_view,
    skill_facts_view,
    skill_view,
    state_of,
    verdict_view,
    whole_candidate_view,
)
from metaclaw.domain.candidate import CandidateId, Standing
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Skill, SkillState
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import SkillError, StoreError
from metaclaw.ports import CandidateStore
from metaclaw.skills import LibraryView, Rulebook
from metaclaw.store import GenerationRow, LedgerEvent, LedgerReader, SqlCompliance
from metaclaw.wires import encode_json

if TYPE_CHECKING:
    from metaclaw.learn import OwnerActions


_MOST_ROWS = 1000
_MOST_COMMENT_CHARS = 10_000
_MOST_GENERATION = 2**31 - 1
_FEEDBACK = (
    Field("turn", {"type": "string", "description": "Answers carry it as X-Metaclaw-Turn"}),
    Field("outcome", {"enum": [Outcome.PASS.value, Outcome.FAIL.value]}),
    Field("comment", {"type": "string", "maxLength": _MOST_COMMENT_CHARS}, is_required=False),
)
_REVERT = (Field("generation", {"type": "integer", "minimum": 0, "maximum": _MOST_GENERATION}),)


@dataclass(frozen=True, slots=True)
class LearningRoutes:
    """The routes for learning."""

    feed: "EventFeed"
    candidates: CandidateStore
    history: Callable[[int], list[GenerationRow]]
    skills: Callable[[], LibraryView]
    owner: Callable[[], Awaitable["OwnerActions"]]
    rulebook: Rulebook
    compliance: SqlCompliance
    noted: Callable[[Skill, TurnId], None]
    """Called with a rule that was stated in a turn. Blocks."""
    begin_forgetting: Callable[[SessionId], None]
    """Records durably that a session is to be forgotten. Called before `owner`, which takes long to build. Blocks."""

    def table(self) -> list[Route]:
        return [
            Route("POST", "/api/feedback", self._feedback, "A person's verdict on a turn; it overrides the judge", (), _FEEDBACK),
            Route("GET", "/api/skills", self._skills, "Skills, rules and facts in force, or in a state", ("state",)),
            Route("GET", "/api/skills/{name}", self._skill, "One skill in force, with its certificate"),
            Route("POST", "/api/skills/{name}/retire", self._retire, "Take a skill out of force"),
            Route("GET", "/api/generations", self._generations, "Skill generations, newest first", ("limit",)),
            Route("POST", "/api/generations/revert", self._revert, "Go back to a generation's skills", (), _REVERT),
            Route("GET", "/api/candidates", self._candidates, "Candidates (proposed skills), newest first", ("standing", "limit")),
            Route("GET", "/api/candidates/{id}", self._candidate, "One candidate with its text and evidence"),
            Route("POST", "/api/candidates/{id}/approve", self._approve, "Approve a waiting candidate"),
            Route("POST", "/api/candidates/{id}/reject", self._reject, "Reject a waiting candidate"),
            Route("POST", "/api/sessions/{id}/forget", self._forget, "Forget a session and what was learned from it"),
            Route("GET", "/api/events", self._events, "What happens, as server-sent events", ("after",)),
            *RuleRoutes(self.rulebook, self.compliance, self.owner, self.noted).table(),
        ]

    async def _feedback(self, request: ApiRequest) -> object:
        said = request.json(_FEEDBACK)
        turn, outcome, comment = said.get("turn"), said.get("outcome"), said.get("comment", "")
        if not isinstance(turn, str) or not turn:
            raise ApiError("turn must be the id of a turn; answers carry it as X-Metaclaw-Turn")
        if outcome not in (Outcome.PASS, Outcome.FAIL):
            raise ApiError("outcome must be pass or fail")
        if not isinstance(comment, str) or len(comment) > _MOST_COMMENT_CHARS:
            raise ApiError(f"comment must be a text of at most {_MOST_COMMENT_CHARS} characters")
        verdict = await (await self.owner()).feedback(TurnId(turn), Outcome(outcome), comment)
        if verdict is None:
            raise ApiError(f"there is no turn {turn}", 404)
        return {"turn": turn, "verdict": verdict_view(verdict)}

    async def _skills(self, request: ApiRequest) -> object:
        state, view = request.query.get("state"), self.skills()
        if state not in (None, SkillState.CANARY, SkillState.LIVE, SkillState.RETIRED):
            raise ApiError(f"state must be canary, live or retired, not {state!r}")
        if state == SkillState.RETIRED:
            gone = await anyio.to_thread.run_sync(self.rulebook.retired)
            return {"generation": view.generation, "skills": [retired_skill_view(retired) for retired in gone]}
        found = [skill for skill in view.skills if state is None or state_of(skill) == state]
        return {"generation": view.generation, "skills": [skill_view(skill) for skill in found]}

    async def _skill(self, request: ApiRequest) -> object:
        name = SkillName(request.path["name"])
        skill = self.skills().get(name)
        if skill is None:
            raise ApiError(f"there is no skill {name} in force", 404)
        return {**skill_view(skill), "body": skill.body, **skill_facts_view(await (await self.owner()).skill_facts(name))}

    async def _retire(self, request: ApiRequest) -> object:
        name = SkillName(request.path["name"])
        if self.skills().get(name) is None:
            raise ApiError(f"there is no skill {name} in force", 404)
        try:
            return {"skill": name, "retired": True, "generation": await (await self.owner()).retire(name)}
        except SkillError as error:
            raise ApiError(str(error), 409) from error

    async def _generations(self, request: ApiRequest) -> object:
        limit = request.number("limit", 50, _MOST_ROWS)
        rows = await anyio.to_thread.run_sync(self.history, limit)
        return {"generation": self.skills().generation, "generations": [generation_view(row) for row in rows]}

    async def _revert(self, request: ApiRequest) -> object:
        number = request.json(_REVERT).get("generation")
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MOST_GENERATION:
            raise ApiError("generation must be the number of a generation; /api/generations lists them")
        try:
            return {"reverted_to": number, "generation": await (await self.owner()).revert(number)}
        except SkillError as error:
            # Generations are never deleted, so that an existing one fails only because of a file.
            raise ApiError(str(error), 404 if number > self.skills().generation else 409) from error

    async def _candidates(self, request: ApiRequest) -> object:
        wanted, limit = request.query.get("standing"), request.number("limit", 50, _MOST_ROWS)
        if wanted is not None and wanted not in list(Standing):
            raise ApiError(f"standing must be one of {', '.join(Standing)}, not {wanted!r}")
        standing = None if wanted is None else Standing(wanted)
        rows = await anyio.to_thread.run_sync(lambda: self.candidates.candidates(standing, limit))
        return {"candidates": [candidate_view(row) for row in rows]}

    async def _candidate(self, request: ApiRequest) -> object:
        found = await anyio.to_thread.run_sync(self.candidates.candidate, CandidateId(request.path["id"]))
        if found is None:
            raise ApiError(f"there is no candidate {request.path['id']}", 404)
        return whole_candidate_view(found)

    async def _approve(self, request: ApiRequest) -> object:
        return await self._decide(request, approved=True)

    async def _reject(self, request: ApiRequest) -> object:
        return await self._decide(request, approved=False)

    async def _decide(self, request: ApiRequest, *, approved: bool) -> object:
        try:
            decided = await (await self.owner()).decide(CandidateId(request.path["id"]), approved=approved)
        except SkillError as error:
            raise ApiError(str(error), 409) from error
        if decided is None:
            raise ApiError(f"there is no candidate {request.path['id']}", 404)
        return candidate_view(decided)

    async def _forget(self, request: ApiRequest) -> object:
        session = SessionId(request.path["id"])
        await anyio.to_thread.run_sync(self.begin_forgetting, session)
        try:
            forgotten = await (await self.owner()).forget(session)
        except SkillError as error:
            raise ApiError(f"its turns are forgotten, but not all it taught is retired: {error}; then ask again", 409) from error
        if forgotten is None:
            raise ApiError(f"there is no session {session}", 404)
        return {"session": session, "forgotten": True, **forgotten}

    async def _events(self, request: ApiRequest) -> object:
        resumed = request.headers.get("last-event-id", "")
        if resumed.isascii() and resumed.isdigit() and len(resumed) < 17:
            after = int(resumed)
        else:
            after = await self.feed.newest() if request.query.get("after") == "now" else request.number("after", 0)
        if self.feed.is_full:
            raise ApiError(
                f"{self.feed.max_subscribers} clients follow the events already; close one of them, or raise proxy.max_subscribers",
                429,
            )
        return ApiStream("text/event-stream; charset=utf-8", self.feed.follow(after))


log = logging.getLogger(__name__)

_POLL_S: Final = 0.25
_BEAT_S: Final = 15.0
_MAX_SUBSCRIBERS: Final = 1024
_PAGE: Final = 100
_KEPT: Final = 1000
_WOKEN_AT_ONCE: Final = 64
_UNKNOWN: Final = sys.maxsize
_HELLO: Final = b": events of MetaClaw\n: from %d\n\n"
_BEAT: Final = b": still here\n\n"
_T = TypeVar("_T")
_Sent: TypeAlias = tuple[int, bytes]
"""An event's cursor, and its bytes."""


class EventFeed:
    """Polls the store for new events while there are subscribers, and wakes them. The newest events are kept in memory. A
    subscriber is only a cursor: if it is further behind, because it resumes or reads slowly, it reads from the store until it has
    caught up."""

    def __init__(
        self, reader: LedgerReader, *, max_subscribers: int = _MAX_SUBSCRIBERS, poll_s: float = _POLL_S, beat_s: float = _BEAT_S
    ) -> None:
        """The store is polled every `poll_s`; a subscriber gets at least a comment every `beat_s`."""
        self.max_subscribers = max_subscribers
        self._reader = reader
        self._poll_s = poll_s
        self._beat_s = beat_s
        self._subscribers = 0
        self._polling: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._recent: deque[_Sent] = deque()
        self._since = _UNKNOWN
        """Every event behind this cursor is in `_recent`."""
        self._threads = anyio.CapacityLimiter(2)

    @property
    def is_full(self) -> bool:
        """Whether no further subscriber is accepted."""
        return self._subscribers >= self.max_subscribers

    async def newest(self) -> int:
        """The cursor of the newest event. Raises StoreError."""
        return await anyio.to_thread.run_sync(self._reader.last_event, limiter=self._threads)

    async def follow(self, after: int) -> AsyncGenerator[bytes, None]:
        """Yield events behind the cursor `after`, then new ones as they come, and a comment after a long silence. The first comment
        names the cursor, from which a client that has seen no event can resume."""
        self._subscribers += 1
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll())
        try:
            yield _HELLO % after
            while True:
                since = self._since
                found = self._newer(after) if after >= since else await self._read(after)
                if found:
                    after = found[-1][0]
                    yield b"".join([data for _, data in found])
                elif found is not None and after < since < _UNKNOWN:
                    after = since  # no event in between
                elif self._since == since and not await self._woken():
                    yield _BEAT
        finally:
            self._subscribers -= 1
            if not self._subscribers:
                self._stop_polling()

    def _newer(self, after: int) -> list[_Sent]:
        found: list[_Sent] = []
        for sent in reversed(self._recent):
            if sent[0] <= after:
                break
            found.append(sent)
        found.reverse()
        return found

    async def _woken(self) -> bool:
        """Wait for new events; False if none come for about `beat_s`, a random time, so that not all subscribers wake at once."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            async with asyncio.timeout(self._beat_s * random.uniform(0.75, 1)):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(waiter)
        return True

    async def _poll(self) -> None:
        while (last := await self._try(self._reader.last_event)) is None:
            await asyncio.sleep(self._poll_s)
        self._since = last
        await self._wake()
        while True:
            found = await self._read(last)
            if not found:
                await asyncio.sleep(self._poll_s)
                continue
            last = found[-1][0]
            self._recent.extend(found)
            while len(self._recent) > _KEPT:
                self._since = self._recent.popleft()[0]
            await self._wake()

    async def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for number, waiter in enumerate(waiting, 1):
            if not waiter.done():
                waiter.set_result(None)
            if number % _WOKEN_AT_ONCE == 0:
                await asyncio.sleep(0)  # lets requests run in between

    def _stop_polling(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            self._polling = None
        self._recent.clear()
        self._since = _UNKNOWN

    async def _read(self, after: int) -> list[_Sent] | None:
        events = await self._try(partial(self._reader.events, after, _PAGE))
        return None if events is None else [(event.seq, _as_sent(event)) for event in events]

    async def _try(self, read: Callable[[], _T]) -> _T | None:
        """Read in a thread; None if the store cannot be read now."""
        try:
            return await anyio.to_thread.run_sync(read, limiter=self._threads)
        except StoreError as error:
            log.debug("events_unread reason=%s", error)
            return None


def _as_sent(event: LedgerEvent) -> bytes:
    data = encode_json({"at": event.at.isoformat(), **event.data})
    return f"id: {event.seq}\nevent: {event.kind}\ndata: ".encode() + data + b"\n\n"
