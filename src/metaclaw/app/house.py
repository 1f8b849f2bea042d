"""The composition root: the one place that knows every part and wires them together."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from metaclaw.api import (
    UNTRAINED,
    Api,
    ApiParts,
    Cost,
    EnforcementRoutes,
    EventFeed,
    LearningRoutes,
    PageParts,
    PolicyOwner,
    PolicyRoutes,
    ProviderFacts,
    SignIn,
    Status,
    Titles,
    WhyRoutes,
    change_view,
)
from metaclaw.app.deeds import build_deeds
from metaclaw.app.endpoints import build_endpoint, redaction
from metaclaw.app.learning import Deed, Learner
from metaclaw.config import Config, ProviderConfig, is_loopback
from metaclaw.domain.chat import Wire
from metaclaw.domain.compliance import MeasuredTurn, RuleResult
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.policy import BASE_POLICY, Serving
from metaclaw.domain.skill import LearnedFrom, Skill
from metaclaw.domain.status import Health
from metaclaw.errors import ConfigError, MetaClawError, StoreError
from metaclaw.learn import Supervisor
from metaclaw.learn.admission import turned_away
from metaclaw.learn.budget import Budget
from metaclaw.learn.channel import Begin
from metaclaw.learn.models import UNLEARNED, Models
from metaclaw.learn.pending import PENDING, Pending, senses
from metaclaw.learn.retention import Retention
from metaclaw.learn.store_upkeep import Upkeep
from metaclaw.ports import ModelProvider
from metaclaw.proxy import (
    Acknowledgements,
    CallJudge,
    Elsewhere,
    Enforcer,
    Gatekeeper,
    HeldRules,
    Intake,
    Limits,
    Metrics,
    Opener,
    Origins,
    Pipeline,
    Placer,
    Provider,
    Providers,
    Ranks,
    Reminders,
    Server,
    ShelfSimilarity,
    TrueAnswers,
    own_words,
)
from metaclaw.skills import Budgets, Rulebook, Shelf, Teams
from metaclaw.skills.rules import is_rule
from metaclaw.store import (
    ENFORCEMENT_OFF,
    LedgerReader,
    Overview,
    SqlBatches,
    SqlCandidates,
    SqlCompliance,
    SqlCursors,
    SqlForgetting,
    SqlGenerations,
    SqlLedger,
    SqlPolicies,
    SqlSpending,
    SqlTrueAnswers,
    SqlUpkeep,
    connect,
)
from metaclaw.store import Limits as StoreLimits
from metaclaw.upstream import HttpEmbeddings, HttpEndpoint, ProviderHealth, Reachability

log = logging.getLogger(__name__)

_SKILLS_PATIENCE_S = 2.0
_SWEEP_EVERY_S = 15.0
_SWEEPS_A_LOOK_AROUND = 240
_RESTORED_SESSIONS = 500
_FIRST_REQUESTS_S = 0.3
_NOTED_SHOWN = 5

if TYPE_CHECKING:
    # Imported where they are used: most programs have no weights of their own, and everybody waits for the start.
    from metaclaw.app.policy import Policy
    from metaclaw.engine import EmbeddedModel
    from metaclaw.engine.meaning import MeaningSearch
    from metaclaw.learn.assembly import Learning
    from metaclaw.learn.owner import Owner
    from metaclaw.learn.slow import SlowLearning


class House:
    """Every part of the running program, built from the configuration."""

    def __init__(self, config: Config, home: Path) -> None:
        self._config = config
        self._home = home
        self.api_key = config.proxy.api_key.resolve() if config.proxy.api_key is not None else ""
        self.database = connect(config.store.url.resolve())
        # A database behind a network may take longer over a commit than a file without anything being wrong.
        self.ledger = SqlLedger(self.database, StoreLimits(patience_s=1.0 if self.database.kind == "sqlite" else 2.0))
        self.reader = LedgerReader(self.database)
        if config.store.max_gb and self.database.kind != "sqlite":
            raise ConfigError("store.max_gb limits SQLite databases only; for PostgreSQL set privacy.retention_days, and remove it")
        self.upkeep = SqlUpkeep(self.database, int(config.store.max_gb * 1e9))
        self.generations = SqlGenerations(self.database)
        self.shelf = Shelf(config.skills.dir, self.generations)
        self.metrics = Metrics()
        self.origins = Origins(silence_s=config.sessions.silence_minutes * 60, now=lambda: datetime.now(UTC))
        self.embedded: EmbeddedModel | None = None
        self.providers = self._build_providers()
        self.provider_health = ProviderHealth()
        self.budget = Budget(config, SqlSpending(self.database))
        self.policy = self._build_policy()
        self._routes = self._build_routes()
        self.slow: SlowLearning | None = None
        self._counting = threading.Lock()
        self.reminders = Reminders(
            SqlCompliance(self.database), lambda: self.shelf.view, lambda: self.budget.day_of(datetime.now(UTC))
        )
        self.placer = Placer(
            lambda: self.shelf.view,
            Budgets.configured(config.skills),
            enabled=config.skills.enabled,
            canary_share=config.skills.canary_share,
            holdout_share=config.skills.holdout_share if config.skills.gate == "full" else 0.0,
            teams=self._teams,
            policy=None if self.policy is None else self.policy.slot,
            policy_answers=self._routes.policy_answers,
            is_embedded=self._routes.is_embedded,
            reminders=self.reminders,
        )
        self._embeddings_endpoint: HttpEndpoint | None = None
        self.meaning = self._build_meaning()
        self.similarity = None if self.meaning is None else ShelfSimilarity(self.meaning, lambda: self.shelf.view, self._teams)
        self.rulebook = Rulebook(self.shelf, self.generations)
        self.enforcer = Enforcer(
            HeldRules(lambda: self.shelf.view, self._teams),
            TrueAnswers(SqlTrueAnswers(self.database)),
            judge=CallJudge(redaction(config)),
            may_opt_out=config.proxy.enforce_opt_out,
            announce=self.ledger.announce,
        )
        self.acknowledgements = Acknowledgements(self._session_of) if config.learning.acknowledge else None
        self.cost = Cost(self.budget, SqlSpending(self.database), self._waiting)
        self.learner = self._build_learner()
        self.pending = Pending(
            self.reader,
            SqlCursors(self.database),
            SqlCandidates(self.database),
            self.learner,
            self._waiting,
            listens=config.skills.learn,
            measured=self._measured,
        )
        self._models = Models(self.providers, timeout_s=0.0)
        self._building = anyio.Lock()
        self._learning: Learning | None = None
        self._owning: Owner | None = None
        self._slow_began = anyio.Event()
        self.supervisor: Supervisor | None = None
        self._retention = self._build_retention()
        self.sign_in = SignIn(self.api_key, is_loopback=is_loopback(config.proxy.host))
        self.overview = Overview(self.database)
        self.titles = Titles(self.overview, own_words)
        self.api = Api(self._facts())
        self.ranks = Ranks()
        self.server = self._build_server()

    @property
    def _teams(self) -> Teams:
        return {team.name: team.users for team in self._config.teams}

    def _build_meaning(self) -> "MeaningSearch | None":
        """The search by meaning, where it is wanted and can be had."""
        skills = self._config.skills
        if not skills.enabled or skills.retrieval in ("words", "lexical"):
            return None
        from metaclaw.engine.meaning import MeaningSearch, missing_packages

        provider = next((one for one in self._config.providers if one.name == skills.embeddings_provider), None)
        if missing := missing_packages(has_provider=provider is not None):
            if skills.retrieval == "hybrid" or provider is not None:
                log.warning("retrieval_by_words_only missing=%s", ",".join(missing))
            return None
        folder = self._home / "models" / "meaning"
        if provider is None or skills.embeddings_model is None:
            return MeaningSearch(folder)
        # Connections of its own: a slow embedding model must not take those of requests.
        self._embeddings_endpoint = build_endpoint(provider)
        embeddings = HttpEmbeddings(self._embeddings_endpoint, skills.embeddings_model, redaction(self._config))
        return MeaningSearch(folder, embeddings=embeddings, key=provider.base_url or "")

    def _retrieval(self) -> Mapping[str, str]:
        """How skills are found, for a person."""
        skills = self._config.skills
        by = "local model" if skills.embeddings_provider is None else f"{skills.embeddings_provider}/{skills.embeddings_model}"
        if self.meaning is not None:
            return {"mode": "hybrid", "embeddings": by, "state": self.meaning.state}
        if skills.retrieval in ("words", "lexical"):
            return {"mode": "words", "state": "as configured"}
        from metaclaw.engine.meaning import INSTALL, INSTALL_FOR_PROVIDER

        install = INSTALL if skills.embeddings_provider is None else INSTALL_FOR_PROVIDER
        return {"mode": "words", "state": f"to search by meaning as well: {install}"}

    def _build_providers(self) -> list[HttpEndpoint | ModelProvider]:
        configured = self._config.fallback_order or (ProviderConfig(name="embedded", kind="embedded"),)
        return [self._build_provider(one) for one in configured]

    def _build_provider(self, one: ProviderConfig) -> HttpEndpoint | ModelProvider:
        if one.kind == "embedded":
            from metaclaw.engine import EmbeddedModel

            engine = self._config.engine
            self.embedded = EmbeddedModel(
                self._model_folder,
                name=one.name,
                convert=self._is_own_model,
                threads=engine.threads or None,
                slots=engine.max_batch,
            )
            return self.embedded
        return build_endpoint(one)

    def _build_policy(self) -> "Policy | None":
        policy = self._config.policy
        if policy is None:
            return None
        from metaclaw.app.policy import Policy

        built = Policy(
            self._config,
            policy,
            home=self._home,
            ledger=self.ledger,
            embedded=self.embedded,
            model_folder=self._model_folder,
            providers={one.name: one for one in self.providers if isinstance(one, HttpEndpoint)},
            meter=self.budget,
        )
        if built.parts.serves is not None:
            # Trained weights answer first; whoever else is configured steps in where their service cannot.
            self.providers.insert(0, built.parts.serves)
        return built

    @property
    def _is_own_model(self) -> bool:
        """Whether the embedded model is the one that comes with the program."""
        policy = self._config.policy
        return policy is None or policy.backend != "embedded" or policy.base_model is None

    @property
    def _model_folder(self) -> Path:
        from metaclaw.engine import MODEL_ID

        policy = self._config.policy
        if self._is_own_model or policy is None or policy.base_model is None:
            return self._home / "models" / MODEL_ID
        return Path(policy.base_model).expanduser()

    def _build_routes(self) -> Providers:
        passthrough = frozenset(
            one.name for one in self._config.providers if one.api_key is not None and one.api_key.is_passthrough
        )
        return Providers(self.providers, passthrough, None if self.policy is None else self.policy.slot)

    def _build_server(self) -> Server:
        proxy = self._config.proxy
        pipeline = Pipeline(
            origins=self.origins,
            placer=self.placer,
            opener=Opener(self._routes, self.provider_health),
            ledger=self.ledger,
            metrics=self.metrics,
            limits=Limits(),
            ranks=self.ranks,
            attendant=None if self.policy is None else self.policy.attendant,
            acknowledgements=self.acknowledgements,
            similarity=self.similarity,
            enforcer=self.enforcer,
        )
        return Server(
            gatekeeper=Gatekeeper(self.api_key),
            pipeline=pipeline,
            elsewhere=Elsewhere(self._routes, self.provider_health, proxy.max_items),
            api=self.api,
            metrics=self.metrics,
            intake=Intake(proxy.max_body_bytes, max_concurrency=proxy.max_concurrency, max_items=proxy.max_items),
        )

    def _facts(self) -> ApiParts:
        status, overview = self._status(), self.overview
        return ApiParts(
            status=status.tell,
            unready=status.unready,
            reader=self.reader,
            learning=LearningRoutes(
                feed=EventFeed(self.reader, max_subscribers=self._config.proxy.max_subscribers),
                candidates=SqlCandidates(self.database),
                history=self.generations.history,
                skills=lambda: self.shelf.view,
                owner=self._owner,
                rulebook=self.rulebook,
                compliance=SqlCompliance(self.database),
                noted=lambda rule, turn: self._tell_of_rules([rule], (), [turn]),
                begin_forgetting=SqlForgetting(self.database).begin,
            ),
            policy=PolicyRoutes(
                policies=SqlPolicies(self.database),
                batches=SqlBatches(self.database),
                serving=lambda: Serving() if self.policy is None else self.policy.slot.serving,
                owner=self._trainer,
                untrainable=self._config.untrainable,
            ),
            why=WhyRoutes(
                self.reader,
                self.generations.at,
                lambda: self.shelf.view.skills,
                Budgets.configured(self._config.skills),
                {team.name: team.users for team in self._config.teams},
                lambda version: () if self.policy is None else self.policy.slot.absorbed(version),
                None if self.embedded is None else self.embedded.name,
            ),
            cost=self.cost,
            enforcement=EnforcementRoutes(lambda: self.enforcer.is_on, self._switch_enforcement),
            windows=self._window,
            end_session=self._end_session,
            sign_in=self.sign_in,
            pages=PageParts(
                overview=overview,
                titles=self.titles,
                reader=self.reader,
                rulebook=self.rulebook,
                words=own_words,
                health=self._provider_failures,
                curve=self._curve,
            ),
            registry=self.metrics if self._config.telemetry.prometheus else None,
        )

    def _curve(self) -> Sequence[float]:
        """The learning curve of the newest training run. Blocks."""
        if self.policy is None:
            return ()
        from metaclaw.learn.slow import newest_curve

        return newest_curve(self._home / "policies")

    def _provider_failures(self) -> tuple[object, ...]:
        return tuple(self.provider_health.last_failure(provider.name) for provider in self.providers)

    def _status(self) -> Status:
        embedded = self.embedded
        return Status(
            mode=self._config.mode,
            store_kind=self.database.kind,
            store_health=lambda: self.ledger.health,
            store_size=self.upkeep.size,
            counts=self.reader.counts,
            shelf=lambda: self.shelf.view,
            shelf_trouble=lambda: self.shelf.trouble,
            providers=[_shown(provider, embedded, self.provider_health) for provider in self.providers],
            engine_state=None if embedded is None else lambda: embedded.state,
            retrieval=self._retrieval,
            loops=self._loops,
            active_sessions=lambda: self.origins.active,
            learned=self.reader.learning_counts,
            learning=self._learning_facts,
            cost=self.cost.status,
            began=time.monotonic(),
            policy_version=lambda: BASE_POLICY if self.policy is None else self.policy.slot.serving.version,
            training=self._training,
            rejections=self._rejections,
            noted=lambda: [change_view(change) for change in self.rulebook.lately(_NOTED_SHOWN)],
            turned_away=lambda: turned_away(SqlCandidates(self.database)),
            window=self._window,
            enforcing=lambda: self.enforcer.is_on,
            pending=lambda: self.pending.count() if senses(self._config) else dict.fromkeys(PENDING, 0),
        )

    def _loops(self) -> Mapping[str, str]:
        if self.supervisor is None:
            return {}
        states = {**self.supervisor.states, **self.learner.loops}
        if self._retention is not None and self._retention.trouble is not None:
            states["retention"] = self._retention.trouble
        return states

    def _learning_facts(self) -> Mapping[str, object]:
        config = self._config
        shown = {
            "listen": self._models.shown_listener(config.listen, config.judge),
            "judge": self._models.shown(config.judge),
            "evolver": self._models.shown(config.evolver),
        }
        on = {"on": config.skills.learn, "gate": config.skills.gate}
        return {**on, **shown, **UNLEARNED, **self.learner.facts}

    def _waiting(self) -> Mapping[str, int]:
        """How many requests wait for the budget, in the learner and here, where weights are trained."""
        return Counter(self.learner.waiting) + Counter(self.budget.waiting)

    def _training(self) -> Mapping[str, object]:
        if self.policy is None:
            return UNTRAINED
        return (
            {"state": "starting", "step": None, "version": None, "paused_reason": None}
            if self.slow is None
            else self.slow.training()
        )

    def _rejections(self) -> Mapping[str, int]:
        """Why turns may not train, counted. Blocks."""
        return {} if self.slow is None else {reason.value: count for reason, count in self.slow.turns.rejections().items()}

    def _window(self) -> Mapping[str, object] | None:
        if self.policy is None:
            return None
        return self.policy.facts()

    async def _trainer(self) -> PolicyOwner | None:
        if self.policy is None:
            return None
        await self._slow_began.wait()
        return self.slow

    async def _owner(self) -> "Owner":
        """Who carries out a person's wishes; made when the first comes, because it brings half of what learns along."""
        async with self._building:
            if self._owning is None:
                self._owning = await anyio.to_thread.run_sync(self._build_owner)
            return self._owning

    async def open(self, parts: AsyncExitStack) -> None:
        """Start what must run before the first request; `parts` closes it again, last opened first."""
        parts.callback(self.database.close)
        for provider in self.providers:
            parts.push_async_callback(provider.aclose)
        if self.policy is not None:
            parts.push_async_callback(self.policy.aclose)
        if self.embedded is not None and self.policy is None:
            await self.embedded.start()
        try:
            await anyio.to_thread.run_sync(self.database.prepare)
            await anyio.to_thread.run_sync(self._restore)
        except StoreError as error:
            log.error("store_unusable reason=%s; serving goes on, turns wait in memory", error)
        if self.embedded is not None and self.policy is not None:
            await self.embedded.start()
        await self._load_skills(parts)
        if self._embeddings_endpoint is not None:
            parts.push_async_callback(self._embeddings_endpoint.aclose)
        if self.meaning is not None and self.similarity is not None:
            parts.push_async_callback(self.meaning.aclose)
            self.similarity.follow()
        await self.ledger.start()
        parts.push_async_callback(self.ledger.aclose)

    async def _load_skills(self, parts: AsyncExitStack) -> None:
        """Read the skills before the first request, unless there are so many that it would keep people waiting."""
        loading = asyncio.create_task(anyio.to_thread.run_sync(self.shelf.load))
        parts.push_async_callback(asyncio.wait, [loading])
        await asyncio.wait([loading], timeout=_SKILLS_PATIENCE_S)
        if loading.done():
            loading.result()
        else:
            log.warning("skills_loading folder=%s; requests are served without skills until they are read", self.shelf.folder)

    def begin_loops(self, supervisor: Supervisor) -> None:
        """Start everything that runs beside serving."""
        self.supervisor = supervisor
        supervisor.run("skills", self.shelf.watch)
        supervisor.run("sessions", self._sweep)
        if self._config.skills.enabled:
            supervisor.run("reminders", self.reminders.run)
        if senses(self._config):
            supervisor.run("learner", self._learn, progress=lambda: self.learner.finished)
        if self._retention is not None:
            supervisor.run("retention", self._retention.run)
        supervisor.run("upkeep", Upkeep(self.upkeep).run)
        if self.policy is not None:
            supervisor.run("learning", partial(self._begin_slow, self.policy))

    async def _learn(self) -> None:
        """Start what learns, once those who waited for the program to start have been served."""
        await anyio.sleep(_FIRST_REQUESTS_S)
        await self.learner.run()

    async def _finish_forgetting(self) -> None:
        """Finish what was being forgotten when the program last ended."""
        try:
            if await anyio.to_thread.run_sync(SqlForgetting(self.database).is_unfinished):
                await (await self._owner()).finish_forgetting()
        except MetaClawError as error:
            log.warning("forgetting_unfinished reason=%s; forget the session again", error)

    async def _begin_slow(self, policy: "Policy") -> None:
        """The same for what trains weights."""
        if self.slow is None:
            await anyio.sleep(_FIRST_REQUESTS_S)
            async with self._building:
                self.slow = await anyio.to_thread.run_sync(lambda: policy.build(self._build_learning(), self.database, self.shelf))
            self._slow_began.set()
            assert self.supervisor is not None
            self.slow.begin(self.supervisor)
            policy.begin(self.supervisor)
        await anyio.sleep_forever()

    def _build_learner(self) -> Learner:
        inside = {one.name: one for one in self.providers if not isinstance(one, HttpEndpoint)}
        providers = tuple((one.name, None if isinstance(one, HttpEndpoint) else one.models) for one in self.providers)
        return Learner(
            begin=lambda: Begin(self._config, providers),
            deeds=partial(self._build_deeds, inside),
            has_work=lambda: self.pending.is_anything(),
        )

    def _build_deeds(self, inside: Mapping[str, ModelProvider], loop: asyncio.AbstractEventLoop) -> Mapping[str, Deed]:
        deeds = {**build_deeds(self.database, self.ledger, self.shelf, inside, self.budget, loop)}
        deeds["record_compliance"] = partial(self._record_compliance, deeds["record_compliance"])
        if self.acknowledgements is None:
            return deeds
        return {**deeds, "publish": partial(self._publish_and_tell, deeds["publish"])}

    def _record_compliance(self, record: Deed, measured: Sequence[MeasuredTurn], upto: int) -> None:
        """Count for the learner how rules are followed; a broken one is reminded of from the next request on. Blocks."""
        with self._counting:
            record(measured, upto)
            if any(outcome.result is RuleResult.BROKEN for one in measured for outcome in one.outcomes):
                self.reminders.refresh()

    def _measured(self) -> int | None:
        """Up to which turn it is counted which rules were followed, and broken ones are reminded of. Blocks."""
        with self._counting:
            return SqlCompliance(self.database).cursor()

    def _publish_and_tell(
        self,
        publish: Deed,
        put: Sequence[Skill],
        gone: Sequence[SkillName],
        reason: str,
        expected: object,
        learned: LearnedFrom | None,
        *more: object,
    ) -> object:
        """Publish for the learner; the session that taught a rule is told in its next answer. Blocks."""
        view = self.shelf.view
        before = [skill for name in gone if (skill := view.get(name)) is not None]
        # A rule that only got an example says what it said.
        new = [skill for skill in put if (known := view.get(skill.name)) is None or known.content_hash != skill.content_hash]
        published = publish(put, gone, reason, expected, learned, *more)
        if learned is not None:
            self._tell_of_rules(new, before, learned.turns)
        return published

    def _tell_of_rules(self, put: Sequence[Skill], gone: Sequence[Skill], turns: Sequence[TurnId]) -> None:
        rules, retracted = ([skill for skill in skills if is_rule(skill)] for skills in (put, gone))
        if self.acknowledgements is not None and (rules or retracted):
            self.acknowledgements.noted(rules, retracted, turns)

    def _session_of(self, turn: TurnId) -> SessionId | None:
        try:
            found = self.reader.turn(turn)
        except StoreError:
            return None
        return None if found is None else found.turn.session

    def _build_retention(self) -> Retention | None:
        days = self._config.privacy.retention_days
        return Retention(SqlForgetting(self.database), SqlCursors(self.database), self.reader, days) if days else None

    def _build_learning(self) -> "Learning":
        """The parts that learning consists of, for whoever needs some of them in this process; its loops run in the learner's."""
        from metaclaw.learn.assembly import Learning

        if self._learning is None:
            self._learning = Learning(
                self._config,
                database=self.database,
                ledger=self.ledger,
                shelf=self.shelf,
                providers=self.providers,
                words=own_words,
                budget=self.budget,
            )
        return self._learning

    def _build_owner(self) -> "Owner":
        from metaclaw.learn.assembly import owner_of
        from metaclaw.learn.erasure import SessionErasure

        erasure = SessionErasure(self.database, self.shelf, self._home / "policies")
        return owner_of(
            self._build_learning(),
            self.shelf,
            erasure,
            failed=self.learner.wake,
            let_go=self._let_go,
            serve=self._serve_without,
        )

    async def _serve_without(self, batches: Sequence[int]) -> None:
        """Stop serving weights that were trained on these batches."""
        if self.policy is not None:
            await self._slow_began.wait()
            assert self.slow is not None
            await self.slow.forget(batches)

    def _let_go(self, session: SessionId) -> None:
        """A session that is forgotten is over: its next request begins a new one, with nothing of the old in its prompt."""
        self.origins.end(session)
        self.placer.forget((session,))
        self.enforcer.answers.forget((session,))
        self.titles.forget(session)
        if self.similarity is not None:
            self.similarity.forget()
        if self.acknowledgements is not None:
            self.acknowledgements.told(session)
        self.learner.let_go(session)

    def _restore(self) -> None:
        """Take up what was when the program last stopped: the weights that served, the running sessions, the skills in their
        prompts."""
        if self.policy is not None:
            self.policy.restore(self.database)
        self.enforcer.is_on = not SqlCursors(self.database).cursor(ENFORCEMENT_OFF)
        self.enforcer.answers.load()
        unwanted = SqlForgetting(self.database).begun()
        recent = self.reader.recent_traces(self._silent_since(), _RESTORED_SESSIONS)
        traces = [trace for trace in recent if trace.session not in unwanted]
        self.origins.restore(traces)
        for trace in traces:
            found = self.reader.turn(trace.last_turn)
            if found is not None:
                self.placer.restore(trace.session, found.turn.segment, found.turn.stamp, found.turn.placements, found.turn.draws)

    async def _switch_enforcement(self, is_on: bool) -> None:
        """Hold calls that break rules, or stop doing so, from the next request on and after a restart."""
        self.enforcer.is_on = is_on
        cursors = SqlCursors(self.database)
        await anyio.to_thread.run_sync(cursors.move_cursor, ENFORCEMENT_OFF, 0 if is_on else 1)
        log.info("enforcement_switched on=%s", is_on)

    def _silent_since(self) -> datetime:
        return datetime.now(UTC) - timedelta(minutes=self._config.sessions.silence_minutes)

    async def _end_left_over(self) -> None:
        """End silent sessions that this program does not remember, most of them from before it was started.

        Nobody else would end them, and their last turns would never be judged.
        """
        try:
            silent = await anyio.to_thread.run_sync(lambda: self.reader.silent_sessions(self._silent_since()))
        except StoreError as error:
            log.debug("silent_sessions_unknown reason=%s", error)  # the store's own health tells of it
            return
        await self.ledger.end_sessions([one for one in silent if not self.origins.is_active(one)], "silence")

    async def _sweep(self) -> None:
        """End sessions that have fallen silent."""
        await anyio.sleep(_FIRST_REQUESTS_S)
        await self._finish_forgetting()
        for sweep in count():
            if self.ledger.health.health is not Health.DEGRADED:  # a store in trouble has more important things to keep in mind
                if sweep % _SWEEPS_A_LOOK_AROUND == 0:
                    await self._end_left_over()
                silent = self.origins.sweep()
                self.placer.forget(silent)
                await self.ledger.end_sessions(silent, "silence")
            await anyio.sleep(_SWEEP_EVERY_S)

    async def _end_session(self, session: SessionId) -> bool:
        if not self.origins.end(session):
            return False
        self.placer.forget((session,))
        await self.ledger.end_session(session, "owner said so")
        return True


def _shown(provider: Provider, embedded: "EmbeddedModel | None", health: ProviderHealth) -> ProviderFacts:
    failure = partial(health.last_failure, provider.name)
    if isinstance(provider, HttpEndpoint):
        wires = tuple(wire.value for wire in Wire if wire in provider.wires)
        return ProviderFacts(
            provider.name,
            provider.kind,
            wires,
            provider.models,
            lambda: f"{provider.open_connections} connections",
            failure,
            Reachability(provider),
        )
    if embedded is not None and provider is embedded:
        return ProviderFacts(embedded.name, "embedded", (), embedded.models, lambda: embedded.state, failure)
    return ProviderFacts(provider.name, "policy", (), provider.models, lambda: "ready", failure)
