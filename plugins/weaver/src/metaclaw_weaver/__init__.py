"""Weaver through its SDK: the entry point `weaver` of `metaclaw.training_services`. The SDK blocks,
so each call runs in its own thread with a time limit.

A state of Weaver does not contain its rank, which is needed to load it, so the rank is appended to
the path. Losses are assumed to be sums over tokens, as on Tinker: this was not tried on a server.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from metaclaw.domain.chat import Json
from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Adam
from metaclaw.errors import TrainingError
from metaclaw.training import (
    EXPIRY_S,
    DrawnSequence,
    Objective,
    Reduction,
    Row,
    SampleRequest,
    ServiceCalls,
    ServiceSampler,
    ServiceSettings,
    Waits,
    make_adam,
    make_datum,
    make_sampling,
)
from metaclaw_weaver.sdk import (
    Operation,
    WeaverSamplingClient,
    WeaverSdk,
    WeaverServiceClient,
    WeaverTrainingClient,
    http_error,
    load_weaver,
)

__version__ = "0.1.0"

T = TypeVar("T")

_CREATE_S = 900.0
_STATE = re.compile(r"(?P<path>.+)#rank=(?P<rank>\d+)")
_OWNER = re.compile(r"weaver://([^/]+)/")


def connect(settings: ServiceSettings) -> "WeaverService":
    """Weaver's cloud, or its server at `base_url`."""
    return WeaverService(load_weaver(), settings)


class WeaverService:
    """One session, begun when it is first needed."""

    def __init__(
        self, sdk: WeaverSdk, settings: ServiceSettings, *, waits: Waits | None = None
    ) -> None:
        self.name = "weaver"
        self.sdk = sdk
        self.waits = waits or Waits(create_s=_CREATE_S)
        self.stops = sorted(settings.end_ids)
        foreign = (http_error(), ValueError, RuntimeError, OSError, LookupError, TypeError)
        self._calls = ServiceCalls(self.name, settings.base_url, foreign)
        self._settings = settings
        self._client: WeaverServiceClient | None = None

    async def create(self, rank: int, seed: int) -> "WeaverTrainee":
        """A new model with fresh weights."""
        return WeaverTrainee(self, await self._model(rank, seed), rank)

    async def restore(self, state: str) -> "WeaverTrainee":
        """A new model of the same rank, with saved weights and optimiser."""
        if not (match := _STATE.fullmatch(state)):
            raise TrainingError(f"{state} is not a saved state of {self.name}")
        model = await self._model(int(match["rank"]), None)
        trainee = WeaverTrainee(self, model, int(match["rank"]))
        await self.call(
            f"cannot load {state}",
            lambda: model.load_state_with_optimizer(match["path"]),
            self.waits.train_s,
        )
        return trainee

    async def present(self, trainee: object, adapter: str) -> ServiceSampler:
        return await self._sampler(adapter)

    async def kept(self, weights: Weights) -> ServiceSampler:
        return await self._sampler(weights.adapter)

    async def base(self) -> ServiceSampler:
        return await self._sampler(None)

    async def aclose(self) -> None:
        """End the session; the server then ends its models."""
        client, self._client = self._client, None
        if client is not None:
            await self.call("the session was not closed", client.close, self.waits.connect_s)

    async def call(self, what: str, work: Callable[[], T], timeout_s: float) -> T:
        """Run blocking work with a time limit. Raises TrainingError."""
        return await self._calls.run(what, timeout_s, work)

    async def _model(self, rank: int, seed: int | None) -> WeaverTrainingClient:
        client = await self._connected()
        lora = self.sdk.types.LoraConfig(rank=rank, seed=seed)
        return await self.call(
            "cannot create a model",
            lambda: client.create_model(
                base_model=self._settings.base_model, training_mode="lora", lora_config=lora
            ),
            self.waits.create_s,
        )

    async def _sampler(self, path: str | None) -> "WeaverSampler":
        client = await self._connected()
        owner = _OWNER.match(path or "")
        made = await self.call(
            f"cannot sample from {path or self._settings.base_model}",
            lambda: client.create_sampling_client(
                base_model=self._settings.base_model,
                model_path=path,
                model_id=owner[1] if owner else None,
            ),
            self.waits.create_s,
        )
        return WeaverSampler(self, made)

    async def _connected(self) -> WeaverServiceClient:
        if self._client is None:
            client = self.sdk.ServiceClient(
                base_url=self._settings.base_url,
                api_key=self._settings.api_key,
                heartbeat_interval=self.waits.heartbeat_s,
            )
            await self.call("cannot begin a session", client.connect, self.waits.connect_s)
            self._client = client
        return self._client


class WeaverTrainee:
    """A model in training on the server."""

    reduction = Reduction.SUM

    def __init__(self, service: WeaverService, client: WeaverTrainingClient, rank: int) -> None:
        self._service = service
        self._client = client
        self._rank = rank

    async def teach(
        self, rows: Sequence[Row], objective: Objective
    ) -> Awaitable[list[list[float]]]:
        """Send one piece."""
        data = [make_datum(self._service.sdk.types, row, objective) for row in rows]
        operation = await self._service.call(
            "cannot send a piece",
            lambda: self._client.forward_backward(
                data, objective.name, loss_fn_config=objective.config, wait=False
            ),
            self._service.waits.train_s,
        )

        async def outcome() -> list[list[float]]:
            return _logprobs(
                await self._result("a piece was not taught", operation), self._service.name
            )

        return outcome()

    async def step(self, adam: Adam) -> Awaitable[float | None]:
        params = make_adam(self._service.sdk.types, adam)
        operation = await self._service.call(
            "cannot send an optimiser step",
            lambda: self._client.optim_step(params, wait=False),
            self._service.waits.train_s,
        )

        async def outcome() -> float | None:
            return _grad_norm(await self._result("an optimiser step did not happen", operation))

        return outcome()

    async def save(self, name: str, *, for_good: bool) -> str:
        """Weights and optimiser under a `weaver://` path, and the rank."""
        saved = await self._service.call(
            f"cannot save {name}",
            lambda: self._client.save_state(
                name=name,
                checkpoint_type="weight_and_optimizer",
                ttl_seconds=None if for_good else EXPIRY_S,
            ),
            self._service.waits.train_s,
        )
        return f"{saved.path}#rank={self._rank}"

    async def publish(self, name: str, *, for_good: bool) -> str:
        """Weights for samplers under a `weaver://` path."""
        return await self._service.call(
            f"cannot publish {name}",
            lambda: self._client.save_weights_for_sampler(
                name=name, ttl_seconds=None if for_good else EXPIRY_S
            ),
            self._service.waits.train_s,
        )

    async def aclose(self) -> None:
        """End the trainer; published weights can still be sampled."""
        await self._service.call(
            "a model was not ended",
            lambda: self._client.terminate(["trainer"]),
            self._service.waits.connect_s,
        )

    async def _result(self, what: str, operation: Operation) -> Json:
        return await self._service.call(what, operation.result, self._service.waits.train_s)


class WeaverSampler:
    """Samples from weights on the server."""

    is_raw = False

    def __init__(self, service: WeaverService, client: WeaverSamplingClient) -> None:
        self._service = service
        self._client = client

    async def sample(self, request: SampleRequest) -> list[DrawnSequence]:
        """Draw sequences with their log-probabilities from the raw result: the SDK's parser loads a
        tokenizer and runs its code.
        """
        types = self._service.sdk.types
        params = make_sampling(types, request, self._service.stops)
        prompt = types.ModelInput.from_ints(list(request.prompt))
        raw = await self._service.call(
            "no sample",
            lambda: self._client.sample(
                prompt=prompt, sampling_params=params, num_samples=request.count, wait=False
            ).result(),
            self._service.waits.sample_s,
        )
        return _sequences(raw, self._service.name)

    async def score(self, tokens: Sequence[int]) -> list[float]:
        """The log-probability of each token but the first."""
        prompt = self._service.sdk.types.ModelInput.from_ints(list(tokens))
        scores = await self._service.call(
            "no scores",
            lambda: self._client.compute_logprobs(prompt=prompt),
            self._service.waits.sample_s,
        )
        return [score for score in scores[1:] if score is not None]

    async def aclose(self) -> None:
        """A sampler holds no resources."""


def _logprobs(result: Json, name: str) -> list[list[float]]:
    outputs = _field(result, "loss_fn_outputs")
    if not isinstance(outputs, list):
        raise TrainingError(f"{name} sent no log-probabilities with a piece")
    rows: list[list[float]] = []
    for output in outputs:
        values = _field(output, "logprobs")
        numbers = _field(values, "data") if isinstance(values, dict) else values
        rows.append(_numbers(numbers, name))
    return rows


def _sequences(result: Json, name: str) -> list[DrawnSequence]:
    sequences = _field(result, "sequences")
    if not isinstance(sequences, list):
        raise TrainingError(f"{name} sent no sequences")
    return [
        DrawnSequence(
            tuple(int(token) for token in _numbers(_field(each, "tokens"), name)),
            tuple(_numbers(_field(each, "logprobs"), name)),
            _field(each, "stop_reason") == "stop",
        )
        for each in sequences
    ]


def _grad_norm(result: Json) -> float | None:
    metrics = _field(result, "metrics")
    norm = _field(metrics if isinstance(metrics, dict) else result, "grad_norm")
    return float(norm) if isinstance(norm, int | float) else None


def _field(value: Json, key: str) -> Json:
    """A field of an answer, or of the `result` inside it, as older servers send it."""
    if not isinstance(value, Mapping):
        return None
    if key in value:
        return value[key]
    inner = value.get("result")
    return inner.get(key) if isinstance(inner, Mapping) else None


def _numbers(value: Json, name: str) -> list[float]:
    if not isinstance(value, list) or not all(isinstance(each, int | float) for each in value):
        raise TrainingError(f"{name} sent something else than a list of numbers")
    return [float(each) for each in value if isinstance(each, int | float)]
