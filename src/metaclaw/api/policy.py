"""Routes for trained weights: versions, the serving one, training, promotion and rollback."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from anyio.to_thread import run_sync

from metaclaw.api.home_routes import HomeRoutes, PolicyOwner
from metaclaw.api.router import ApiError, ApiRequest, RequestBody, route
from metaclaw.api.views import picked, time_view
from metaclaw.domain.chat import Json
from metaclaw.domain.policy import BASE_POLICY, GateReport, PolicyVersion
from metaclaw.store import SqlBatches, SqlPolicies

_MOST_ROWS = 100_000
_MOST_VERSION = 2**31 - 1
_WHERE = "/api/policy lists the versions"
_VERSION: Mapping[str, Json] = {"type": "integer", "minimum": 0, "maximum": _MOST_VERSION}
_PROMOTE = RequestBody({"version": _VERSION}, ("version",))
_ROLLBACK = RequestBody({"version": _VERSION})

UNTRAINED: Mapping[str, Json] = {
    "state": "off",
    "step": None,
    "version": None,
    "paused_reason": "there is no [policy] in config.toml",
}
"""The training state if no weights are trained."""


@dataclass(frozen=True, slots=True)
class PolicyRoutes:
    """The routes for weights."""

    home: HomeRoutes

    @route(
        "GET",
        "/api/policy",
        "Which weights answer, what training does, and the versions",
        ("limit",),
    )
    async def _policy(self, request: ApiRequest) -> object:
        limit = request.number("limit", 50, _MOST_ROWS)
        versions = await run_sync(SqlPolicies(self.home.database).versions, limit)
        owner, serving = await self.home.trainer(), self.home.serving()
        return {
            "policy_version": serving.version,
            "training": dict(UNTRAINED if owner is None else owner.training()),
            "versions": [version_view(version) for version in versions],
        }

    @route("GET", "/api/policy/{version}", "One version with the turns that taught it")
    def _version(self, request: ApiRequest) -> object:
        text = request.path["version"]
        if not (text.isascii() and text.isdigit() and int(text) <= _MOST_VERSION):
            raise ApiError(f"{text!r} is not the number of a version; {_WHERE}", 404)
        number = int(text)
        version, since = (
            SqlPolicies(self.home.database).version(number),
            SqlPolicies(self.home.database).since(number),
        )
        if version is None or since is None:
            raise _unknown(number)
        turns = (
            [] if version.batch is None else SqlBatches(self.home.database).turns_of(version.batch)
        )
        return {**version_view(version), "since": since.at.isoformat(), "turns": turns}

    @route("POST", "/api/policy/train", "Begin to train now, regardless of the schedule")
    async def _train(self, request: ApiRequest) -> object:
        return dict(await (await self._trainer()).train())

    @route("POST", "/api/policy/promote", "Let a version answer all requests", body=_PROMOTE)
    async def _promote(self, request: ApiRequest) -> object:
        number, owner = request.said["version"], await self._trainer()
        await self._require(number)
        await owner.promote(number)
        return {"promoted": number, "policy_version": self.home.serving().version}

    @route("POST", "/api/policy/rollback", "Go back to an earlier version", body=_ROLLBACK)
    async def _rollback(self, request: ApiRequest) -> object:
        to, owner, before = request.said.get("version"), await self._trainer(), self.home.serving()
        if to is not None:
            await self._require(to)
        after = await owner.rollback(to)
        given_up = [before.version] if before.version != after else []
        return {"policy_version": after, "rolled_back": given_up}

    async def _require(self, number: int) -> None:
        """Raise ApiError if there is no version of this number."""
        if (
            number != BASE_POLICY
            and await run_sync(SqlPolicies(self.home.database).version, number) is None
        ):
            raise _unknown(number)

    async def _trainer(self) -> PolicyOwner:
        owner = await self.home.trainer()
        if owner is None:
            advice = (
                self.home.config.untrainable
                or "write [policy] into config.toml, or start with --mode auto"
            )
            raise ApiError(f"weights are not trained here; {advice}", 409)
        return owner


def _unknown(number: int) -> ApiError:
    if number == BASE_POLICY:
        return ApiError("version 0 is the untrained model, of which there is nothing to tell", 404)
    return ApiError(f"there is no version {number}; {_WHERE}", 404)


def newest_version(policies: SqlPolicies) -> dict[str, Any] | None:
    """The newest version; None if there is none. Blocks."""
    return next(iter(map(version_view, policies.versions(1))), None)


_OF_VERSION = (
    *("parent", "state", "base", "generation", "batch"),
    *("steps", "note", "has_served", "is_kept"),
)


def version_view(version: PolicyVersion) -> dict[str, Any]:
    """A policy version: its parent, its state, and why."""
    return {
        **picked(version, *_OF_VERSION),
        **picked(version.weights, "backend", "adapter"),
        "version": version.number,
        "made_at": time_view(version.made),
        "absorbed": sorted(version.absorbed),
        "report": report_view(version.report),
    }


def report_view(report: GateReport | None) -> dict[str, Any] | None:
    """Why a version may answer, or may not; null before that was asked."""
    if report is None:
        return None
    pairs = report.held_out
    return {
        **picked(report, "reasons", "kl", "judge", "left_recording", "drawn_by"),
        "passed": report.is_passed,
        "habits": [asdict(habit) for habit in report.habits],
        "held_out": None if pairs is None else asdict(pairs),
        "golden": {"untrained": report.golden_untrained, "candidate": report.golden_candidate},
    }
