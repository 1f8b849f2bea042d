"""What we use of Tinker's SDK, as types: the surface that `tinker` and `mint` share from 0.22 on.

The SDK is chosen at run time (`tinker`, or `mint`, which brings an older `tinker` of its own), so it is an argument, not an import.
"""

import importlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar, cast

from metaclaw.errors import ConfigError

T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """A request that was sent."""

    async def result_async(self, timeout: float | None = None) -> T_co: ...


class Tensor(Protocol):
    """Numbers that came back."""

    @property
    def data(self) -> Sequence[float]: ...


class Taught(Protocol):
    """What a forward and backward pass gives."""

    @property
    def loss_fn_outputs(self) -> Sequence[Mapping[str, Tensor]]: ...


class Stepped(Protocol):
    """What an optimiser step gives."""

    @property
    def metrics(self) -> Mapping[str, float] | None: ...


class Saved(Protocol):
    """Where something was saved."""

    @property
    def path(self) -> str: ...


class DrawnSequence(Protocol):
    """One drawn sequence."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def logprobs(self) -> Sequence[float] | None: ...
    @property
    def stop_reason(self) -> str: ...


class Sampled(Protocol):
    """What a sampler gives."""

    @property
    def sequences(self) -> Sequence[DrawnSequence]: ...


class SamplingClient(Protocol):
    """A sampler. Its calls return at once with a future of another thread."""

    def sample(self, prompt: object, num_samples: int, sampling_params: object) -> "Future[Sampled]": ...
    def compute_logprobs(self, prompt: object) -> "Future[list[float | None]]": ...


class TrainingClient(Protocol):
    """A model in training."""

    model_id: str

    async def forward_backward_async(
        self, data: list[object], loss_fn: str, loss_fn_config: dict[str, float] | None = None
    ) -> Pending[Taught]: ...
    async def optim_step_async(self, adam_params: object) -> Pending[Stepped]: ...
    async def save_state_async(self, name: str, ttl_seconds: int | None = None) -> Pending[Saved]: ...
    async def save_weights_for_sampler_async(self, name: str, ttl_seconds: int | None = None) -> Pending[Saved]: ...


class _Holder(Protocol):
    def close(self) -> None: ...


class ServiceClient(Protocol):
    """A connection. Its first call of each kind blocks, also in the calls that are named async."""

    @property
    def holder(self) -> _Holder: ...
    def create_lora_training_client(self, base_model: str, rank: int, seed: int) -> TrainingClient: ...
    def create_training_client_from_state_with_optimizer(self, path: str) -> TrainingClient: ...
    def create_sampling_client(self, *, model_path: str | None = None, base_model: str | None = None) -> SamplingClient: ...


class _ModelInput(Protocol):
    def from_ints(self, tokens: list[int]) -> object: ...


class Types(Protocol):
    """The SDK's own data types."""

    @property
    def ModelInput(self) -> _ModelInput: ...  # noqa: N802
    def Datum(self, *, model_input: object, loss_fn_inputs: dict[str, list[int] | list[float]]) -> object: ...  # noqa: N802
    def SamplingParams(  # noqa: N802
        self, *, max_tokens: int, seed: int, stop: list[int] | None, temperature: float, top_k: int, top_p: float
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


class Sdk(Protocol):
    """The module itself."""

    @property
    def TinkerError(self) -> type[Exception]: ...  # noqa: N802
    @property
    def types(self) -> Types: ...
    def ServiceClient(self, *, base_url: str | None = None, api_key: str | None = None) -> ServiceClient: ...  # noqa: N802


def load_sdk(module: str) -> Sdk:
    """`tinker` or `mint`, with telemetry off. Raises ConfigError if it is not installed."""
    os.environ["TINKER_TELEMETRY"] = "0"
    try:
        return cast(Sdk, importlib.import_module(module))
    except ImportError as error:
        package = "mindlab-toolkit" if module == "mint" else "metaclaw-proxy[tinker]"
        raise ConfigError(f"training by {module} needs its SDK: pip install '{package}' ({error})") from error


def end_session(client: ServiceClient) -> None:
    """Stop the session's heart. Newer SDKs have a word for it, older ones only on what the client is made of."""
    close = getattr(client, "close", None)
    if close is not None:
        close("success")
    else:
        client.holder.close()


def retryable_error(module: str = "tinker.lib.retryable_exception") -> type[Exception]:
    """The SDK's one error outside its tree: a request that expired on the server."""
    return cast(type[Exception], importlib.import_module(module).RetryableException)
