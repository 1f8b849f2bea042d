"""What trains and serves weights, put together from `[policy]`: backend, host, slot, windows, and who stands still for whom."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from metaclaw.config import Config, PolicyConfig
from metaclaw.domain.turn import TurnKind
from metaclaw.domain.window import Window
from metaclaw.engine import EmbeddedModel, EmbeddedTrainer, FolderTokeniser, Turnstile
from metaclaw.errors import ConfigError
from metaclaw.ports import PolicyHost, Tokeniser, TrainingBackend
from metaclaw.schedule import HandOpened
from metaclaw.skills import Shelf
from metaclaw.store import Database, SqlPolicies
from metaclaw.upstream import PolicySlot

if TYPE_CHECKING:
    from metaclaw.learn.assembly import Learning
    from metaclaw.learn.slow.assembly import SlowLearning

_ANSWER: Final = "an answer is being made"
_SHUT: Final = "the window is shut"
_SETTLE_S: Final = 0.2
_RELEASE_MEMORY_AFTER_S: Final = 600.0
_NICE: Final = 10
"""Behind whatever else the machine does, but not starved by it: answers are protected by the turnstile, not by this."""


class Attending:
    """Tells the turnstile of requests: nobody trains while an answer is being made."""

    def __init__(self, turnstile: Turnstile) -> None:
        self._turnstile = turnstile
        self._answers = 0

    def began(self, kind: TurnKind) -> None:
        """A request came in."""
        self._answers += 1
        if self._answers == 1:
            self._turnstile.hold(_ANSWER)

    def ended(self) -> None:
        """Its answer is out."""
        self._answers -= 1
        if self._answers == 0:
            self._turnstile.release(_ANSWER)


class Policy:
    """The parts that must be there before the first request; `build` adds those that learn."""

    def __init__(
        self, config: Config, policy: PolicyConfig, home: Path, embedded: EmbeddedModel | None, model_folder: Path
    ) -> None:
        self._config = config
        self._policy = policy
        self._embedded = embedded
        self._folder = home / "policies"
        self.turnstile = Turnstile(settle_s=_SETTLE_S)
        self.attendant = Attending(self.turnstile)
        self.windows = self._open_windows()
        self.host, self.backend, self.tokeniser = self._parts(embedded, model_folder)
        self.slot = PolicySlot(embedded.name if embedded is not None else "policy")

    def restore(self, database: Database) -> None:
        """Before the engine is started: the weights that served are to serve from the first request on. Blocks."""
        policies = SqlPolicies(database)
        serving = policies.serving(self._policy.canary_share)
        for number in (serving.version, serving.canary):
            version = None if number is None else policies.version(number)
            if version is not None and self._embedded is not None:
                self._embedded.expect(version.number, version.weights)
        self.slot.flip(serving)

    def build(self, learning: "Learning", database: Database, shelf: Shelf) -> "SlowLearning":
        """The slow loop; it is begun by whoever has a supervisor."""
        from metaclaw.learn.slow.assembly import SlowLearning

        return SlowLearning(
            self._config,
            self._policy,
            learning=learning,
            database=database,
            shelf=shelf,
            slot=self.slot,
            host=self.host,
            backend=self.backend,
            tokeniser=self.tokeniser,
            windows=self.windows,
            open_window=self.windows.open,
            folder=self._folder,
        )

    async def aclose(self) -> None:
        """End what trains; what it had on disk stays."""
        await self.backend.aclose()

    def _open_windows(self) -> HandOpened:
        windows = HandOpened()
        windows.on_change(self._window_changed)
        self.turnstile.hold(_SHUT)
        if self._policy.mode == "rl":
            windows.open("mode rl trains whenever a batch is full")
        return windows

    def _window_changed(self, window: Window | None) -> None:
        if window is None:
            self.turnstile.hold(_SHUT)
        else:
            self.turnstile.release(_SHUT)

    def _parts(self, embedded: EmbeddedModel | None, model_folder: Path) -> tuple[PolicyHost, TrainingBackend, Tokeniser]:
        policy, engine = self._policy, self._config.engine
        if policy.backend != "embedded" or embedded is None:
            raise ConfigError(f"policy.backend = {policy.backend!r} cannot be served by this program yet")
        trainer = EmbeddedTrainer(
            model_folder,
            self._folder,
            turnstile=self.turnstile,
            convert=policy.base_model is None,
            threads=engine.threads or None,
            device=policy.device,
            nice=_NICE,
            release_memory_after_s=_RELEASE_MEMORY_AFTER_S,
        )
        return embedded, trainer, FolderTokeniser(model_folder)
