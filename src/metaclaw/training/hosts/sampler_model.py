"""A training service's sampler as a served model: a ModelProvider and its PolicyHost in one.

An answer is drawn as a whole and then sent in deltas, with its exact tokens. Until the first delta
another provider can take over, so a service that is down or slow delays a request by at most
`answer_s`."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Protocol

from metaclaw.domain.chat import Begin, ChatRequest, Delta, Usage
from metaclaw.domain.ids import new_id
from metaclaw.domain.policy import BASE_POLICY, Weights
from metaclaw.domain.training import Rollout
from metaclaw.engine import build_prompt, make_message
from metaclaw.errors import TrainingError, UpstreamError
from metaclaw.training.backends.service import SampleRequest
from metaclaw.training.hosts.token_reply import TokenReply, token_request
from metaclaw.upstream import TIMEOUT, UNREACHABLE
from metaclaw.wires import wire_format

if TYPE_CHECKING:
    from metaclaw.engine import Vocabulary

log = logging.getLogger(__name__)


class Answering(Protocol):
    """The part of `backends.remote.RemoteBackend` that answers requests."""

    async def answer(self, request: SampleRequest, weights: Weights | None) -> Rollout: ...
    async def release(self, weights: Weights) -> None: ...


class SamplerModel:
    """Versions of one model, answered by the service that trained them. `context_tokens` limits
    prompt and answer together.

    Services support temperature, top_p, top_k, seed and stops; penalties are not applied.
    """

    def __init__(
        self,
        backend: Answering,
        vocabulary: "Vocabulary",
        model: str,
        *,
        name: str = "policy",
        context_tokens: int = 8192,
        max_tokens: int = 1024,
        answer_s: float = 120.0,
    ) -> None:
        self.name = name
        self.models = (model,)
        self._backend = backend
        self._vocabulary = vocabulary
        self._context_tokens = context_tokens
        self._max_tokens = max_tokens
        self._answer_s = answer_s
        self._versions: dict[int, Weights] = {}
        self._running: dict[int, int] = {}
        self._leaving: dict[int, asyncio.Event] = {}

    @property
    def loaded(self) -> frozenset[int]:
        """The versions that can be asked for."""
        return frozenset(self._versions)

    async def load(self, version: int, weights: Weights) -> None:
        """Draw one token from a version, which makes it ready. Raises TrainingError and changes
        nothing if that fails.
        """
        if version <= BASE_POLICY:
            raise TrainingError(f"version {version} has no trained weights")
        known = self._versions.get(version)
        if known is not None and known.adapter != weights.adapter:
            raise TrainingError(
                f"version {version} is loaded with other weights, from {known.adapter}"
            )
        if known is None:
            prompt = tuple(self._vocabulary.render([("user", "Hello.")], ""))
            await self._backend.answer(SampleRequest(prompt, 1, 1, 1.0, 0), weights)
            self._versions[version] = weights
            log.info("version loaded provider=%s version=%d", self.name, version)

    async def unload(self, version: int) -> None:
        """Unload a version once its running answers are finished."""
        weights = self._versions.pop(version, None)
        if weights is None:
            return
        if self._running.get(version):
            await self._leaving.setdefault(version, asyncio.Event()).wait()
        await self._backend.release(weights)
        log.info("version unloaded provider=%s version=%d", self.name, version)

    async def generate(
        self, request: ChatRequest, version: int = BASE_POLICY
    ) -> AsyncGenerator[Delta, None]:
        """Answer with this version. Raises WireError, or UpstreamError, after which another
        provider may answer.
        """
        weights = self._weights(version)
        prompt = build_prompt(request)
        options = make_message(0, request, prompt)
        asked = await token_request(
            request,
            prompt,
            options,
            self._vocabulary,
            context_tokens=self._context_tokens,
            max_tokens=self._max_tokens,
        )
        rollout = await self._draw(version, asked, weights)
        reply = TokenReply(self._vocabulary, request, prompt, asked.prompt, options.stop)
        yield Begin(
            new_id(wire_format(request.wire).id_prefix), self.models[0], Usage(len(asked.prompt), 0)
        )
        for delta in (*reply.push(rollout.tokens_T, rollout.logprobs_T), *reply.finish()):
            yield delta
        yield reply.end(is_whole=rollout.is_whole)

    async def aclose(self) -> None:
        """The training backend closes the service."""

    def _weights(self, version: int) -> Weights | None:
        if version == BASE_POLICY:
            return None
        if version not in self._versions:
            raise UpstreamError(
                f"version {version} is not loaded",
                status=503,
                retryable=True,
                code="version_not_loaded",
            )
        return self._versions[version]

    async def _draw(self, version: int, asked: SampleRequest, weights: Weights | None) -> Rollout:
        self._running[version] = self._running.get(version, 0) + 1
        try:
            async with asyncio.timeout(self._answer_s):
                return await self._backend.answer(asked, weights)
        except TimeoutError as error:
            message = f"provider {self.name} gave no answer within {self._answer_s:g} s"
            raise UpstreamError(message, status=504, retryable=True, code=TIMEOUT) from error
        except TrainingError as error:
            raise UpstreamError(
                f"provider {self.name}: {error}", status=503, retryable=True, code=UNREACHABLE
            ) from error
        finally:
            self._finished(version)

    def _finished(self, version: int) -> None:
        self._running[version] -= 1
        if not self._running[version]:
            del self._running[version]
            if leaving := self._leaving.pop(version, None):
                leaving.set()
