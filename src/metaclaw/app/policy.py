"""What trains and serves weights, put together from `[policy]`: backend, host, slot, windows, and who stands still for whom."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from metaclaw.app.backends import Parts, Surroundings, build_parts
from metaclaw.config import Config, PolicyConfig
from metaclaw.domain.chat import Json
from metaclaw.domain.policy import BASE_POLICY
from metaclaw.domain.turn import TurnKind
from metaclaw.domain.window import Window
from metaclaw.engine import EmbeddedModel, Turnstile, is_whole
from metaclaw.schedule import ManualWindows, ScheduledWindows, SharedWindows, Traffic, build_windows, facts_of
from metaclaw.skills import Shelf
from metaclaw.store import Database, SqlLedger, SqlPolicies
from metaclaw.upstream import HttpEndpoint, Meter, PolicySlot

if TYPE_CHECKING:
    from metaclaw.learn.assembly import Learning
    from metaclaw.learn.slow import SlowLearning
    from metaclaw.learn.supervise import Supervisor

_ANSWER: Final = "an answer is being made"
_SHUT: Final = "the window is shut"
_SETTLE_S: Final = 0.2


class Attending:
    """Tells the turnstile and the scheduler of requests. Without a turnstile, training goes on while an answer is being made: it
    has its own processor."""

    def __init__(self, turnstile: Turnstile | None, traffic: Traffic) -> None:
        self._turnstile = turnstile
        self._traffic = traffic
        self._answers = 0

    def began(self, kind: TurnKind) -> None:
        """A request came in."""
        self._answers += 1
        if self._answers == 1 and self._turnstile is not None:
            self._turnstile.hold(_ANSWER)
        self._traffic.began(kind)

    def ended(self) -> None:
        """Its answer is out."""
        self._answers -= 1
        if self._answers == 0 and self._turnstile is not None:
            self._turnstile.release(_ANSWER)
        self._traffic.ended()


class Policy:
    """The parts that must be there before the first request; `build` adds those that learn."""

    def __init__(
        self,
        config: Config,
        policy: PolicyConfig,
        *,
        home: Path,
        ledger: SqlLedger,
        embedded: EmbeddedModel | None,
        model_folder: Path,
        providers: Mapping[str, HttpEndpoint],
        meter: Meter,
    ) -> None:
        self._config = config
        self._policy = policy
        self._ledger = ledger
        self._embedded = embedded
        self._folder = home / "policies"
        self._telling: set[asyncio.Task[bool]] = set()
        self.turnstile = Turnstile(settle_s=_SETTLE_S)
        traffic = Traffic()
        self.windows: ScheduledWindows | ManualWindows = build_windows(config, traffic, home=home, announce=self._announce)
        around = Surroundings(self._folder, self.turnstile, embedded, model_folder, providers, self._in_use, meter)
        self.parts: Parts = build_parts(config, policy, around)
        # What serves beside vLLM or SGLang may use the same GPU: it waits for windows.
        has_own_processor = self.parts.backend.abilities.has_own_processor and policy.serve == "backend"
        self._shared: SharedWindows | None = None
        if has_own_processor and policy.train_share > 0.0 and isinstance(self.windows, ScheduledWindows):
            self._shared = SharedWindows(self.windows, policy.train_share)
        self._training_windows = self._shared or self.windows
        if self._training_windows.window is None:
            self.turnstile.hold(_SHUT)
        self._training_windows.on_change(self._window_changed)
        is_beside = has_own_processor and policy.train_share > 0.0
        self.attendant = Attending(None if is_beside else self.turnstile, traffic)
        self.slot = PolicySlot(self.parts.provider, self.parts.model_of, leads=self.parts.serves is not None)

    def restore(self, database: Database) -> None:
        """Before the engine is started: the weights that served are to serve from the first request on. Blocks."""
        policies = SqlPolicies(database)
        serving = policies.serving(self._policy.canary_share)
        if self.parts.host is not self._embedded:
            return  # another host is asked for them once it can be reached
        found = serving.version
        while found != BASE_POLICY and not self._expects(policies, found):
            found = policies.before(found)
        canary = serving.canary if serving.canary is not None and self._expects(policies, serving.canary) else None
        self.slot.flip(replace(serving, version=found, canary=canary))

    def _expects(self, policies: SqlPolicies, number: int) -> bool:
        """Whether the engine is to be ready with this version. One that is not all there is left to those who tell of it; nobody is
        to wait for it meanwhile."""
        version = policies.version(number)
        if version is None or self._embedded is None or not is_whole(Path(version.weights.adapter)):
            return False
        self._embedded.expect(version.number, version.weights)
        return True

    def build(self, learning: "Learning", database: Database, shelf: Shelf) -> "SlowLearning":
        """The slow loop; it is begun by whoever has a supervisor."""
        from metaclaw.learn.slow import SlowLearning

        return SlowLearning(
            self._config,
            self._policy,
            learning=learning,
            database=database,
            shelf=shelf,
            slot=self.slot,
            host=self.parts.host,
            backend=self.parts.backend,
            tokeniser=self.parts.tokeniser,
            windows=self._training_windows,
            open_window=self.windows.open,
            folder=self._folder,
            teacher=self.parts.teacher,
        )

    def begin(self, supervisor: "Supervisor") -> None:
        """Start to look at who is there."""
        if isinstance(self.windows, ScheduledWindows):
            supervisor.run("windows", self.windows.run)
        if self._shared is not None:
            supervisor.run("share of the time", self._shared.run)

    def facts(self) -> dict[str, object]:
        """What the windows say, for people."""
        return facts_of(self.windows) if isinstance(self.windows, ScheduledWindows) else self.windows.facts()

    async def aclose(self) -> None:
        """End what trains; what it had on disk stays."""
        await self.parts.backend.aclose()

    def _in_use(self) -> frozenset[int]:
        serving = self.slot.serving
        return frozenset(number for number in (serving.version, serving.canary) if number)

    def _announce(self, kind: str, data: Mapping[str, object]) -> None:
        """Every opening and shutting is an event. Nobody waits for it to be on disk."""
        task = asyncio.get_running_loop().create_task(self._ledger.announce(kind, cast("dict[str, Json]", dict(data))))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def _window_changed(self, window: Window | None) -> None:
        if window is None:
            self.turnstile.hold(_SHUT)
        else:
            self.turnstile.release(_SHUT)
