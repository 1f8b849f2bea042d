"""The composition of the program: `Application` builds every part from the configuration and
connects them, the API included.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from anyio.to_thread import run_sync

from metaclaw.api import (
    Api,
    ApiParts,
    HomeRoutes,
    SignIn,
)
from metaclaw.app.parts import ProgramParts
from metaclaw.app.providers import ConfiguredProviders
from metaclaw.app.shared_store import Following, Leading
from metaclaw.app.status import ProgramStatus
from metaclaw.app.workers import leader_of, note_leader, workers_of
from metaclaw.config import Config, is_loopback
from metaclaw.domain.ids import SessionId
from metaclaw.domain.policy import Serving
from metaclaw.http_request import open_response
from metaclaw.learn import (
    StoreUpkeep,
    Supervisor,
    attempt,
    senses,
)
from metaclaw.proxy import (
    Gatekeeper,
    Opener,
    OtherRequests,
    Pipeline,
    RequestLimits,
    Server,
    WrongKeys,
    own_words,
)
from metaclaw.store import ENFORCEMENT_OFF, FORGETTING, SharedState, SqlCursors
from metaclaw.upstream import HttpEndpoint

if TYPE_CHECKING:
    # Imported where it is used: most programs have no weights of their own, and the start should be
    # quick.
    from metaclaw.app.policy import PolicyRuntime


log = logging.getLogger(__name__)

_STATUS_WITHIN_S = 5.0
_SKILLS_PATIENCE_S = 2.0
_KEYS_S = 1.0
_FIRST_REQUESTS_S = 0.3
"""Loops that load much wait so long after the start, so that the first requests are served at
once.
"""


class Application(ProgramParts):
    """The running program: its parts, its API, its server and its loops."""

    def __init__(
        self,
        config: Config,
        home: Path,
        port: int | None = None,
        *,
        providers: ConfiguredProviders | None = None,
        own_url: str | None = None,
    ) -> None:
        """`own_url` is the address of this worker alone, where there are several."""
        super().__init__(config, home, port, providers=providers)
        self._own_url = own_url
        self.leading = Leading(self.database, self._lead)
        self.wrong_keys = WrongKeys()
        self.sign_in = SignIn(
            self.api_key,
            self._home / "run" / "signed-out.json",
            self.keyring,
            is_loopback=is_loopback(self.config.proxy.host),
            scheme=self.config.proxy.scheme,
        )
        self.status = ProgramStatus(self)
        self.api_parts = build_api_parts(self)
        self.api = Api(self.api_parts)
        self.server = self._build_server()

    def _build_server(self) -> Server:
        proxy = self.config.proxy
        pipeline = Pipeline(
            origins=self.origins,
            placer=self.placer,
            opener=Opener(self._routes, self.provider_health),
            ledger=self.ledger,
            metrics=self.metrics,
            acknowledgements=self.acknowledgements,
            similarity=self.similarity,
            enforcer=self.enforcer,
            bring=self.sessions.bring if self.sessions.is_shared else None,
        )
        return Server(
            gatekeeper=Gatekeeper(self.keyring),
            keyring=self.keyring,
            wrong_keys=self.wrong_keys,
            pipeline=pipeline,
            other_requests=OtherRequests(
                self._routes, self.provider_health, proxy.max_items, self.placer
            ),
            api=self.api,
            metrics=self.metrics,
            limits=RequestLimits(
                proxy.max_body_bytes,
                max_concurrency=proxy.max_concurrency,
                max_items=proxy.max_items,
            ),
        )

    async def open(self, parts: AsyncExitStack) -> None:
        """Start what must run before the first request; `parts` closes it again, last opened first.
        What cannot be started is tried again by `begin_loops`; what cannot be closed does not keep
        the others from it."""
        if self.observer is not None:
            self._close_with(parts, "telemetry", partial(run_sync, self.observer.close))
        self._close_with(parts, "store", self._close_database)
        self._close_with(parts, "keys", self.keyring.aclose)
        for provider in self.providers:
            self._close_with(parts, f"provider {provider.name}", provider.aclose)
        if self.policy is not None:
            self._close_with(parts, "policy", self.policy.aclose)
        if self.embedded is not None and self.policy is None:
            await self.embedded.start()
        if not await attempt("opening the store", self._open_store):
            self._unfinished["restore"] = self._restore
        if self.embedded is not None and self.policy is not None:
            await self.embedded.start()
        await self._load_skills(parts)
        if self.search.endpoint is not None:
            self._close_with(parts, "embeddings provider", self.search.endpoint.aclose)
        if self.search.meaning is not None:
            self._close_with(parts, "search by meaning", self.search.meaning.aclose)
        if not await attempt("starting the ledger", self.ledger.start):
            self._unfinished["ledger"] = self.ledger.start
        self._close_with(parts, "ledger", self.ledger.aclose)

    def begin_loops(self, supervisor: Supervisor) -> None:
        """Start everything that runs beside serving."""
        self.supervisor = supervisor
        for name, step in self._unfinished.items():
            supervisor.run(name, step)
        supervisor.run("skills", self.library.watch)
        supervisor.run("keys", self._follow_keys)
        supervisor.run("sessions", self._end_silent_sessions)
        if self.config.skills.enabled:
            supervisor.run("reminders", self.reminders.run)
        supervisor.run("leading", self.leading.run)
        supervisor.run("following", Following(self.database, self._follow).run)
        if self.policy is not None:
            supervisor.run("weights", partial(self.learning.serve_weights, self.policy))
        if self.model_server is not None:
            endpoint = next(one for one in self.providers if one.name == self.model_server.name)
            assert isinstance(endpoint, HttpEndpoint)
            supervisor.run("model server", partial(self.model_server.run, endpoint))
        supervisor.run("page", self._prepare_page)
        supervisor.run("meaning", self._follow_library)

    def _lead(self, supervisor: Supervisor) -> None:
        """Start what only one of several programs on a store may do."""
        if self._own_url is not None:
            note_leader(self._home, self._own_url)
        if senses(self.config):
            supervisor.run("learner", self._run_learner, progress=lambda: self.learner.finished)
        if self._retention is not None:
            supervisor.run("retention", self._retention.run)
        supervisor.run("upkeep", StoreUpkeep(self.upkeep).run)
        supervisor.run("teams", self._propose_for_teams)
        if self.policy is not None:
            supervisor.run("learning", partial(self._run_training, self.policy, supervisor))

    async def tell_status(self) -> dict[str, object]:
        """The status; of several workers, the one that leads knows how learning stands."""
        if self._own_url is None:
            return await self.status.tell()
        facts: dict[str, object] | None = None
        leader = leader_of(self._home)
        if self.leading.supervisor is None and leader is not None and leader[1] != self._own_url:
            facts = await anyio.to_thread.run_sync(self._ask_for_status, leader[1])
        return (facts or await self.status.tell()) | {"workers": workers_of(self._home)}

    def _ask_for_status(self, url: str) -> dict[str, object] | None:
        from http.client import HTTPException

        sent = {"x-metaclaw-key": self.api_key}
        target = f"{url}/api/status"
        try:
            with open_response(target, headers=sent, timeout_s=_STATUS_WITHIN_S) as answer:
                found: dict[str, object] = json.load(answer)
                return found if answer.status == HTTPStatus.OK else None
        except (OSError, ValueError, HTTPException):
            return None  # it is ending, or has ended

    async def _follow(self, before: SharedState, now: SharedState) -> None:
        """Take over what another program on the store has changed."""
        view = self.library.view
        if (view.generation, view.hash) != (now.generation, now.library):
            await anyio.to_thread.run_sync(self.library.take_over)
        if now.enforcement_off != before.enforcement_off:
            self.enforcer.is_on = not now.enforcement_off
        if (missed := now.forgettings - before.forgettings) > 0:
            recent = await anyio.to_thread.run_sync(self.reader.events_of, FORGETTING, missed)
            named = [event for event in recent if "session" in event.data]
            for event in reversed(named):
                self.sessions.forget_elsewhere(SessionId(str(event.data["session"])))
        if self.database.is_shared and now.true_answers != before.true_answers:
            answers = await anyio.to_thread.run_sync(self.enforcer.answers.stored)
            self.enforcer.answers.restore(answers)
        if now.serving != before.serving:
            await self.learning.follow_weights()
        if now.training_wanted != before.training_wanted:
            await self.learning.train_if_leading()

    async def _follow_keys(self) -> None:
        """Notice keys that other programs make and revoke, and count what people use."""
        while True:
            await anyio.sleep(_KEYS_S)
            await self.keyring.settle()
            await anyio.to_thread.run_sync(self.keyring.read)
            self.api.drop_revoked()

    async def _propose_for_teams(self) -> None:
        """Propose for teams what their members share."""
        while True:
            await anyio.sleep(_KEYS_S)
            await anyio.to_thread.run_sync(self.team_proposals.look)

    async def _prepare_page(self) -> None:
        await anyio.sleep(_FIRST_REQUESTS_S)
        await self.api.prepare()

    async def _follow_library(self) -> None:
        """Start the search by meaning. Its process loads much; the first request starts it too."""
        await anyio.sleep(_FIRST_REQUESTS_S)
        self.similarity.follow()

    async def switch_enforcement(self, is_on: bool) -> None:
        """Hold calls that break rules, or stop doing so, from the next request on and after a
        restart.
        """
        self.enforcer.is_on = is_on
        cursors = SqlCursors(self.database)
        await anyio.to_thread.run_sync(cursors.move_cursor, ENFORCEMENT_OFF, 0 if is_on else 1)
        log.info("enforcement_switched on=%s", is_on)

    async def _load_skills(self, parts: AsyncExitStack) -> None:
        """Read the skills before the first request, unless there are so many that it would delay
        the start.
        """
        loading = asyncio.create_task(
            attempt("reading the skills", partial(anyio.to_thread.run_sync, self.library.sync))
        )
        parts.push_async_callback(asyncio.wait, [loading])
        await asyncio.wait([loading], timeout=_SKILLS_PATIENCE_S)
        if not loading.done():
            log.warning(
                "skills_loading folder=%s; requests are served without skills until they are read",
                self.library.folder,
            )

    async def _open_store(self) -> None:
        await anyio.to_thread.run_sync(self.database.prepare)
        if self.policy is not None:
            await anyio.to_thread.run_sync(self.policy.restore, self.database)
        await self._restore()

    async def _restore(self) -> None:
        """Take up held rules and the active sessions of the last run. Requests may be served
        meanwhile.
        """
        is_off = await anyio.to_thread.run_sync(SqlCursors(self.database).cursor, ENFORCEMENT_OFF)
        await anyio.to_thread.run_sync(self.keyring.read)
        answers = await anyio.to_thread.run_sync(self.enforcer.answers.stored)
        sessions = await anyio.to_thread.run_sync(self.sessions.stored)
        self.enforcer.is_on = not is_off
        self.enforcer.answers.restore(answers)
        self.sessions.restore(sessions)

    async def _close_database(self) -> None:
        self.database.close()

    @staticmethod
    def _close_with(parts: AsyncExitStack, name: str, close: Callable[[], Awaitable[None]]) -> None:
        parts.push_async_callback(attempt, f"closing {name}", close)

    async def _end_silent_sessions(self) -> None:
        await anyio.sleep(_FIRST_REQUESTS_S)
        await self.learning.finish_forgetting()
        await self.sessions.run()

    async def _run_learner(self) -> None:
        await anyio.sleep(_FIRST_REQUESTS_S)
        await self.learner.run()

    async def _run_training(self, policy: "PolicyRuntime", supervisor: Supervisor) -> None:
        await anyio.sleep(_FIRST_REQUESTS_S)
        await self.learning.run_training(policy, supervisor)


def build_api_parts(app: Application) -> ApiParts:
    """Everything the API needs of the program."""
    config, policy = app.config, app.policy
    return ApiParts(
        status=app.tell_status,
        unready=app.status.unready,
        home=HomeRoutes(
            config=config,
            database=app.database,
            rulebook=app.rulebook,
            titles=app.titles,
            words=own_words,
            feed=app.events,
            cost=app.cost,
            owner=app.learning.owner,
            trainer=app.learning.trainer,
            serving=lambda: Serving() if policy is None else policy.slot.serving,
            absorbed=lambda version: () if policy is None else policy.slot.absorbed(version),
            embedded=None if app.embedded is None else app.embedded.name,
            is_holding=lambda: app.enforcer.is_on,
            switch_holding=app.switch_enforcement,
            end_session=app.sessions.end,
            noted=lambda rule, turn: app.commands.acknowledge_rules([rule], (), [turn]),
            teams=app.teams,
            read_keys=app.keyring.read,
            used=app.keyring.used,
        ),
        windows=lambda: None if policy is None else policy.facts(),
        sign_in=app.sign_in,
        slow_down=app.wrong_keys.slow_down,
        health=lambda: tuple(
            app.provider_health.last_failure(provider.name) for provider in app.providers
        ),
        curve=app.learning.learning_curve,
        registry=app.metrics if config.telemetry.prometheus else None,
    )
