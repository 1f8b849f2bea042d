"""The data types that the SDKs of training services share, and functions that make them. An SDK is
chosen at run time, so it is an argument, not an import."""

import secrets
from dataclasses import dataclass
from typing import Protocol

from metaclaw.domain.training import Adam
from metaclaw.training.backends.service import SEED_BITS, Objective, Row, SampleRequest

EXPIRY_S = 7 * 24 * 3600
"""Seconds for which a service keeps states that are not saved for good."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Time limits for each kind of call, and the interval of a session's heartbeat. Creating a
    model includes loading it; a step includes its wait in a queue."""

    connect_s: float = 30.0
    create_s: float = 300.0
    sample_s: float = 600.0
    train_s: float = 900.0
    heartbeat_s: float = 30.0


class _ModelInput(Protocol):
    def from_ints(self, tokens: list[int]) -> object: ...


class SdkTypes(Protocol):
    """The SDK's own data types."""

    @property
    def ModelInput(self) -> _ModelInput: ...  # noqa: N802
    def Datum(  # noqa: N802
        self, *, model_input: object, loss_fn_inputs: dict[str, list[int] | list[float]]
    ) -> object: ...
    def SamplingParams(  # noqa: N802
        self,
        *,
        max_tokens: int,
        seed: int,
        stop: list[int] | None,
        temperature: float,
        top_k: int,
        top_p: float,
    ) -> object: ...
    def AdamParams(  # noqa: N802
        self,
        *,
        learning_rate: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        grad_clip_norm: float,
    ) -> object: ...


def make_datum(types: SdkTypes, row: Row, objective: Objective) -> object:
    """A row as the SDK's datum."""
    inputs: dict[str, list[int] | list[float]] = {"target_tokens": list(row.targets)}
    if objective.sends_weights:
        inputs["weights"] = list(row.advantages)
    else:
        inputs["logprobs"] = list(row.logprobs)
        inputs["advantages"] = list(row.advantages)
    return types.Datum(
        model_input=types.ModelInput.from_ints(list(row.inputs)), loss_fn_inputs=inputs
    )


def make_adam(types: SdkTypes, adam: Adam) -> object:
    """The parameters of an optimiser step. All six are set: defaults differ, and Weaver's have
    weight decay.
    """
    return types.AdamParams(
        learning_rate=adam.learning_rate,
        beta1=adam.beta1,
        beta2=adam.beta2,
        eps=adam.eps,
        weight_decay=adam.weight_decay,
        grad_clip_norm=adam.grad_clip_norm,
    )


def make_sampling(types: SdkTypes, request: SampleRequest, stops: list[int]) -> object:
    return types.SamplingParams(
        max_tokens=request.max_tokens,
        seed=secrets.randbits(SEED_BITS) if request.seed is None else request.seed,
        stop=stops or None,
        temperature=request.temperature,
        top_k=request.top_k or -1,
        top_p=request.top_p,
    )
