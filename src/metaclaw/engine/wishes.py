"""A caller's sampling wishes, checked, as the message the engine understands."""

from typing import Final

from metaclaw.domain.chat import ChatRequest, Sampling
from metaclaw.domain.policy import BASE_POLICY
from metaclaw.engine.frames import Generate
from metaclaw.engine.prompt import Prompt
from metaclaw.engine.toolcalls import CLOSE
from metaclaw.errors import WireError

_RANGES: Final = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "top_logprobs": (0, 20),
}
# At temperature 1 so small a model rambles, near 0 it repeats itself; whoever wants either says so.
_TEMPERATURE: Final = 0.7
_TOP_P: Final = 0.9
_SEED_BITS: Final = (1 << 63) - 1


def make_message(id: int, request: ChatRequest, prompt: Prompt, version: int = BASE_POLICY) -> Generate:
    """The request for the engine, for one version of the weights. Raises WireError for wishes that cannot be granted."""
    wishes = request.sampling
    _check(wishes)
    return Generate(
        id=id,
        turns=list(prompt.turns),
        beginning=prompt.beginning,
        version=version,
        max_tokens=wishes.max_tokens,
        temperature=_TEMPERATURE if wishes.temperature is None else wishes.temperature,
        top_p=_default_top_p(wishes) if wishes.top_p is None else wishes.top_p,
        top_k=max(wishes.top_k or 0, 0),
        frequency_penalty=wishes.frequency_penalty or 0.0,
        presence_penalty=wishes.presence_penalty or 0.0,
        seed=None if wishes.seed is None else wishes.seed & _SEED_BITS,
        stop=[*wishes.stop, *_last_call_stop(request, prompt)],
        top_logprobs=(wishes.top_logprobs or 0) if wishes.logprobs else None,
    )


def _default_top_p(wishes: Sampling) -> float:
    return _TOP_P if wishes.temperature is None else 1.0


def _check(wishes: Sampling) -> None:
    if wishes.n != 1:
        raise WireError(f"the embedded model gives one answer per request; n is {wishes.n}", param="n")
    if wishes.max_tokens is not None and wishes.max_tokens < 1:
        raise WireError(f"max_tokens must be at least 1, not {wishes.max_tokens}", param="max_tokens")
    for name, (low, high) in _RANGES.items():
        value: float | None = getattr(wishes, name)
        if value is not None and not low <= value <= high:
            raise WireError(f"{name} must be between {low} and {high}, not {value}", param=name)


def _last_call_stop(request: ChatRequest, prompt: Prompt) -> tuple[str, ...]:
    # Where only one call is wanted, its closing tag ends the answer.
    return (CLOSE,) if prompt.tool_names and request.parallel_tool_calls is False else ()
