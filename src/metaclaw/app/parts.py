"""The parts of the program, built from the configuration and connected with each other."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from metaclaw import __version__
from metaclaw.api import (
    Cost,
    EventFeed,
    Titles,
)
from metaclaw.app.lazy_learning import LazyLearning
from metaclaw.app.learner_process import LearnerProcess, WorkerCommands
from metaclaw.app.model_server import with_model_server
from metaclaw.app.providers import ConfiguredProviders, SkillSearch, redaction
from metaclaw.app.sessions import SessionKeeper
from metaclaw.app.shared_store import Leading
from metaclaw.clock import utc_now
from metaclaw.config import Config, TeamConfig
from metaclaw.domain.candidate import Standing
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.errors import ConfigError, StoreError
from metaclaw.hooks import PluginError
from metaclaw.learn import (
    Budget,
    LearnerStart,
    PendingWork,
    Retention,
    Supervisor,
    TeamProposals,
)
from metaclaw.proxy import (
    Acknowledgements,
    CallJudge,
    Enforcer,
    HeldRules,
    Keyring,
    LibrarySimilarity,
    Metrics,
    NoAttendant,
    NoSimilarity,
    Origins,
    Placer,
    Providers,
    Reminders,
    TrueAnswers,
    own_words,
)
from metaclaw.skills import Budgets, Rulebook, SkillLibrary, Teams
from metaclaw.store import (
    LedgerLimits,
    LedgerReader,
    Overview,
    SqlCandidates,
    SqlCompliance,
    SqlCursors,
    SqlForgetting,
    SqlGenerations,
    SqlKeys,
    SqlLedger,
    SqlSpending,
    SqlTrueAnswers,
    SqlUpkeep,
    connect,
)
from metaclaw.telemetry import observer_of
from metaclaw.upstream import HttpEndpoint, PolicySlot, ProviderHealth

if TYPE_CHECKING:
    # Imported where it is used: most programs have no weights of their own, and the start should be
    # quick.
    from metaclaw.app.policy import PolicyRuntime


log = logging.getLogger(__name__)


class ProgramParts:
    """Every part of the running program. Attributes are in the order in which the parts are built
    on each other.
    """

    leading: Leading

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
        config, self.model_server = with_model_server(config, home)
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
        self.cost = Cost(self.budget, SqlSpending(self.database), self._waiting_for_budget)
        self.events = EventFeed(self.reader, max_subscribers=config.proxy.max_subscribers)

    @property
    def teams(self) -> Teams:
        """The teams of the configuration and of keys, as they are now."""
        return self.keyring.teams

    def _build_store(self) -> None:
        store = self.config.store
        self.database = connect(store.url.resolve())
        self.database.is_shared |= self.config.proxy.workers > 1
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
        self.upkeep = SqlUpkeep(self.database, int(store.max_gb * 1e9))
        self.generations = SqlGenerations(self.database)
        self.library = SkillLibrary(self.config.skills.dir, self.generations)
        self.rulebook = Rulebook(self.library, self.generations)
        self.budget = Budget(self.config, SqlSpending(self.database))
        self.keyring = Keyring(
            self.api_key,
            SqlKeys(self.database),
            {team.name: {*team.users} for team in self.config.teams},
            lambda turn: self.budget.cost_of(turn.model, turn.usage),
        )
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
                model=configured.model_place,
                providers=configured.over_http,
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
        self.observer = observer_of(config.telemetry.otlp, __version__)
        attendant = NoAttendant() if self.policy is None else self.policy.attendant
        self.metrics = Metrics(attendant, self.observer)
        self.origins = Origins(
            silence_s=config.sessions.silence_minutes * 60, is_shared=self.database.is_shared
        )
        self.reminders = Reminders(
            SqlCompliance(self.database),
            self.library.follow,
            lambda: self.budget.day_of(utc_now()),
        )
        self.placer = Placer(
            self.library.follow,
            Budgets.configured(config.skills),
            enabled=config.skills.enabled,
            teams=self.teams,
            policy=self._slot,
            policy_answers=self._routes.policy_answers,
            is_embedded=self._routes.is_embedded,
            has_tools=config.skills.tool,
            takes_tools=self._routes.takes_tools,
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
        self.acknowledgements = Acknowledgements(
            self._session_of,
            config.learning.acknowledge,
            lambda: SqlCandidates(self.database).count(Standing.ACCEPTED),
        )

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
            self.acknowledgements,
            self.placer.name,
        )
        self.learner = LearnerProcess(
            begin=lambda: LearnerStart(self._with_teams(), known, self.library.folder),
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
        self.team_proposals = TeamProposals(self.library, SqlCandidates(self.database), self.teams)
        self.titles = Titles(Overview(self.database), own_words)
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
            self.enforcer.answers,
            timedelta(minutes=config.sessions.silence_minutes),
            forgetters,
            is_shared=self.database.is_shared,
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
            is_leading=lambda: self.leading.is_leading(),
        )

    def _with_teams(self) -> Config:
        """The configuration, with the teams of keys."""
        teams = [TeamConfig(name=name, users=tuple(who)) for name, who in self.teams.items()]
        return self.config.model_copy(update={"teams": tuple(teams)})

    def loop_states(self) -> Mapping[str, str]:
        """The states of the background loops by name, for `status`."""
        if self.supervisor is None:
            return {}
        states = {**self.supervisor.states, **self.learner.loops}
        if self.leading.supervisor is not None:
            states |= self.leading.supervisor.states
        if self._retention is not None and self._retention.trouble is not None:
            states["retention"] = self._retention.trouble
        if self.events.trouble is not None:
            states["events"] = self.events.trouble
        if self._untrained is not None:
            states["training"] = self._untrained
        return states

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
