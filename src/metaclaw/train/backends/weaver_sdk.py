"""What we use of Weaver's SDK (`nex-weaver`), as types. Every call of it blocks."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from metaclaw.domain.chat import Json
from metaclaw.errors import ConfigError


class Operation(Protocol):
    """Work under way on the server."""

    def result(self) -> Json: ...


class Checkpoint(Protocol):
    """A saved state."""

    @property
    def path(self) -> str: ...


class TrainingClient(Protocol):
    """A model in training."""

    @property
    def model_id(self) -> str: ...
    def forward_backward(
        self, data: Sequence[object], loss_fn: str, *, loss_fn_config: Mapping[str, float] | None, wait: bool
    ) -> Operation: ...
    def optim_step(self, params: object, *, wait: bool) -> Operation: ...
    def save_state(self, *, name: str, checkpoint_type: str, ttl_seconds: int | None) -> Checkpoint: ...
    def load_state_with_optimizer(self, path: str) -> object: ...
    def save_weights_for_sampler(self, *, name: str, ttl_seconds: int | None) -> str: ...
    def terminate(self, instance_types: list[str]) -> object: ...


class SamplingClient(Protocol):
    """A sampler."""

    def sample(self, *, prompt: object, sampling_params: object, num_samples: int, wait: bool) -> Operation: ...
    def compute_logprobs(self, *, prompt: object) -> list[float | None]: ...


class ServiceClient(Protocol):
    """A connection, which is one session."""

    def connect(self) -> None: ...
    def close(self) -> None: ...
    def create_model(self, *, base_model: str, training_mode: str, lora_config: object) -> TrainingClient: ...
    def create_sampling_client(
        self, *, base_model: str, model_path: str | None = None, model_id: str | None = None
    ) -> SamplingClient: ...


class _ModelInput(Protocol):
    def from_ints(self, tokens: Sequence[int]) -> object: ...


class Types(Protocol):
    """The SDK's own data types."""

    @property
    def ModelInput(self) -> _ModelInput: ...  # noqa: N802
    def Datum(self, *, model_input: object, loss_fn_inputs: dict[str, list[int] | list[float]]) -> object: ...  # noqa: N802
    def LoraConfig(self, *, rank: int, seed: int | None) -> object: ...  # noqa: N802
    def SamplingParams(  # noqa: N802
        self, *, max_tokens: int, temperature: float, top_p: float, top_k: int, stop: list[int], seed: int
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
    def types(self) -> Types: ...
    def ServiceClient(self, *, base_url: str | None, api_key: str | None, heartbeat_interval: float) -> ServiceClient: ...  # noqa: N802


def load_weaver() -> Sdk:
    """Weaver's SDK. Raises ConfigError if it is not installed."""
    try:
        return cast(Sdk, importlib.import_module("weaver"))
    except ImportError as error:
        raise ConfigError(f"training by weaver needs its SDK: pip install 'metaclaw-proxy[weaver]' ({error})") from error


def http_error() -> type[Exception]:
    """What the SDK lets through when the network fails."""
    return cast(type[Exception], importlib.import_module("httpx").HTTPError)
