"""Types for the parts of Weaver's SDK (`nex-weaver`) that are used here. All its calls block."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from metaclaw.domain.chat import Json
from metaclaw.training import SdkTypes


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
    """Raises ImportError."""
    return cast(WeaverSdk, importlib.import_module("weaver"))


def http_error() -> type[Exception]:
    """The error that the SDK raises when the network fails."""
    return cast(type[Exception], importlib.import_module("httpx").HTTPError)
