"""Routes for people: their keys, who changed what, what one's own key is, and forgetting oneself."""

from dataclasses import dataclass
from typing import Any, Final

from anyio.to_thread import run_sync

from metaclaw.api.home_routes import HomeRoutes
from metaclaw.api.router import ApiError, ApiRequest, RequestBody, route
from metaclaw.api.views import picked, time_view
from metaclaw.domain.ids import SessionId
from metaclaw.domain.person import (
    HOME,
    KeyRole,
    Person,
    name_fault,
    parse_limits,
    render_limits,
)
from metaclaw.skills import Reach
from metaclaw.store import Overview, SessionFilter, SqlForgetting

_MOST_ROWS: Final = 100_000
_NEW: Final = RequestBody(
    {
        "name": {"type": "string", "description": "The user of its turns"},
        "role": {"enum": list(KeyRole)},
        "team": {"type": ["string", "null"], "maxLength": 64},
        "limits": {"type": "string", "description": "Such as requests=60/min,money=50/month"},
        "speaks_for_others": {"type": "boolean", "description": "Whether X-User-Id counts"},
    },
    ("name",),
)


@dataclass(frozen=True, slots=True)
class KeyRoutes:
    """The routes for people."""

    home: HomeRoutes

    @route("GET", "/api/keys", "The keys of people, without their secrets")
    def _keys(self, request: ApiRequest) -> object:
        return {
            "keys": [
                {**self._view(key.person), "made_at": time_view(key.made_at)}
                for key in self.home.keys.all()
            ]
        }

    @route("POST", "/api/keys", "Make a key, which is shown once", body=_NEW)
    def _create(self, request: ApiRequest) -> object:
        said = request.said
        fault = name_fault(said["name"])
        try:
            limits = parse_limits(said.get("limits", ""))
        except ValueError as error:
            fault = fault or str(error)
            limits = ()
        if fault is not None:
            raise ApiError(fault)
        person = Person(
            said["name"],
            KeyRole(said.get("role", KeyRole.MEMBER)),
            (said.get("team") or "").strip() or None,
            said.get("speaks_for_others", False),
            limits,
        )
        secret = self.home.keys.create(person)
        self.home.read_keys()
        return {**self._view(person), "key": secret}

    @route("POST", "/api/keys/{name}/rotate", "Replace a key by a new one, which is shown once")
    def _rotate(self, request: ApiRequest) -> object:
        name = request.path["name"]
        secret = self.home.keys.rotate(name)
        if secret is None:
            raise _unknown(name)
        self.home.read_keys()
        return {"name": name, "key": secret}

    @route("DELETE", "/api/keys/{name}", "Revoke a key; what its holder taught stays")
    def _revoke(self, request: ApiRequest) -> object:
        name = request.path["name"]
        if not self.home.keys.revoke(name):
            raise _unknown(name)
        self.home.read_keys()
        return {"name": name, "revoked": True}

    @route("GET", "/api/audit", "Who changed what, newest first", ("limit", "before"))
    def _audit(self, request: ApiRequest) -> object:
        before = request.number("before", 0) if "before" in request.query else None
        found = self.home.keys.changes(request.number("limit", 50, _MOST_ROWS), before)
        return {
            "changes": [
                {**picked(one, "seq", "who", "action", "target"), "at": time_view(one.at)}
                for one in found
            ]
        }

    @route("GET", "/api/me", "Whose key this is, and what they have used of their limits")
    def _me(self, request: ApiRequest) -> object:
        return self._view(self.home.person)

    @route("POST", "/api/me/forget", "Forget all of one's own sessions, rules, facts and lessons")
    async def _forget_me(self, request: ApiRequest) -> object:
        person, database = self.home.person, self.home.database
        if person is HOME:
            raise ApiError(
                "the home's own key belongs to no person: forget single sessions (metaclaw sessions forget ID)",
                409,
            )
        mine, forgetting = Overview(database, user=person.name), SqlForgetting(database)
        wanted, count = SessionFilter(with_side_only=True), 0
        asked = await run_sync(forgetting.begin_user, person.name)

        def left() -> list[SessionId]:
            rows = mine.sessions(wanted, _MOST_ROWS)
            return [row.id for row in rows if row.began_at <= asked]

        # Again, because another proxy may have been recording a turn.
        while sessions := await run_sync(left):
            for session in sessions:
                await run_sync(forgetting.begin, session)
            owner = await self.home.owner()
            for session in sessions:
                await owner.forget(session)
            count += len(sessions)
        gone = await run_sync(self._forget_skills, person.name)
        return {"name": person.name, "sessions": count, "skills": gone}

    def _forget_skills(self, user: str) -> int:
        """Take what is only this person's out of force, and erase its texts."""
        library, reach = self.home.rulebook.library, Reach(user, {})
        names = [skill.name for skill in library.follow().skills if reach.owns(skill)]
        if names:
            library.publish((), names, f"forgot {user}", by_person=True)
        SqlForgetting(self.home.database).erase_scope(f"user:{user}")
        return len(names)

    def _view(self, person: Person) -> dict[str, Any]:
        return {
            **picked(person, "name", "role", "team", "speaks_for_others"),
            "limits": render_limits(person.limits),
            "used": self.home.used(person),
        }


def _unknown(name: str) -> ApiError:
    return ApiError(f"there is no key for {name}", 404)
