"""The composition of the program: `Application` builds every part from the configuration and
connects them, the API included.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from metaclaw.api import (
    Api,
    ApiParts,
    Cost,
    EventFeed,
    HomeRoutes,
    PageParts,
    SignIn,
    Titles,
)
from metaclaw.app.lazy_learning import LazyLearning
from metaclaw.app.learner_process import LearnerProcess, WorkerCommands
from metaclaw.app.providers import ConfiguredProviders, SkillSearch, redaction
from metaclaw.app.sessions import SessionKeeper
from metaclaw.app.status import ProgramStatus
from metaclaw.config import Config, is_loopback
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.policy import Serving
from metaclaw.errors import ConfigError, StoreError
from metaclaw.hooks import PluginError
from metaclaw.learn import (
    Budget,
    LearnerStart,
    PendingWork,
    Retention,
    StoreUpkeep,
    Supervisor,
    attempt,
    senses,
)
from metaclaw.proxy import (
    Acknowledgements,
    CallJudge,
    Enforcer,
    Gatekeeper,
    HeldRules,
    LibrarySimilarity,
    Metrics,
    NoAttendant,
    NoSimilarity,
    Opener,
    Origins,
    OtherRequests,
    Pipeline,
    Placer,
    Providers,
    Reminders,
    RequestLimits,
    Server,
    TrueAnswers,
    WrongKeys,
    own_words,
)
from metaclaw.skills import Budgets, Rulebook, SkillLibrary, Teams
from metaclaw.store import (
    ENFORCEMENT_OFF,
    LedgerLimits,
    LedgerReader,
    Overview,
    SqlCandidates,
    SqlCompliance,
    SqlCursors,
    SqlForgetting,
    SqlGenerations,
    SqlLedger,
    SqlSpending,
    SqlTrueAnswers,
    SqlUpkeep,
    connect,
)
from metaclaw.upstream import HttpEndpoint, PolicySlot, ProviderHealth

if TYPE_CHECKING:
    # Imported where it is used: most programs have no weights of their own, and the start should be
    # quick.
    from metaclaw.app.policy import PolicyRuntime


log = logging.getLogger(__name__)

_SKILLS_PATIENCE_S = 2.0
_NOTED_SHOWN = 5
_FIRST_REQUESTS_S = 0.3
"""Loops that load much wait so long after the start, so that the first requests are served at
once.
"""


class Application:
    """Every part of the running program. Attributes are in the order in which the parts are built
    on each other.
    """

    def __init__(
        self,
        config: Config,
        home: Path,
        port: int | None = None,
        *,
        providers: ConfiguredProviders | None = None,
    ) -> None:
        """`port` is the one it listens on, where that is not the configured one. `providers` are
        built from the configuration unless they are given."""
        self.config = config
        self._port = config.proxy.port if port is None else port
        self._home = home
        self.api_key = config.proxy.api_key.resolve() if config.proxy.api_key is not None else ""
        self.supervisor: Supervisor | None = None
        self._untrained: str | None = None
        self._unfinished: dict[str, Callable[[], Awaitable[None]]] = {}
        """Steps of the start that failed; they are tried again beside serving."""
        self._build_store()
        self._build_providers(providers or ConfiguredProviders(config, home))
        self._build_placement()
        self._build_learning()
        self._build_api()
        self.server = self._build_server()

    @property
    def teams(self) -> Teams:
        return {team.name: team.users for team in self.config.teams}

    def _build_store(self) -> None:
        store = self.config.store
        self.database = connect(store.url.resolve())
        if store.max_gb and self.database.kind != "sqlite":
            raise ConfigError(
                "store.max_gb limits SQLite databases only; for PostgreSQL set"
                " privacy.retention_days, and remove it"
            )
        # A database behind a network may take longer over a commit than a file without anything
        # being wrong.
        self.ledger = SqlLedger(
            self.database, LedgerLimits(patience_s=1.0 if self.database.kind == "sqlite" else 2.0)
        )
        self.reader = LedgerReader(self.database)
        self.overview = Overview(self.database)
        self.upkeep = SqlUpkeep(self.database, int(store.max_gb * 1e9))
        self.generations = SqlGenerations(self.database)
        self.library = SkillLibrary(self.config.skills.dir, self.generations)
        self.rulebook = Rulebook(self.library, self.generations)
        self.budget = Budget(self.config, SqlSpending(self.database))
        days = self.config.privacy.retention_days
        self._retention = (
            Retention(SqlForgetting(self.database), SqlCursors(self.database), self.reader, days)
            if days
            else None
        )

    def _build_providers(self, configured: ConfiguredProviders) -> None:
        self.embedded = configured.embedded
        self.providers = configured.all
        self.provider_health = ProviderHealth()
        self.policy = self._build_policy(configured)
        self._slot = PolicySlot("") if self.policy is None else self.policy.slot
        self._routes = Providers(
            self.providers, configured.passthrough, self._slot, configured.assumed_wires
        )

    def _build_policy(self, configured: ConfiguredProviders) -> "PolicyRuntime | None":
        if self.config.policy is None:
            return None
        from metaclaw.app.policy import PolicyRuntime

        try:
            built = PolicyRuntime(
                self.config,
                self.config.policy,
                home=self._home,
                ledger=self.ledger,
                embedded=self.embedded,
                model_folder=configured.model_folder,
                providers=configured.over_http,
                meter=self.budget,
            )
        except PluginError as error:
            log.error("training_off reason=%s", error)
            self._untrained = f"off: {error}"
            return None
        if built.parts.serves is not None:
            # Trained weights answer first; the other providers step in where their service cannot.
            self.providers.insert(0, built.parts.serves)
        return built

    def _build_placement(self) -> None:
        """Placement of skills in prompts, and enforcement of rules on answers."""
        config = self.config
        self.metrics = Metrics(NoAttendant() if self.policy is None else self.policy.attendant)
        self.origins = Origins(silence_s=config.sessions.silence_minutes * 60)
        self.reminders = Reminders(
            SqlCompliance(self.database),
            self.library.follow,
            lambda: self.budget.day_of(datetime.now(UTC)),
        )
        self.placer = Placer(
            self.library.follow,
            Budgets.configured(config.skills),
            enabled=config.skills.enabled,
            canary_share=config.skills.canary_share,
            holdout_share=config.skills.holdout_share if config.skills.gate == "full" else 0.0,
            teams=self.teams,
            policy=self._slot,
            policy_answers=self._routes.policy_answers,
            is_embedded=self._routes.is_embedded,
            reminders=self.reminders,
        )
        self.search = SkillSearch(config, self._home)
        meaning = self.search.meaning
        self.similarity = (
            NoSimilarity()
            if meaning is None
            else LibrarySimilarity(meaning, self.library.follow, self.teams)
        )
        self.enforcer = Enforcer(
            HeldRules(self.library.follow, self.teams, port=self._port),
            TrueAnswers(SqlTrueAnswers(self.database)),
            CallJudge(redaction(config)),
            self.ledger.announce,
            may_opt_out=config.proxy.enforce_opt_out,
        )
        self.acknowledgements = Acknowledgements(self._session_of)

    def _build_learning(self) -> None:
        """The learner process, and what learns in this one."""
        config = self.config
        models = {one.name: one for one in self.providers if not isinstance(one, HttpEndpoint)}
        known = tuple(
            (one.name, None if isinstance(one, HttpEndpoint) else one.models)
            for one in self.providers
        )
        self.commands = WorkerCommands(
            self.database,
            self.ledger,
            self.library,
            models,
            self.budget,
            self.reminders,
            self.acknowledgements if config.learning.acknowledge else None,
        )
        self.learner = LearnerProcess(
            begin=lambda: LearnerStart(config, known),
            commands=self.commands.by_name,
            has_work=lambda: self.pending.is_anything(),
        )
        self.pending = PendingWork(
            self.reader,
            SqlCursors(self.database),
            SqlCandidates(self.database),
            self.learner,
            self._waiting_for_budget,
            listens=config.skills.learn,
            measured=self.commands.compliance_cursor,
        )
        self.titles = Titles(self.overview, own_words)
        forgetters = [
            lambda session: self.enforcer.answers.forget((session,)),
            self.titles.forget,
            lambda session: self.similarity.forget(),
            self.acknowledgements.acknowledged,
            self.learner.forget_session,
        ]
        self.sessions = SessionKeeper(
            self.reader,
            self.ledger,
            SqlForgetting(self.database),
            self.origins,
            self.placer,
            timedelta(minutes=config.sessions.silence_minutes),
            forgetters,
        )
        self.learning = LazyLearning(
            config,
            self._home / "policies",
            database=self.database,
            ledger=self.ledger,
            library=self.library,
            providers=self.providers,
            budget=self.budget,
            policy=self.policy,
            wake_learner=self.learner.wake,
            forget_session=self.sessions.forget,
        )

    def _build_api(self) -> None:
        self.cost = Cost(self.budget, SqlSpending(self.database), self._waiting_for_budget)
        self.events = EventFeed(self.reader, max_subscribers=self.config.proxy.max_subscribers)
        self.wrong_keys = WrongKeys()
        self.sign_in = SignIn(
            self.api_key,
            self._home / "run" / "signed-out.json",
            is_loopback=is_loopback(self.config.proxy.host),
        )
        self.status = ProgramStatus(self)
        self.api_parts = build_api_parts(self)
        self.api = Api(self.api_parts)

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
        )
        return Server(
            gatekeeper=Gatekeeper(self.api_key),
            wrong_keys=self.wrong_keys,
            pipeline=pipeline,
            other_requests=OtherRequests(self._routes, self.provider_health, proxy.max_items),
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
        self._close_with(parts, "store", self._close_database)
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
            self.similarity.follow()
        if not await attempt("starting the ledger", self.ledger.start):
            self._unfinished["ledger"] = self.ledger.start
        self._close_with(parts, "ledger", self.ledger.aclose)

    def begin_loops(self, supervisor: Supervisor) -> None:
        """Start everything that runs beside serving."""
        self.supervisor = supervisor
        for name, step in self._unfinished.items():
            supervisor.run(name, step)
        supervisor.run("skills", self.library.watch)
        supervisor.run("sessions", self._end_silent_sessions)
        if self.config.skills.enabled:
            supervisor.run("reminders", self.reminders.run)
        if senses(self.config):
            supervisor.run("learner", self._run_learner, progress=lambda: self.learner.finished)
        if self._retention is not None:
            supervisor.run("retention", self._retention.run)
        supervisor.run("upkeep", StoreUpkeep(self.upkeep).run)
        if self.policy is not None:
            supervisor.run("learning", partial(self._run_training, self.policy, supervisor))
        supervisor.run("page", self.api.prepare)

    def loop_states(self) -> Mapping[str, str]:
        """The states of the background loops by name, for `status`."""
        if self.supervisor is None:
            return {}
        states = {**self.supervisor.states, **self.learner.loops}
        if self._retention is not None and self._retention.trouble is not None:
            states["retention"] = self._retention.trouble
        if self.events.trouble is not None:
            states["events"] = self.events.trouble
        if self._untrained is not None:
            states["training"] = self._untrained
        return states

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

    def _waiting_for_budget(self) -> Mapping[str, int]:
        """How many requests wait for the budget, in the learner process and here, where weights are
        trained.
        """
        return Counter(self.learner.waiting) + Counter(self.budget.waiting)

    def _session_of(self, turn: TurnId) -> SessionId | None:
        try:
            found = self.reader.turn(turn)
        except StoreError:
            return None
        return None if found is None else found.turn.session


def build_api_parts(app: Application) -> ApiParts:
    """Everything the API needs of the program."""
    config, policy = app.config, app.policy
    return ApiParts(
        status=app.status.tell,
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
        ),
        windows=lambda: None if policy is None else policy.facts(),
        sign_in=app.sign_in,
        slow_down=app.wrong_keys.slow_down,
        pages=PageParts(
            overview=app.overview,
            titles=app.titles,
            reader=app.reader,
            rulebook=app.rulebook,
            words=own_words,
            health=lambda: tuple(
                app.provider_health.last_failure(provider.name) for provider in app.providers
            ),
            curve=app.learning.learning_curve,
        ),
        registry=app.metrics if config.telemetry.prometheus else None,
    )
