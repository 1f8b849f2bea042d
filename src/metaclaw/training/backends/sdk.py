"""Types for the parts of Tinker's SDK (from 0.22 on) that are used here, and functions for every SDK
with its data types. An SDK is chosen at run time, so it is an argument, not an import."""

import importlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from metaclaw.domain.training import Adam
from metaclaw.training.backends.service import Objective, Row, SampleRequest

T_co = TypeVar("T_co", covariant=True)

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
        seed=request.seed,
        stop=stops or None,
        temperature=request.temperature,
        top_k=request.top_k or -1,
        top_p=request.top_p,
    )


class TinkerPending(Protocol[T_co]):
    """The pending result of a request."""

    async def result_async(self, timeout: float | None = None) -> T_co: ...


class Tensor(Protocol):
    @property
    def data(self) -> Sequence[float]: ...


class Taught(Protocol):
    """The result of a forward and backward pass."""

    @property
    def loss_fn_outputs(self) -> Sequence[Mapping[str, Tensor]]: ...


class Stepped(Protocol):
    """The result of an optimiser step."""

    @property
    def metrics(self) -> Mapping[str, float] | None: ...


class Saved(Protocol):
    """The path of saved weights."""

    @property
    def path(self) -> str: ...


class TinkerSequence(Protocol):
    """One drawn sequence."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def logprobs(self) -> Sequence[float] | None: ...
    @property
    def stop_reason(self) -> str: ...


class TinkerSampled(Protocol):
    @property
    def sequences(self) -> Sequence[TinkerSequence]: ...


class TinkerSamplingClient(Protocol):
    """A sampler. Its calls return at once with a future that another thread completes."""

    def sample(
        self, prompt: object, num_samples: int, sampling_params: object
    ) -> "Future[TinkerSampled]": ...
    def compute_logprobs(self, prompt: object) -> "Future[list[float | None]]": ...


class TinkerTrainingClient(Protocol):
    """A model in training."""

    model_id: str

    async def forward_backward_async(
        self, data: list[object], loss_fn: str, loss_fn_config: dict[str, float] | None = None
    ) -> TinkerPending[Taught]: ...
    async def optim_step_async(self, adam_params: object) -> TinkerPending[Stepped]: ...
    async def save_state_async(
        self, name: str, ttl_seconds: int | None = None
    ) -> TinkerPending[Saved]: ...
    async def save_weights_for_sampler_async(
        self, name: str, ttl_seconds: int | None = None
    ) -> TinkerPending[Saved]: ...


class _Holder(Protocol):
    def close(self) -> None: ...


class TinkerServiceClient(Protocol):
    """A connection. The first call of each kind blocks, even of the methods named async."""

    @property
    def holder(self) -> _Holder: ...
    def create_lora_training_client(
        self, base_model: str, rank: int, seed: int
    ) -> TinkerTrainingClient: ...
    def create_training_client_from_state_with_optimizer(
        self, path: str
    ) -> TinkerTrainingClient: ...
    def create_sampling_client(
        self, *, model_path: str | None = None, base_model: str | None = None
    ) -> TinkerSamplingClient: ...


class TinkerSdk(Protocol):
    """The module itself."""

    @property
    def TinkerError(self) -> type[Exception]: ...  # noqa: N802
    @property
    def types(self) -> SdkTypes: ...
    def ServiceClient(  # noqa: N802
        self, *, base_url: str | None = None, api_key: str | None = None
    ) -> TinkerServiceClient: ...


def load_tinker(module: str) -> TinkerSdk:
    """The SDK that this module is, with telemetry off. Raises ImportError."""
    os.environ["TINKER_TELEMETRY"] = "0"
    return cast(TinkerSdk, importlib.import_module(module))


def end_session(client: TinkerServiceClient) -> None:
    """End the session, which stops its heartbeat. Older SDKs have no method for it on the client,
    only on its holder.
    """
    close = getattr(client, "close", None)
    if close is not None:
        close("success")
    else:
        client.holder.close()


def retryable_error(module: str = "tinker.lib.retryable_exception") -> type[Exception]:
    """The SDK's error for a request that expired on the server, the only one that is not a
    TinkerError.
    """
    return cast(type[Exception], importlib.import_module(module).RetryableException)
