"""A training service's sampler as a host of versions and a source of their tokens.

An answer is drawn as a whole. A service that is down or slow delays a request by at most
`answer_s`."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator

from metaclaw.domain.policy import BASE_POLICY, Weights
from metaclaw.domain.training import Rollout
from metaclaw.errors import TrainingError, UpstreamError
from metaclaw.training.backends.remote import RemoteBackend
from metaclaw.training.backends.service import SampleRequest
from metaclaw.training.hosts.token_model import LOST, TokenPiece, check_weights
from metaclaw.upstream import TIMEOUT, UNREACHABLE

log = logging.getLogger(__name__)


class ServiceHost:
    """Versions of one model (ports.PolicyHost, TokenSource), answered by the service that trained
    them. `hello` is a short prompt; `context_tokens` limits prompt and answer together.
    """

    def __init__(
        self,
        backend: RemoteBackend,
        hello: tuple[int, ...],
        *,
        context_tokens: int = 8192,
        answer_s: float = 120.0,
    ) -> None:
        self._backend = backend
        self._hello = hello
        self._context_tokens = context_tokens
        self._answer_s = answer_s
        self._versions: dict[int, Weights] = {}
        self._running = Counter[int]()
        self._is_idle = asyncio.Condition()

    @property
    def loaded(self) -> frozenset[int]:
        """The versions that can be asked for."""
        return frozenset(self._versions)

    async def load(self, version: int, weights: Weights) -> None:
        """Draw one token from a version, which makes it ready. Raises TrainingError and changes
        nothing if that fails.
        """
        if not check_weights(self._versions, version, weights):
            await self._backend.answer(SampleRequest(self._hello, 1, 1, 1.0, 0), weights)
            self._versions[version] = weights
            log.info("version loaded version=%d", version)

    async def unload(self, version: int) -> None:
        """Unload a version once its running answers are finished."""
        weights = self._versions.pop(version, None)
        if weights is None:
            return
        async with self._is_idle:
            await self._is_idle.wait_for(lambda: not self._running[version])
        await self._backend.discard(weights)
        log.info("version unloaded version=%d", version)

    async def context_tokens(self) -> int:
        return self._context_tokens

    async def stream(
        self, version: int, request: SampleRequest
    ) -> AsyncGenerator[TokenPiece, None]:
        """The whole answer, in one piece. Raises UpstreamError."""
        if version not in self._versions and version != BASE_POLICY:
            raise UpstreamError(
                f"version {version} is not loaded", status=503, retryable=True, code=LOST
            )
        rollout = await self._draw(version, request)
        finish = "stop" if rollout.is_whole else "length"
        yield TokenPiece(0, rollout.tokens_T, rollout.logprobs_T, finish)

    async def _draw(self, version: int, request: SampleRequest) -> Rollout:
        self._running[version] += 1
        try:
            async with asyncio.timeout(self._answer_s):
                return await self._backend.answer(request, self._versions.get(version))
        except TimeoutError as error:
            message = f"the training service gave no answer within {self._answer_s:g} s"
            raise UpstreamError(message, status=504, retryable=True, code=TIMEOUT) from error
        except TrainingError as error:
            raise UpstreamError(str(error), status=503, retryable=True, code=UNREACHABLE) from error
        finally:
            self._running[version] -= 1
            async with self._is_idle:
                self._is_idle.notify_all()
