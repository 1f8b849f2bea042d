"""A model whose answers are drawn in tokens: requests become tokens, and drawn tokens become deltas
of text and tool calls. The tokens come from a server or a training service (TokenSource)."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

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
)
from metaclaw.domain.ids import new_id
from metaclaw.domain.policy import BASE_POLICY, Weights
from metaclaw.engine import CallParser, Generate, Prompt, build_prompt, make_message
from metaclaw.errors import TrainingError, UpstreamError, WireError
from metaclaw.training.backends.service import SEED_BITS, SampleRequest
from metaclaw.upstream import MALFORMED
from metaclaw.wires import wire_format

if TYPE_CHECKING:
    from metaclaw.engine import Vocabulary

LOST: Final = "version_not_loaded"
"""The code of the error for a version that is not loaded."""


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """Tokens of answer `index`, with their log-probabilities at temperature 1 (at most zero, though
    half precision rounds some to slightly more). `finish` is set with the last ones."""

    index: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str | None = None

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.tokens):
            raise ValueError(
                f"{len(self.logprobs)} log-probabilities came for {len(self.tokens)} tokens"
            )
        object.__setattr__(self, "logprobs", tuple(min(value, 0.0) for value in self.logprobs))

    @property
    def is_whole(self) -> bool:
        """Whether the limit of tokens did not end the answer."""
        return self.finish != "length"


class TokenSource(Protocol):
    """Draws answers of versions. Both raise UpstreamError."""

    async def context_tokens(self) -> int:
        """The limit on the tokens of a prompt and its answer together."""

    def stream(self, version: int, request: SampleRequest) -> AsyncGenerator[TokenPiece, None]: ...


class TokenModel:
    """A provider (ports.ModelProvider) with versions of one model. `vocabulary` reads its tokens at
    the first request.

    Until the first delta another provider can take over. Temperature, top_p, top_k, seed and stops
    are supported; penalties are not applied."""

    def __init__(
        self,
        source: TokenSource,
        vocabulary: "Callable[[], Vocabulary]",
        model: str,
        *,
        name: str = "policy",
        max_tokens: int = 1024,
    ) -> None:
        self.name = name
        self.models = (model,)
        self._source = source
        self._vocabulary = vocabulary
        self._max_tokens = max_tokens

    async def generate(
        self, request: ChatRequest, version: int = BASE_POLICY
    ) -> AsyncGenerator[Delta, None]:
        """Answer with this version. Raises WireError, or UpstreamError, after which another
        provider may answer.
        """
        prompt, vocabulary = build_prompt(request), self._vocabulary()
        options = make_message(0, request, prompt)
        asked = await token_request(
            request,
            prompt,
            options,
            vocabulary,
            context_tokens=await self._source.context_tokens(),
            max_tokens=self._max_tokens,
        )
        answer = TokenReply(vocabulary, request, prompt, asked.prompt, options.stop)
        begin: Begin | None = Begin(
            new_id(wire_format(request.wire).id_prefix), self.models[0], Usage(len(asked.prompt), 0)
        )
        piece: TokenPiece | None = None
        async with aclosing(self._source.stream(version, asked)) as pieces:
            async for piece in pieces:
                if begin is not None:
                    yield begin
                    begin = None
                for delta in answer.push(piece.tokens, piece.logprobs):
                    yield delta
                if answer.is_over:
                    break
        if piece is None:
            raise UpstreamError(f"provider {self.name} sent no tokens", code=MALFORMED)
        for delta in answer.finish():
            yield delta
        yield answer.end(is_whole=piece.is_whole)

    async def aclose(self) -> None:
        """The owner of the source closes it."""


async def token_request(
    request: ChatRequest,
    prompt: Prompt,
    options: Generate,
    vocabulary: "Vocabulary",
    *,
    context_tokens: int,
    max_tokens: int,
) -> SampleRequest:
    """The request as tokens and sampling options. Raises WireError if it does not fit into
    `context_tokens` or is not Unicode.
    """
    ids = await asyncio.to_thread(_render, prompt, vocabulary)
    room = context_tokens - len(ids)
    if room < 1:
        raise WireError(
            f"the request has {len(ids)} tokens; this model has room for {context_tokens} with its"
            " answer",
            code="context_length_exceeded",
            param="messages",
        )
    sampling = request.sampling
    return SampleRequest(
        prompt=ids,
        count=1,
        max_tokens=min(room, options.max_tokens or max_tokens),
        # Without other options of the caller, the policy samples as in training: at temperature 1,
        # from all tokens.
        temperature=1.0 if sampling.temperature is None else sampling.temperature,
        seed=None if options.seed is None else options.seed % (1 << SEED_BITS),
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        top_k=options.top_k,
    )


class TokenReply:
    """Turns drawn tokens into deltas. The answer ends (`is_over`) with the token that completes a
    stop string.
    """

    def __init__(
        self,
        vocabulary: "Vocabulary",
        request: ChatRequest,
        prompt: Prompt,
        prompt_ids: tuple[int, ...],
        stops: Sequence[str],
    ) -> None:
        # This imports tokenizers and jinja2, which a program that only trains does not need.
        from metaclaw.engine import Detokenizer, StopFinder

        self._vocabulary = vocabulary
        self._request = request
        self._prompt_ids = prompt_ids
        self._detokenizer = Detokenizer(vocabulary)
        self._finder = StopFinder(stops)
        self._parser = (
            CallParser(prompt.tool_names, prompt.beginning) if prompt.tool_names else None
        )
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._shown: list[TokenLogprob] = []

    @property
    def is_over(self) -> bool:
        """Whether a stop string was found; later tokens are not part of the answer."""
        return self._finder.found is not None

    def push(self, tokens: Sequence[int], logprobs: Sequence[float]) -> list[Delta]:
        """Add tokens, and return the deltas that later tokens cannot change."""
        text = ""
        for token, logprob in zip(tokens, logprobs, strict=True):
            if self.is_over:
                break
            self._tokens.append(token)
            self._logprobs.append(logprob)
            self._show(token, logprob)
            text += self._finder.push(self._detokenizer.push(token))
        return self._say(text)

    def finish(self) -> list[Delta]:
        """The remaining deltas, after the last token."""
        text = "" if self.is_over else self._finder.push(self._detokenizer.flush())
        deltas = self._say(text + self._finder.flush())
        return deltas if self._parser is None else [*deltas, *self._parser.flush()]

    def end(self, *, is_whole: bool) -> End:
        """The last delta, with the exact tokens. `is_whole` is False if `max_tokens` ended the
        answer.
        """
        found = self._finder.found
        is_called = self._parser is not None and self._parser.calls > 0
        finish = Finish.TOOL_CALLS if is_called else Finish.STOP
        if found is None and not is_whole:
            finish = Finish.LENGTH
        return End(
            finish=finish,
            usage=Usage(len(self._prompt_ids), len(self._tokens)),
            stop_sequence=found if found in self._request.sampling.stop else None,
            tokens=SampledTokens(self._prompt_ids, tuple(self._tokens), tuple(self._logprobs)),
        )

    def _show(self, token: int, logprob: float) -> None:
        """Keep each token's text and log-probability, if the request asks for them; an end token
        has no text.
        """
        if self._request.sampling.logprobs and (text := self._vocabulary.decode([token])):
            self._shown.append(TokenLogprob(text, logprob))

    def _say(self, text: str) -> list[Delta]:
        if not text:
            return []
        shown, self._shown = tuple(self._shown), []
        return (
            [TextDelta(text, shown)] if self._parser is None else [*self._parser.push(text, shown)]
        )


def check_weights(loaded: Mapping[int, Weights], version: int, weights: Weights) -> bool:
    """Whether the version is loaded with these weights. Raises TrainingError if it can never be."""
    if version <= BASE_POLICY:
        raise TrainingError(f"version {version} has no trained weights")
    known = loaded.get(version)
    if known is not None and known.adapter != weights.adapter:
        raise TrainingError(f"version {version} is loaded with other weights, from {known.adapter}")
    return known is not None


def _render(prompt: Prompt, vocabulary: "Vocabulary") -> tuple[int, ...]:
    try:
        for turn in prompt.turns:
            turn.content.encode()
    except UnicodeEncodeError as error:
        raise WireError(
            "the request holds text that is not Unicode (half of a surrogate pair)",
            param="messages",
        ) from error
    return tuple(vocabulary.render(prompt.turns, prompt.beginning, prompt.tools))
