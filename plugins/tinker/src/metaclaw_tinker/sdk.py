"""Types for the parts of Tinker's SDK (from 0.22 on) that are used here, which MinT's has, too."""

import asyncio
import importlib
import os
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar, cast

from metaclaw.training import SdkTypes

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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
    """A model in training. The calls block at first, and return what can be awaited; their twins
    with `_async` are going from the SDK.
    """

    model_id: str

    def forward_backward(
        self, data: list[object], loss_fn: str, loss_fn_config: dict[str, float] | None = None
    ) -> TinkerPending[Taught]: ...
    def optim_step(self, adam_params: object) -> TinkerPending[Stepped]: ...
    def save_state(self, name: str, ttl_seconds: int | None = None) -> TinkerPending[Saved]: ...
    def save_weights_for_sampler(
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


def resolved(made: T) -> T:
    """The client that was made: newer SDKs (0.38) return a future of it."""
    result = getattr(made, "result", None)
    return made if result is None else cast(T, result())


def awaited(pending: "Future[T]") -> Awaitable[T]:
    """The result of a request to a sampler: newer SDKs (0.38) return a future of their own."""
    own = cast("TinkerPending[T] | None", pending if hasattr(pending, "result_async") else None)
    return asyncio.wrap_future(pending) if own is None else own.result_async()


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
