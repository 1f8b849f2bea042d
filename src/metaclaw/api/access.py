"""Who may use which route, in one table, and the gate of the router that holds everyone to it."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from anyio.to_thread import run_sync

from metaclaw.api.home_routes import HomeRoutes
from metaclaw.api.router import ApiError, Route
from metaclaw.domain.person import KeyRole
from metaclaw.errors import StoreError

log = logging.getLogger(__name__)


class Access(NamedTuple):
    """The roles that may use a route. `is_own`: those who are no owners find only what is theirs
    there; another route has nothing of anybody."""

    roles: frozenset[KeyRole]
    is_own: bool = False


_EVERYONE: Final = Access(frozenset(KeyRole))
_OWNERS: Final = Access(frozenset({KeyRole.OWNER}))
_READ_OWN: Final = Access(frozenset(KeyRole), is_own=True)
_CHANGE_OWN: Final = Access(frozenset({KeyRole.OWNER, KeyRole.MEMBER}), is_own=True)

ACCESS: Final[Mapping[str, Access]] = {
    "GET /": _EVERYONE,
    "GET /readyz": _EVERYONE,
    "GET /metrics": _OWNERS,
    "GET /api/openapi.json": _EVERYONE,
    "GET /api/status": _OWNERS,
    "GET /api/windows": _OWNERS,
    "GET /api/cost": _OWNERS,
    "GET /api/agent-files": _OWNERS,
    # People
    "GET /api/me": _READ_OWN,
    "POST /api/me/forget": _READ_OWN,  # whoever is recorded may have it undone
    "GET /api/keys": _OWNERS,
    "POST /api/keys": _OWNERS,
    "POST /api/keys/{name}/rotate": _OWNERS,
    "DELETE /api/keys/{name}": _OWNERS,
    "GET /api/audit": _OWNERS,
    # What happened
    "GET /api/sessions": _READ_OWN,
    "GET /api/sessions/{id}": _READ_OWN,
    "POST /api/sessions/{id}/end": _CHANGE_OWN,
    "POST /api/sessions/{id}/forget": _CHANGE_OWN,
    "GET /api/turns": _READ_OWN,
    "GET /api/turns/{id}": _READ_OWN,
    "GET /api/turns/{id}/why": _READ_OWN,
    "POST /api/feedback": _CHANGE_OWN,
    "GET /api/projects": _READ_OWN,
    "GET /api/progress": _READ_OWN,
    "GET /api/events": _READ_OWN,
    # What was learned
    "GET /api/rules": _READ_OWN,
    "POST /api/rules": _CHANGE_OWN,
    "GET /api/rules/{name}": _READ_OWN,
    "PATCH /api/rules/{name}": _CHANGE_OWN,
    "DELETE /api/rules/{name}": _CHANGE_OWN,
    "GET /api/rule-examples": _EVERYONE,
    "POST /api/rule-file": _EVERYONE,
    "GET /api/rule-section": _READ_OWN,
    "POST /api/whatif": _READ_OWN,
    "GET /api/lessons": _READ_OWN,
    "GET /api/skills": _READ_OWN,
    "GET /api/skills/{name}": _READ_OWN,
    "POST /api/skills/{name}/retire": _CHANGE_OWN,
    "POST /api/skills/{name}/restore": _CHANGE_OWN,
    "POST /api/skills/{name}/pin": _CHANGE_OWN,
    "POST /api/skills": _OWNERS,
    "PATCH /api/skills/{name}": _OWNERS,
    "DELETE /api/skills/{name}": _OWNERS,
    "POST /api/skill-test": _OWNERS,
    "GET /api/candidates": _READ_OWN,
    "POST /api/candidates": _CHANGE_OWN,
    "GET /api/candidates/{id}": _READ_OWN,
    "POST /api/candidates/{id}/approve": _CHANGE_OWN,
    "POST /api/candidates/{id}/reject": _CHANGE_OWN,
    "GET /api/generations": _READ_OWN,
    "POST /api/generations/revert": _OWNERS,
    "POST /api/undo": _CHANGE_OWN,
    # The program
    "GET /api/enforce": _READ_OWN,
    "POST /api/enforce": _OWNERS,
    "GET /api/policy": _OWNERS,
    "GET /api/policy/{version}": _OWNERS,
    "POST /api/policy/train": _OWNERS,
    "POST /api/policy/promote": _OWNERS,
    "POST /api/policy/rollback": _OWNERS,
    # The pages
    "GET /ui": _OWNERS,
    "GET /ui/progress": _READ_OWN,
    "GET /ui/sessions": _READ_OWN,
    "GET /ui/sessions/{id}": _READ_OWN,
    "GET /ui/turns/{id}": _READ_OWN,
    "GET /ui/rules": _READ_OWN,
    "GET /ui/rules/{name}": _READ_OWN,
    "GET /ui/training": _OWNERS,
    "GET /ui/cost": _OWNERS,
    "GET /ui/keys": _OWNERS,
    "GET /ui/find": _READ_OWN,
    "GET /ui/live": _READ_OWN,
    "POST /ui/do/{action}": _CHANGE_OWN,
    "GET /ui/sign-in": _EVERYONE,
    "POST /ui/sign-in": _EVERYONE,
    "POST /ui/sign-out": _EVERYONE,
    "POST /api/sign-in": _EVERYONE,
    "GET /ui/style.css": _EVERYONE,
    "GET /ui/script.js": _EVERYONE,
    "GET /ui/icon.svg": _EVERYONE,
}
_CHANGE_NOTHING: Final = (
    *("/api/rule-file", "/api/skill-test", "/api/sign-in"),
    "/api/whatif",
)
_NAMES: Final = ("name", "id", "turn", "session", "candidate", "reverted_to", "policy_version")
"""The fields of a result that name what was changed."""


class RoleGate:
    """Admits the requests of one person, and notes what they change."""

    def __init__(self, home: HomeRoutes, routes: Sequence[Route]) -> None:
        """Raises ValueError for a route that is not in the table."""
        self._home = home
        missing = [name for name in map(_name_of, routes) if name not in ACCESS]
        if missing:
            raise ValueError(f"no entry in ACCESS says who may use {', '.join(missing)}")

    async def admit(self, route: Route, values: Mapping[str, str]) -> None:
        """Raise ApiError if the person may not use this route, or not on this thing. What is not
        theirs does not exist for them."""
        person, access = self._home.person, ACCESS[_name_of(route)]
        if person.role not in access.roles:
            raise ApiError(f"a {person.role}'s key may not do this", 403)
        if access.is_own and values and not person.is_owner:
            await run_sync(self._require_own, route, values)

    async def note(self, route: Route, values: Mapping[str, str], result: object) -> None:
        """Note a change that was made."""
        if route.method == "GET" or route.is_page or route.path in _CHANGE_NOTHING:
            return
        told = result if isinstance(result, dict) else {}
        named = [*values.values(), *(str(told[name]) for name in _NAMES if name in told)]
        target = named[0] if named else ""
        try:
            await run_sync(self._home.keys.note, self._home.person.name, _name_of(route), target)
        except StoreError as error:
            log.warning("change_not_noted route=%s reason=%s", _name_of(route), error)

    def _require_own(self, route: Route, values: Mapping[str, str]) -> None:
        home, kind = self._home, route.path.split("/")[2]
        if kind == "sessions":
            home.session_id(values["id"])
        elif kind == "turns":
            home.turn_id(values["id"])
        elif kind == "candidates":
            home.candidate_id(values["id"])
        elif kind in ("rules", "skills"):
            skill = home.rulebook.find(values["name"])
            if skill is None:
                raise ApiError(f"there is no rule or skill named {values['name']}", 404)
            if route.method != "GET" and not home.rulebook.owns(skill):
                raise ApiError(f"{skill.name} is not only yours: an owner's key changes it", 403)


def _name_of(route: Route) -> str:
    return f"{route.method} {route.path}"
