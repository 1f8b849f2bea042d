"""Routes for learning: feedback, generations, candidates, forgetting, and the stream of events."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio.to_thread import run_sync

from metaclaw.api.events import EventFeed
from metaclaw.api.router import ApiError, ApiRequest, ApiStream, Field, route
from metaclaw.api.status_words import short
from metaclaw.api.turns import Words, last_words, resolve
from metaclaw.api.views import (
    candidate_question,
    candidate_view,
    generation_view,
    verdict_view,
    whole_candidate_view,
)
from metaclaw.domain.candidate import Candidate, CandidateId, Standing
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import SkillError
from metaclaw.skills import LibraryView
from metaclaw.store import GenerationRow, LedgerReader, SqlCandidates

if TYPE_CHECKING:
    from metaclaw.learn import OwnerActions


_MOST_ROWS = 100_000
_MOST_SAID = 160
_MOST_KNOWN = 10_000
_MOST_COMMENT_CHARS = 10_000
_MOST_GENERATION = 2**31 - 1
_FEEDBACK = (
    Field(
        "turn",
        {"type": "string", "minLength": 1, "description": "Answers carry it as X-Metaclaw-Turn"},
    ),
    Field("outcome", {"enum": [Outcome.PASS.value, Outcome.FAIL.value]}),
    Field("comment", {"type": "string", "maxLength": _MOST_COMMENT_CHARS}, is_required=False),
)
_REVERT = (Field("generation", {"type": "integer", "minimum": 0, "maximum": _MOST_GENERATION}),)


@dataclass(frozen=True, slots=True)
class LearningRoutes:
    """The routes for learning. `words` returns a person's own words in a text of an agent."""

    reader: LedgerReader
    words: Words
    feed: EventFeed
    candidates: SqlCandidates
    history: Callable[[int], list[GenerationRow]]
    skills: Callable[[], LibraryView]
    owner: Callable[[], Awaitable["OwnerActions"]]
    begin_forgetting: Callable[[SessionId], None]
    """Records durably that a session is to be forgotten. Called before `owner`, which takes long to
    build. Blocks.
    """

    @route(
        "POST",
        "/api/feedback",
        "A person's verdict on a turn; it overrides the judge",
        fields=_FEEDBACK,
    )
    async def _feedback(self, request: ApiRequest) -> object:
        named, outcome = request.said["turn"], Outcome(request.said["outcome"])
        turn = await run_sync(resolve, self.reader.find_turns, named, "turn")
        comment = request.said.get("comment", "")
        verdict = await (await self.owner()).feedback(TurnId(turn), outcome, comment)
        if verdict is None:
            raise ApiError(f"there is no turn {turn}", 404)
        return {"turn": turn, "verdict": verdict_view(verdict)}

    @route("GET", "/api/generations", "Skill generations, newest first", ("limit",))
    def _generations(self, request: ApiRequest) -> object:
        rows = self.history(request.number("limit", 50, _MOST_ROWS))
        return {
            "generation": self.skills().generation,
            "generations": [generation_view(row) for row in rows],
        }

    @route("POST", "/api/generations/revert", "Go back to a generation's skills", fields=_REVERT)
    async def _revert(self, request: ApiRequest) -> object:
        number = request.said["generation"]
        try:
            return {"reverted_to": number, "generation": await (await self.owner()).revert(number)}
        except SkillError as error:
            # Generations are never deleted, so that an existing one fails only because of a file.
            raise ApiError(str(error), 404 if number > self.skills().generation else 409) from error

    @route(
        "GET",
        "/api/candidates",
        "Candidates (proposed skills), newest first",
        ("standing", "limit"),
    )
    def _candidates(self, request: ApiRequest) -> object:
        wanted = request.choice("standing", Standing)
        limit = request.number("limit", 50, _MOST_ROWS)
        standing = None if wanted is None else Standing(wanted)
        rows = self.candidates.candidates(standing, limit)
        return {
            "candidates": [{**candidate_view(row), "question": self._question(row)} for row in rows]
        }

    def _question(self, candidate: Candidate) -> str | None:
        """What the person is asked; null if the candidate does not wait for them. Blocks."""
        if candidate.standing is not Standing.WAITING:
            return None
        taught_by = self.reader.turn(candidate.proposal.support[0])
        words = "" if taught_by is None else last_words(taught_by.turn, self.words)
        return candidate_question(candidate, short(words, _MOST_SAID))

    @route("GET", "/api/candidates/{id}", "One candidate with its text and evidence")
    def _candidate(self, request: ApiRequest) -> object:
        named = self._find_candidate(request.path["id"])
        found = self.candidates.candidate(named)
        if found is None:
            raise ApiError(f"there is no candidate {named}", 404)
        return {**whole_candidate_view(found), "question": self._question(found)}

    def _find_candidate(self, named: str) -> CandidateId:
        """The candidate whose id begins so or whose skill has this name, one that waits first; what
        is not known is returned as it is."""
        known = self.candidates.candidates(None, _MOST_KNOWN)
        of_skill = [one for one in known if one.proposal.skill.name == named]
        waiting = [one.id for one in of_skill if one.standing is Standing.WAITING]
        found = waiting or [one.id for one in known if one.id.startswith(named) or one in of_skill]
        if named in found or not found:
            return CandidateId(named)
        if len(found) > 1:
            several = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
            raise ApiError(f"{named} may be any of {several}; write more of the id", 409)
        return found[0]

    @route("POST", "/api/candidates/{id}/approve", "Approve a waiting candidate")
    async def _approve(self, request: ApiRequest) -> object:
        return await self._decide(request, approved=True)

    @route("POST", "/api/candidates/{id}/reject", "Reject a waiting candidate")
    async def _reject(self, request: ApiRequest) -> object:
        return await self._decide(request, approved=False)

    async def _decide(self, request: ApiRequest, *, approved: bool) -> object:
        named = await run_sync(self._find_candidate, request.path["id"])
        decided = await (await self.owner()).decide(named, approved=approved)
        if decided is None:
            raise ApiError(f"there is no candidate {named}", 404)
        return candidate_view(decided)

    @route("POST", "/api/sessions/{id}/forget", "Forget a session and what was learned from it")
    async def _forget(self, request: ApiRequest) -> object:
        session = SessionId(
            await run_sync(resolve, self.reader.find_sessions, request.path["id"], "session")
        )
        await run_sync(self.begin_forgetting, session)
        try:
            forgotten = await (await self.owner()).forget(session)
        except SkillError as error:
            raise ApiError(
                f"its turns are forgotten, but not all it taught is retired: {error}; then ask"
                " again",
                409,
            ) from error
        if forgotten is None:
            raise ApiError(f"there is no session {session}", 404)
        return {"session": session, "forgotten": True, **forgotten}

    @route("GET", "/api/events", "What happens, as server-sent events", ("after",))
    async def _events(self, request: ApiRequest) -> object:
        resumed = request.headers.get("last-event-id", "")
        if resumed.isascii() and resumed.isdigit() and len(resumed) < 17:
            after = int(resumed)
        else:
            after = (
                await self.feed.newest()
                if request.query.get("after") == "now"
                else request.number("after", 0)
            )
        if self.feed.is_full:
            raise ApiError(
                f"{self.feed.max_subscribers} clients follow the events already; close one of them,"
                " or raise proxy.max_subscribers",
                429,
            )
        return ApiStream("text/event-stream; charset=utf-8", self.feed.follow(after))
