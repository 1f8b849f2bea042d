"""What the API and the pages read from the running program and have it do."""

import time
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from metaclaw.api import (
    ApiParts,
    EnforcementRoutes,
    EventFeed,
    LearningRoutes,
    PageParts,
    PolicyRoutes,
    ProviderFacts,
    Status,
    WhyRoutes,
    change_view,
)
from metaclaw.domain.chat import Wire
from metaclaw.domain.policy import BASE_POLICY, Serving
from metaclaw.learn import PENDING, UNLEARNED, Models, rejected_proposals, senses
from metaclaw.proxy import Provider, own_words
from metaclaw.skills import Budgets
from metaclaw.store import SqlBatches, SqlCandidates, SqlCompliance, SqlForgetting, SqlPolicies
from metaclaw.upstream import HttpEndpoint, ProviderHealth, ProviderReachability

if TYPE_CHECKING:
    from metaclaw.app.application import Application
    from metaclaw.engine import EmbeddedModel

_NOTED_SHOWN = 5


def build_api_parts(app: "Application") -> ApiParts:
    """Everything the API needs of the program."""
    config, policy = app.config, app.policy
    status = _status(app)
    return ApiParts(
        status=status.tell,
        unready=status.unready,
        reader=app.reader,
        learning=LearningRoutes(
            feed=EventFeed(app.reader, max_subscribers=config.proxy.max_subscribers),
            candidates=SqlCandidates(app.database),
            history=app.generations.history,
            skills=lambda: app.library.view,
            owner=app.learning.owner,
            rulebook=app.rulebook,
            compliance=SqlCompliance(app.database),
            noted=lambda rule, turn: app.commands.acknowledge_rules([rule], (), [turn]),
            begin_forgetting=SqlForgetting(app.database).begin,
        ),
        policy=PolicyRoutes(
            policies=SqlPolicies(app.database),
            batches=SqlBatches(app.database),
            serving=lambda: Serving() if policy is None else policy.slot.serving,
            owner=app.learning.trainer,
            untrainable=config.untrainable,
        ),
        why=WhyRoutes(
            app.reader,
            app.generations.at,
            lambda: app.library.view.skills,
            Budgets.configured(config.skills),
            app.teams,
            lambda version: () if policy is None else policy.slot.absorbed(version),
            None if app.embedded is None else app.embedded.name,
        ),
        cost=app.cost,
        enforcement=EnforcementRoutes(lambda: app.enforcer.is_on, app.switch_enforcement),
        windows=lambda: None if policy is None else policy.facts(),
        end_session=app.sessions.end,
        sign_in=app.sign_in,
        pages=PageParts(
            overview=app.overview,
            titles=app.titles,
            reader=app.reader,
            rulebook=app.rulebook,
            words=own_words,
            health=lambda: tuple(app.provider_health.last_failure(provider.name) for provider in app.providers),
            curve=app.learning.learning_curve,
        ),
        registry=app.metrics if config.telemetry.prometheus else None,
    )


def _status(app: "Application") -> Status:
    embedded, policy = app.embedded, app.policy
    return Status(
        mode=app.config.mode,
        store_kind=app.database.kind,
        store_health=lambda: app.ledger.health,
        store_size=app.upkeep.size,
        counts=app.reader.counts,
        library=lambda: app.library.view,
        library_trouble=lambda: app.library.trouble,
        providers=[_provider_facts(provider, embedded, app.provider_health) for provider in app.providers],
        engine_state=None if embedded is None else lambda: embedded.state,
        retrieval=app.search.describe,
        loops=app.loop_states,
        active_sessions=lambda: app.origins.active,
        learned=app.reader.learning_counts,
        learning=partial(_learning_state, app, Models(app.providers, timeout_s=0.0)),
        cost=app.cost.status,
        began=time.monotonic(),
        policy_version=lambda: BASE_POLICY if policy is None else policy.slot.serving.version,
        training=app.learning.training_state,
        rejections=app.learning.rejections,
        noted=lambda: [change_view(change) for change in islice(app.rulebook.lately(), _NOTED_SHOWN)],
        turned_away=lambda: rejected_proposals(SqlCandidates(app.database)),
        window=lambda: None if policy is None else policy.facts(),
        enforcing=lambda: app.enforcer.is_on,
        pending=lambda: app.pending.count() if senses(app.config) else dict.fromkeys(PENDING, 0),
    )


def _learning_state(app: "Application", models: Models) -> Mapping[str, object]:
    config = app.config
    shown = {
        "listen": models.shown_listener(config.listen, config.judge),
        "judge": models.shown(config.judge),
        "evolver": models.shown(config.evolver),
    }
    on = {"on": config.skills.learn, "gate": config.skills.gate}
    return {**on, **shown, **UNLEARNED, **app.learner.facts}


def _provider_facts(provider: Provider, embedded: "EmbeddedModel | None", health: ProviderHealth) -> ProviderFacts:
    failure = partial(health.last_failure, provider.name)
    if isinstance(provider, HttpEndpoint):
        wires = tuple(wire.value for wire in Wire if wire in provider.wires)
        return ProviderFacts(
            provider.name,
            provider.kind,
            wires,
            provider.models,
            lambda: f"open connections: {provider.open_connections}",
            failure,
            ProviderReachability(provider),
        )
    if embedded is not None and provider is embedded:
        return ProviderFacts(embedded.name, "embedded", (), embedded.models, lambda: embedded.state, failure)
    return ProviderFacts(provider.name, "policy", (), provider.models, lambda: "ready", failure)
