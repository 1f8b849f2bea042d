"""Learning in the serving process: a person's actions on skills and sessions, and the training of
weights.

Both load much code and are built at their first use; the other loops of learning run in the learner
process."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from metaclaw.api import UNTRAINED, PolicyOwner
from metaclaw.config import Config
from metaclaw.domain.ids import SessionId
from metaclaw.errors import MetaClawError
from metaclaw.learn import Budget, Supervisor
from metaclaw.ports import ModelProvider
from metaclaw.proxy import own_words
from metaclaw.skills import SkillLibrary
from metaclaw.store import Database, SqlForgetting, SqlLedger
from metaclaw.upstream import HttpEndpoint

if TYPE_CHECKING:
    from metaclaw.app.policy import PolicyRuntime
    from metaclaw.learn import Learning, OwnerActions
    from metaclaw.training import SlowLearning

log = logging.getLogger(__name__)

_STARTING: Mapping[str, object] = {
    "state": "starting",
    "step": None,
    "version": None,
    "paused_reason": None,
}
_ELSEWHERE: Mapping[str, object] = {
    "state": "off",
    "paused_reason": "another proxy on this store leads the training",
}
_LOOK_EVERY_S: Final = 5.0
_TIDY_EVERY: Final = 120


@dataclass(eq=False)
class LazyLearning:
    """Builds what learns in this process when it is first needed."""

    config: Config
    policies_folder: Path
    database: Database
    ledger: SqlLedger
    library: SkillLibrary
    providers: Sequence[HttpEndpoint | ModelProvider]
    budget: Budget
    policy: "PolicyRuntime | None"
    wake_learner: Callable[[], None]
    forget_session: Callable[[SessionId], None]
    is_leading: Callable[[], Awaitable[bool]]
    """Whether this program trains, of those on the store."""
    is_alone: bool = False
    """Whether no other process uses the store, so that it may be compacted."""

    def __post_init__(self) -> None:
        self._building = anyio.Lock()
        self._learning: Learning | None = None
        self._owner: OwnerActions | None = None
        self._slow: SlowLearning | None = None
        self._slow_began = anyio.Event()

    async def owner(self) -> "OwnerActions":
        """The actions of a person on skills and sessions."""
        async with self._building:
            if self._owner is None:
                self._owner = await anyio.to_thread.run_sync(self._build_owner)
            return self._owner

    async def trainer(self) -> PolicyOwner | None:
        """The training of weights; None where no policy is configured."""
        if self.policy is None:
            return None
        slow = await self._weights(self.policy)
        if await self.is_leading():
            await self._slow_began.wait()
        return slow

    async def finish_forgetting(self) -> None:
        """Finish what was being forgotten when the program last ended."""
        try:
            if await anyio.to_thread.run_sync(SqlForgetting(self.database).is_unfinished):
                await (await self.owner()).finish_forgetting()
        except MetaClawError as error:
            log.warning("forgetting_unfinished reason=%s; forget the session again", error)

    async def run_training(self, policy: "PolicyRuntime", supervisor: Supervisor) -> None:
        """Start the training of weights, and wait until cancelled."""
        slow = await self._weights(policy)
        slow.begin(supervisor)
        policy.begin(supervisor)
        self._slow_began.set()
        try:
            await anyio.sleep_forever()
        finally:
            slow.is_training = False

    async def serve_weights(self, policy: "PolicyRuntime") -> None:
        """Serve the weights that the store says, while another program trains them."""
        followed: int | None = None
        for look in count():
            await anyio.sleep(_LOOK_EVERY_S)
            slow, generation = await self._weights(policy), self.library.view.generation
            if slow.is_training:
                followed = None
            elif followed != generation or slow.versions.has_lost_some:
                await slow.versions.restore()
                followed = generation
            if look % _TIDY_EVERY == 0:
                await anyio.to_thread.run_sync(slow.remove_given_up)

    async def follow_weights(self) -> None:
        """Serve what the store says now."""
        if self._slow is not None:
            await self._slow.versions.restore()

    async def train_if_leading(self) -> None:
        """Begin to train, because a person asked another program for it."""
        if self._slow is not None and self._slow.is_training:
            await self._slow.train()

    async def _weights(self, policy: "PolicyRuntime") -> "SlowLearning":
        async with self._building:
            if self._slow is None:
                self._slow = await anyio.to_thread.run_sync(
                    lambda: policy.build(self._parts(), self.database, self.library)
                )
                self._slow.is_training = False  # until `run_training`
            return self._slow

    def training_state(self) -> Mapping[str, object]:
        """The state of training, for `status`."""
        if self.policy is None:
            return UNTRAINED
        if self._slow is None:
            return _STARTING
        state = self._slow.training()
        return state if self._slow.is_training else {**state, **_ELSEWHERE}

    def rejections(self) -> Mapping[str, int]:
        """How many turns may not train, by reason. Blocks."""
        return (
            {}
            if self._slow is None
            else {reason.value: count for reason, count in self._slow.turns.rejections().items()}
        )

    def learning_curve(self) -> Sequence[float]:
        """The learning curve of the newest training run. Blocks."""
        if self.policy is None:
            return ()
        from metaclaw.training import newest_curve

        return newest_curve(self.policies_folder)

    def _parts(self) -> "Learning":
        from metaclaw.learn import Learning

        if self._learning is None:
            self._learning = Learning(
                self.config,
                database=self.database,
                announce=self.ledger.announce,
                library=self.library,
                providers=self.providers,
                words=own_words,
                budget=self.budget,
            )
        return self._learning

    def _build_owner(self) -> "OwnerActions":
        from metaclaw.learn import SessionErasure, owner_of

        return owner_of(
            self._parts(),
            self.library,
            SessionErasure(
                self.database, self.library, self.policies_folder, is_alone=self.is_alone
            ),
            on_failure=self.wake_learner,
            on_forget=self.forget_session,
            serve=self._stop_serving,
        )

    async def _stop_serving(self, batches: Sequence[int]) -> None:
        """Stop serving weights that were trained on these batches."""
        if self.policy is not None:
            await (await self._weights(self.policy)).forget(batches)
