"""Training and serving of weights, built from `[policy]`: backend, host, slot, windows, and pauses
of training during answers.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from metaclaw.config import Config, PolicyConfig
from metaclaw.domain.chat import Json
from metaclaw.domain.policy import BASE_POLICY
from metaclaw.domain.training import Window
from metaclaw.domain.turn import TurnKind
from metaclaw.engine import (
    EmbeddedModel,
    EmbeddedTrainer,
    FolderTokeniser,
    ModelPlace,
    TrainingPause,
    is_complete_adapter,
)
from metaclaw.errors import ConfigError, TrainingError
from metaclaw.hooks import MODEL_HOSTS, TRAINING_SERVICES, call_plugin
from metaclaw.ports import ModelProvider, PolicyHost, Tokeniser, TrainingBackend
from metaclaw.schedule import (
    ManualWindows,
    ScheduledWindows,
    SharedWindows,
    Traffic,
    build_windows,
)
from metaclaw.skills import SkillLibrary
from metaclaw.store import Database, PolicyFiles, SqlLedger, SqlPolicies
from metaclaw.training import (
    HostSettings,
    ModelHost,
    PausedServer,
    RemoteBackend,
    Service,
    ServiceHost,
    ServiceSettings,
    TokenModel,
)
from metaclaw.upstream import HttpEndpoint, PolicySlot

if TYPE_CHECKING:
    from metaclaw.engine import Vocabulary
    from metaclaw.learn import Learning, Supervisor
    from metaclaw.training import SlowLearning

log = logging.getLogger(__name__)

_ANSWER: Final = "an answer is being made"
_SHUT: Final = "the window is shut"
_SETTLE_S: Final = 0.2


class RequestObserver:
    """Pauses training during requests and tells the scheduler of them. Without a pause, training
    has its own processor.
    """

    def __init__(self, training_pause: TrainingPause | None, traffic: Traffic) -> None:
        self._training_pause = training_pause
        self._traffic = traffic
        self._answers = 0

    def began(self, kind: TurnKind) -> None:
        """A request came in."""
        self._answers += 1
        if self._answers == 1 and self._training_pause is not None:
            self._training_pause.hold(_ANSWER)
        self._traffic.began(kind)

    def ended(self) -> None:
        """Its answer is out."""
        self._answers -= 1
        if self._answers == 0 and self._training_pause is not None:
            self._training_pause.release(_ANSWER)
        self._traffic.ended()


class PolicyRuntime:
    """What must be there before the first request; `build` adds what trains."""

    def __init__(
        self,
        config: Config,
        policy: PolicyConfig,
        *,
        home: Path,
        ledger: SqlLedger,
        embedded: EmbeddedModel | None,
        model: ModelPlace,
        providers: Mapping[str, HttpEndpoint],
    ) -> None:
        self._config = config
        self._policy = policy
        self._ledger = ledger
        self._embedded = embedded
        self._folder = home / "policies"
        self._telling: set[asyncio.Task[bool]] = set()
        self.training_pause = TrainingPause(settle_s=_SETTLE_S)
        traffic = Traffic()
        self.windows: ScheduledWindows | ManualWindows = build_windows(
            config, traffic, home=home, announce=self._announce
        )
        around = PolicyEnvironment(
            self._folder,
            self.training_pause,
            embedded,
            model,
            providers,
            self._in_use,
        )
        self.parts: PolicyParts = build_parts(config, policy, around)
        # A server of weights may use the same GPU as training, which then waits for windows.
        has_own_processor = (
            self.parts.backend.abilities.has_own_processor and policy.serve == "backend"
        )
        self._shared: SharedWindows | None = None
        if (
            has_own_processor
            and policy.train_share > 0.0
            and isinstance(self.windows, ScheduledWindows)
        ):
            self._shared = SharedWindows(self.windows, policy.train_share)
        self._training_windows = self._shared or self.windows
        if self._training_windows.window is None:
            self.training_pause.hold(_SHUT)
        self._training_windows.on_change(self._window_changed)
        is_beside = has_own_processor and policy.train_share > 0.0
        self.attendant = RequestObserver(None if is_beside else self.training_pause, traffic)
        self.slot = PolicySlot(
            self.parts.provider, self.parts.model_of, leads=self.parts.serves is not None
        )

    def restore(self, database: Database) -> None:
        """Have the weights that served last serve from the first request on; call it before the
        engine starts. Blocks.
        """
        policies = SqlPolicies(database)
        serving = policies.serving()
        if self.parts.host is not self._embedded:
            return  # another host is asked for them once it can be reached
        found = serving.version
        files = PolicyFiles(database, self._folder)
        while found != BASE_POLICY and not self._expects(policies, files, found):
            found = policies.before(found)
        self.slot.flip(replace(serving, version=found))

    def _expects(self, policies: SqlPolicies, files: PolicyFiles, number: int) -> bool:
        """Have the engine load this version at its start; False if its files are incomplete."""
        version = policies.version(number)
        if version is None or self._embedded is None:
            return False
        try:
            weights = files.local(version)
        except TrainingError as error:
            log.warning("weights_not_copied version=%d reason=%s", number, error)
            return False
        if not is_complete_adapter(Path(weights.adapter)):
            return False
        self._embedded.expect(version.number, weights)
        return True

    def build(
        self, learning: "Learning", database: Database, library: SkillLibrary
    ) -> "SlowLearning":
        """The slow loop, not started yet."""
        from metaclaw.training import SlowLearning

        return SlowLearning(
            self._config,
            self._policy,
            learning=learning,
            database=database,
            library=library,
            slot=self.slot,
            host=self.parts.host,
            backend=self.parts.backend,
            tokeniser=self.parts.tokeniser,
            windows=self._training_windows,
            open_window=self.windows.open,
            folder=self._folder,
            server=self.parts.server,
        )

    def begin(self, supervisor: "Supervisor") -> None:
        """Start the loops that decide when training may run."""
        if isinstance(self.windows, ScheduledWindows):
            supervisor.run("windows", self.windows.run)
        if self._shared is not None:
            supervisor.run("share of the time", self._shared.run)

    def facts(self) -> dict[str, object]:
        """The state of the windows, for `status`."""
        return self.windows.facts()

    async def aclose(self) -> None:
        """End the training backend; what it has on disk stays."""
        await self.parts.backend.aclose()

    def _in_use(self) -> frozenset[int]:
        return frozenset({self.slot.serving.version} - {BASE_POLICY})

    def _announce(self, kind: str, data: Mapping[str, object]) -> None:
        """Append an event when a window opens or shuts, without waiting for it."""
        task = asyncio.get_running_loop().create_task(
            self._ledger.announce(kind, cast("dict[str, Json]", dict(data)))
        )
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def _window_changed(self, window: Window | None) -> None:
        if window is None:
            self.training_pause.hold(_SHUT)
        else:
            self.training_pause.release(_SHUT)


_RELEASE_MEMORY_AFTER_S: Final = 600.0
_NICE: Final = 10
"""Lower priority than other programs, but not starved: `TrainingPause` protects answers, not
this.
"""
SERVICE: Final = "policy"
"""The name of the provider for a training service's own sampler."""


@dataclass(frozen=True, slots=True)
class PolicyEnvironment:
    """What the parts are built from. `in_use` returns the versions that serve, which no host may
    unload.
    """

    folder: Path
    training_pause: TrainingPause
    embedded: EmbeddedModel | None
    model: ModelPlace
    providers: Mapping[str, HttpEndpoint]
    in_use: Callable[[], frozenset[int]]


@dataclass(frozen=True, slots=True)
class PolicyParts:
    """Backend, host and tokeniser. `provider` is the name of the provider that answers with trained
    weights; `serves` is that provider if it is not in the configuration. `server` draws rollouts for
    the backend."""

    backend: TrainingBackend
    host: PolicyHost
    tokeniser: Tokeniser
    provider: str
    model_of: Callable[[int], str] | None = None
    serves: ModelProvider | None = None
    server: PausedServer | None = None


def build_parts(config: Config, policy: PolicyConfig, around: PolicyEnvironment) -> PolicyParts:
    """The parts that the configuration asks for. Raises ConfigError."""
    return _embedded(config, policy, around) if policy.backend == "embedded" else _service(policy)


def _embedded(config: Config, policy: PolicyConfig, around: PolicyEnvironment) -> PolicyParts:
    trainer = EmbeddedTrainer(
        around.model.folder,
        around.folder,
        training_pause=around.training_pause,
        convert=around.model.convert,
        threads=config.engine.threads or None,
        device=policy.device,
        nice=_NICE,
        release_memory_after_s=_RELEASE_MEMORY_AFTER_S,
    )
    tokeniser = FolderTokeniser(around.model.folder)
    if policy.serve != "backend":
        return _served_elsewhere(config, policy, around, trainer, tokeniser)
    if around.embedded is None:
        raise ConfigError(
            'policy.backend = "embedded" needs the embedded model among the providers'
        )
    return PolicyParts(trainer, around.embedded, tokeniser, around.embedded.name)


def _served_elsewhere(
    config: Config,
    policy: PolicyConfig,
    around: PolicyEnvironment,
    backend: TrainingBackend,
    tokeniser: Tokeniser,
) -> PolicyParts:
    """A server among the providers that loads adapters while it runs."""
    named = next(one for one in config.providers if one.name == policy.provider)
    base = named.models[0] if named.models else policy.base_model or named.name

    @cache
    def vocabulary() -> "Vocabulary":
        from metaclaw.engine import Vocabulary

        return Vocabulary(policy.tokenizer or around.model.folder)

    provider = around.providers[named.name].at_root()
    settings = HostSettings(provider, base, around.in_use, vocabulary)
    served = cast(ModelHost, call_plugin(MODEL_HOSTS, policy.serve, settings))
    return PolicyParts(
        backend,
        served.host,
        tokeniser,
        named.name if served.serves is None else SERVICE,
        served.model_of,
        served.serves,
        None if served.draws is None else PausedServer(served.draws, around.training_pause),
    )


def _service(policy: PolicyConfig) -> PolicyParts:
    """A training service and its own sampler. Its SDK is loaded only here."""
    if policy.serve != "backend":
        raise ConfigError(
            f'policy.serve = "{policy.serve}" needs backend = "embedded": the weights of backend ='
            f' "{policy.backend}" stay with it'
        )
    from metaclaw.engine import Vocabulary

    assert policy.tokenizer is not None
    assert policy.base_model is not None
    vocabulary = Vocabulary(policy.tokenizer)
    key = None if policy.api_key is None else policy.api_key.resolve()
    settings = ServiceSettings(policy.base_model, vocabulary.end_ids, policy.base_url, key)
    service = cast(Service, call_plugin(TRAINING_SERVICES, policy.backend, settings))
    backend = RemoteBackend(service, vocabulary.decode, end_ids=vocabulary.end_ids)
    host = ServiceHost(backend, tuple(vocabulary.render([("user", "Hello.")], "")))
    model = TokenModel(host, lambda: vocabulary, policy.base_model, name=SERVICE)
    return PolicyParts(backend, host, FolderTokeniser(policy.tokenizer), SERVICE, serves=model)
