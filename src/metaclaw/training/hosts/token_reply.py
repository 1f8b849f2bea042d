"""Requests and replies in tokens: a request becomes tokens, and drawn tokens become deltas of text
and tool calls.
"""

import asyncio
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from metaclaw.domain.chat import (
    ChatRequest,
    Delta,
    End,
    Finish,
    SampledTokens,
    TextDelta,
    TokenLogprob,
    Usage,
)
from metaclaw.engine import CallParser, Generate, Prompt
from metaclaw.errors import WireError
from metaclaw.training.backends.service import SampleRequest

if TYPE_CHECKING:
    from metaclaw.engine import Vocabulary

_SEED_BITS: Final = 30


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
        seed=(
            secrets.randbits(_SEED_BITS)
            if options.seed is None
            else options.seed % (1 << _SEED_BITS)
        ),
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


def _render(prompt: Prompt, vocabulary: "Vocabulary") -> tuple[int, ...]:
    try:
        for _, text in prompt.turns:
            text.encode()
    except UnicodeEncodeError as error:
        raise WireError(
            "the request holds text that is not Unicode (half of a surrogate pair)",
            param="messages",
        ) from error
    return tuple(vocabulary.render(prompt.turns, prompt.beginning))
