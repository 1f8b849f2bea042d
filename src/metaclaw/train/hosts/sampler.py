"""A training service's own sampler as a served model: a ModelProvider and its PolicyHost in one.

An answer is drawn whole and then told in deltas, with its exact tokens. While nothing has been told another provider may take over,
so a service that is down, or slow, costs a request no more than `answer_s`.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Final, Protocol

from metaclaw.domain.batch import Rollout
from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Delta,
    End,
    Finish,
    SampledTokens,
    TextDelta,
    TokenLogprob,
    Usage,
    Wire,
)
from metaclaw.domain.ids import new_id
from metaclaw.domain.policy import BASE_POLICY, Weights
from metaclaw.engine.frames import Generate
from metaclaw.engine.prompt import Prompt, build_prompt
from metaclaw.engine.text import Detokenizer, StopFinder, Vocabulary
from metaclaw.engine.toolcalls import CallParser
from metaclaw.engine.wishes import make_message
from metaclaw.errors import TrainingError, UpstreamError, WireError
from metaclaw.train.backends.service import Request
from metaclaw.upstream.failures import TIMEOUT, UNREACHABLE

log = logging.getLogger(__name__)

_ID_PREFIXES: Final = {Wire.CHAT: "chatcmpl-", Wire.RESPONSES: "resp_", Wire.MESSAGES: "msg_"}
_SEED_BITS: Final = 30


class Answering(Protocol):
    """A training service that answers: `backends.remote.RemoteBackend`."""

    async def answer(self, request: Request, weights: Weights | None) -> Rollout: ...
    async def release(self, weights: Weights) -> None: ...


class SamplerModel:
    """Versions of one model, answered by the service that trained them. `context_tokens` is the room for prompt and answer.

    Services know temperature, top_p, top_k, seed and stops; penalties are not applied.
    """

    def __init__(
        self,
        backend: Answering,
        vocabulary: Vocabulary,
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
        """Draw one token from a version, which makes it ready. Raises TrainingError, and changes nothing, if that fails."""
        if version <= BASE_POLICY:
            raise TrainingError(f"version {version} is not one of trained weights")
        known = self._versions.get(version)
        if known is not None and known.adapter != weights.adapter:
            raise TrainingError(f"version {version} is loaded with other weights, those in {known.adapter}")
        if known is None:
            prompt = tuple(self._vocabulary.render([("user", "Hello.")], ""))
            await self._backend.answer(Request(prompt, 1, 1, 1.0, 0), weights)
            self._versions[version] = weights
            log.info("version loaded provider=%s version=%d", self.name, version)

    async def unload(self, version: int) -> None:
        """Let a version go once its running answers are finished."""
        weights = self._versions.pop(version, None)
        if weights is None:
            return
        if self._running.get(version):
            await self._leaving.setdefault(version, asyncio.Event()).wait()
        await self._backend.release(weights)
        log.info("version unloaded provider=%s version=%d", self.name, version)

    async def generate(self, request: ChatRequest, version: int = BASE_POLICY) -> AsyncGenerator[Delta, None]:
        """Answer with these weights. Raises WireError, or UpstreamError for which another provider may stand in."""
        weights = self._weights(version)
        prompt = build_prompt(request)
        wishes = make_message(0, request, prompt)
        asked = await self._ask(request, prompt, wishes)
        rollout = await self._draw(version, asked, weights)
        spoken = _Spoken(self._vocabulary, rollout, wishes.stop)
        logprobs = spoken.logprobs() if request.sampling.logprobs else ()
        parser = CallParser(prompt.tool_names, prompt.beginning) if prompt.tool_names else None
        yield Begin(new_id(_ID_PREFIXES[request.wire]), self.models[0], Usage(len(asked.prompt), 0))
        said: Iterator[Delta] = iter([TextDelta(spoken.text, logprobs)] if spoken.text else [])
        if parser is not None:
            said = iter([*parser.push(spoken.text, logprobs), *parser.flush()])
        for delta in said:
            yield delta
        yield spoken.end(asked.prompt, request, called=parser is not None and parser.calls > 0)

    async def aclose(self) -> None:
        """The service is closed by whoever trains on it."""

    def _weights(self, version: int) -> Weights | None:
        if version == BASE_POLICY:
            return None
        if version not in self._versions:
            raise UpstreamError(f"version {version} is not loaded", status=503, retryable=True, code="version_not_loaded")
        return self._versions[version]

    async def _ask(self, request: ChatRequest, prompt: Prompt, wishes: Generate) -> Request:
        ids = await asyncio.to_thread(self._render, prompt)
        room = self._context_tokens - len(ids)
        if room < 1:
            raise WireError(
                f"the request has {len(ids)} tokens; this model has room for {self._context_tokens} with its answer",
                code="context_length_exceeded",
                param="messages",
            )
        said = request.sampling
        return Request(
            prompt=ids,
            count=1,
            max_tokens=min(room, wishes.max_tokens or self._max_tokens),
            # Where the caller does not say, the policy answers as it is trained: at temperature 1, from all of its words.
            temperature=1.0 if said.temperature is None else said.temperature,
            seed=secrets.randbits(_SEED_BITS) if wishes.seed is None else wishes.seed % (1 << _SEED_BITS),
            top_p=1.0 if said.top_p is None else said.top_p,
            top_k=wishes.top_k,
        )

    def _render(self, prompt: Prompt) -> tuple[int, ...]:
        try:
            for _, text in prompt.turns:
                text.encode()
        except UnicodeEncodeError as error:
            raise WireError("the request holds text that is not Unicode (half of a surrogate pair)", param="messages") from error
        return tuple(self._vocabulary.render(prompt.turns, prompt.beginning))

    async def _draw(self, version: int, asked: Request, weights: Weights | None) -> Rollout:
        self._running[version] = self._running.get(version, 0) + 1
        try:
            async with asyncio.timeout(self._answer_s):
                return await self._backend.answer(asked, weights)
        except TimeoutError as error:
            message = f"provider {self.name} gave no answer within {self._answer_s:g} s"
            raise UpstreamError(message, status=504, retryable=True, code=TIMEOUT) from error
        except TrainingError as error:
            raise UpstreamError(f"provider {self.name}: {error}", status=503, retryable=True, code=UNREACHABLE) from error
        finally:
            self._finished(version)

    def _finished(self, version: int) -> None:
        self._running[version] -= 1
        if not self._running[version]:
            del self._running[version]
            if leaving := self._leaving.pop(version, None):
                leaving.set()


class _Spoken:
    """A rollout as text, up to a stop string if one came; then the tokens end with the one that completed it."""

    def __init__(self, vocabulary: Vocabulary, rollout: Rollout, stops: Sequence[str]) -> None:
        self._vocabulary = vocabulary
        self._rollout = rollout
        self._finder = StopFinder(stops)
        detokenizer = Detokenizer(vocabulary)
        self.text = ""
        self.count = 0
        for token in rollout.tokens_T:
            self.count += 1
            self.text += self._finder.push(detokenizer.push(token))
            if self._finder.found is not None:
                return
        self.text += self._finder.push(detokenizer.flush())
        self.text += self._finder.flush()

    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Each token with its own text; an end token has none."""
        pairs = zip(self._rollout.tokens_T[: self.count], self._rollout.logprobs_T[: self.count], strict=True)
        shown = ((self._vocabulary.decode([token]), logprob) for token, logprob in pairs)
        return tuple(TokenLogprob(text, logprob) for text, logprob in shown if text)

    def end(self, prompt: tuple[int, ...], request: ChatRequest, *, called: bool) -> End:
        """Why it ended, and its exact tokens."""
        found = self._finder.found
        is_cut = found is None and not self._rollout.is_whole
        finish = Finish.LENGTH if is_cut else Finish.TOOL_CALLS if called else Finish.STOP
        tokens, logprobs = self._rollout.tokens_T[: self.count], self._rollout.logprobs_T[: self.count]
        return End(
            finish=finish,
            usage=Usage(len(prompt), self.count),
            stop_sequence=found if found in request.sampling.stop else None,
            tokens=SampledTokens(prompt, tokens, logprobs),
        )
