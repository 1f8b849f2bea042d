"""Types for the parts of the training services' SDKs that are used here, and functions that both
SDKs share.

`tinker` and `mint` from 0.22 on have the same API; MinT includes an older `tinker`. The API of
Weaver (`nex-weaver`) differs, and all its calls block. An SDK is chosen at run time, so it is an
argument, not an import."""

import importlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from metaclaw.domain.chat import Json
from metaclaw.domain.training import Adam
from metaclaw.errors import ConfigError
from metaclaw.train.backends.service import Objective, Row, SampleRequest

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
    """`tinker` or `mint`, with telemetry off. Raises ConfigError if it is not installed."""
    os.environ["TINKER_TELEMETRY"] = "0"
    try:
        return cast(TinkerSdk, importlib.import_module(module))
    except ImportError as error:
        package = "mindlab-toolkit" if module == "mint" else "metaclaw-proxy[tinker]"
        raise ConfigError(
            f"training by {module} needs its SDK: pip install '{package}' ({error})"
        ) from error


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


class Operation(Protocol):
    """Running work on the server."""

    def result(self) -> Json: ...


class WeaverCheckpoint(Protocol):
    """A saved state."""

    @property
    def path(self) -> str: ...


class WeaverTrainingClient(Protocol):
    """A model in training."""

    @property
    def model_id(self) -> str: ...
    def forward_backward(
        self,
        data: Sequence[object],
        loss_fn: str,
        *,
        loss_fn_config: Mapping[str, float] | None,
        wait: bool,
    ) -> Operation: ...
    def optim_step(self, params: object, *, wait: bool) -> Operation: ...
    def save_state(
        self, *, name: str, checkpoint_type: str, ttl_seconds: int | None
    ) -> WeaverCheckpoint: ...
    def load_state_with_optimizer(self, path: str) -> object: ...
    def save_weights_for_sampler(self, *, name: str, ttl_seconds: int | None) -> str: ...
    def terminate(self, instance_types: list[str]) -> object: ...


class WeaverSamplingClient(Protocol):
    """A sampler."""

    def sample(
        self, *, prompt: object, sampling_params: object, num_samples: int, wait: bool
    ) -> Operation: ...
    def compute_logprobs(self, *, prompt: object) -> list[float | None]: ...


class WeaverServiceClient(Protocol):
    """A connection, which is one session."""

    def connect(self) -> None: ...
    def close(self) -> None: ...
    def create_model(
        self, *, base_model: str, training_mode: str, lora_config: object
    ) -> WeaverTrainingClient: ...
    def create_sampling_client(
        self, *, base_model: str, model_path: str | None = None, model_id: str | None = None
    ) -> WeaverSamplingClient: ...


class WeaverTypes(SdkTypes, Protocol):
    """The data types of Weaver's SDK."""

    def LoraConfig(self, *, rank: int, seed: int | None) -> object: ...  # noqa: N802


class WeaverSdk(Protocol):
    """The module itself."""

    @property
    def types(self) -> WeaverTypes: ...
    def ServiceClient(  # noqa: N802
        self, *, base_url: str | None, api_key: str | None, heartbeat_interval: float
    ) -> WeaverServiceClient: ...


def load_weaver() -> WeaverSdk:
    """Weaver's SDK. Raises ConfigError if it is not installed."""
    try:
        return cast(WeaverSdk, importlib.import_module("weaver"))
    except ImportError as error:
        raise ConfigError(
            f"training by weaver needs its SDK: pip install 'metaclaw-proxy[weaver]' ({error})"
        ) from error


def http_error() -> type[Exception]:
    """The error that the SDK raises when the network fails."""
    return cast(type[Exception], importlib.import_module("httpx").HTTPError)
