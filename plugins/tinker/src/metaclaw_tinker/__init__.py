"""Tinker's API through its SDK: the entry points `tinker` (Tinker's cloud, and self-hosted SkyRL) and
`mint` of `metaclaw.training_services`.

Servers are told apart by the names they give to models: Tinker's contain `:train:`. SkyRL's JAX
engine averages losses, does not clip gradients, and holds one set of weights for each model: a
sampler of older weights of a model in training would silently answer with the newest weights, or
overwrite them. On such servers saved weights are restored into a separate model."""

import asyncio
import logging
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import msgspec

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
    run_in_thread,
)
from metaclaw_tinker.sdk import (
    Saved,
    TinkerPending,
    TinkerSamplingClient,
    TinkerSdk,
    TinkerServiceClient,
    TinkerTrainingClient,
    awaited,
    end_session,
    load_tinker,
    resolved,
    retryable_error,
)

__version__ = "0.1.0"

log = logging.getLogger(__name__)

T = TypeVar("T")

# A self-hosted server needs no key, but the SDK requires a key of this form.
_NO_KEY = "tml-none"


def connect(settings: ServiceSettings) -> "TinkerService":
    """Tinker's cloud, or a server with its API at `base_url`."""
    return TinkerService(load_tinker("tinker"), settings)


def connect_mint(settings: ServiceSettings) -> "TinkerService":
    """MinT's cloud, or a server with its API at `base_url`. Its SDK (`mindlab-toolkit`) includes an
    older version of Tinker's.
    """
    return TinkerService(load_tinker("mint"), settings, name="mint")


class TinkerService:
    """A server with Tinker's API. The connection is made at the first call. `reduction` overrides
    what the names of its models show.
    """

    def __init__(
        self,
        sdk: TinkerSdk,
        settings: ServiceSettings,
        *,
        name: str = "tinker",
        reduction: Reduction | None = None,
        waits: Waits | None = None,
    ) -> None:
        self.name = name
        self.sdk = sdk
        self.waits = waits or Waits()
        self.stops = sorted(settings.end_ids)
        foreign = (ValueError, RuntimeError, OSError, AssertionError, LookupError)
        self.calls = ServiceCalls(
            name, settings.base_url, (sdk.TinkerError, retryable_error(), *foreign)
        )
        self._base_model = settings.base_model
        self._base_url = settings.base_url
        self._api_key = settings.api_key or (_NO_KEY if settings.base_url else None)
        self._reduction = reduction
        self._connecting: asyncio.Future[TinkerServiceClient] | None = None

    async def create(self, rank: int, seed: int) -> "TinkerTrainee":
        """A new model with fresh weights."""
        return await self._trainee(
            "cannot create a model",
            lambda it: it.create_lora_training_client(self._base_model, rank, seed),
        )

    async def restore(self, state: str) -> "TinkerTrainee":
        """A new model with saved weights and optimiser."""
        return await self._trainee(
            f"cannot go on from {state}",
            lambda it: it.create_training_client_from_state_with_optimizer(state),
        )

    async def present(self, trainee: object, adapter: str) -> ServiceSampler:
        return await self._sampler(adapter)

    async def kept(self, weights: Weights) -> ServiceSampler:
        """By path if the server keeps paths independent of models in training, else restored into a
        separate model.
        """
        if "/sampler_weights/" in weights.adapter:
            return await self._sampler(weights.adapter)
        if weights.training is None:
            raise TrainingError(
                f"{weights.adapter} cannot be sampled: its training state is missing"
            )
        trainee = await self.restore(weights.training)
        return await self._sampler(await trainee.publish("serving", for_good=False), trainee)

    async def base(self) -> ServiceSampler:
        return await self._sampler(None)

    async def aclose(self) -> None:
        """End the session: otherwise its heartbeat would go on, and the SDK would report errors
        when the server is gone.
        """
        connecting, self._connecting = self._connecting, None
        if connecting is not None and connecting.done() and not _has_failed(connecting):
            await self.calls.run(
                "the session was not ended",
                self.waits.connect_s,
                lambda: end_session(connecting.result()),
            )

    async def unload(self, model: str) -> None:
        """Unload a model from a self-hosted server, which has room for few. Raises
        TrainingError.
        """
        if self._base_url is None:
            return
        request = urllib.request.Request(
            f"{self._base_url.rstrip('/')}/api/v1/unload_model",
            msgspec.json.encode({"model_id": model, "type": "unload_model"}),
            {"content-type": "application/json", "x-api-key": self._api_key or _NO_KEY},
        )

        def unload() -> None:
            urllib.request.urlopen(request, timeout=self.waits.connect_s).close()

        await self.calls.run(f"cannot unload {model}", self.waits.connect_s, unload)

    async def result(self, what: str, timeout_s: float, pending: TinkerPending[T]) -> T:
        """The result of a request that was sent."""
        return await self.calls.wait(what, timeout_s, pending.result_async)

    def reduction_of(self, model: str) -> Reduction:
        if self._reduction is not None:
            return self._reduction
        return Reduction.SUM if ":train:" in model else Reduction.MEAN

    async def _trainee(
        self, what: str, make: Callable[[TinkerServiceClient], TinkerTrainingClient]
    ) -> "TinkerTrainee":
        return TinkerTrainee(self, await self._made(what, make))

    async def _sampler(
        self, path: str | None, place: "TinkerTrainee | None" = None
    ) -> "TinkerSampler":
        chosen = {"base_model": self._base_model} if path is None else {"model_path": path}
        client = await self._made(
            f"cannot sample from {path or self._base_model}",
            lambda it: it.create_sampling_client(**chosen),
        )
        is_raw = path is not None and "/sampler_weights/" not in path
        return TinkerSampler(self, client, place, is_raw=is_raw)

    async def _made(self, what: str, make: Callable[[TinkerServiceClient], T]) -> T:
        async def made() -> T:
            client = await self._client()
            return await run_in_thread(lambda: resolved(make(client)))

        return await self.calls.wait(what, self.waits.create_s, made)

    async def _client(self) -> TinkerServiceClient:
        """The connection. Concurrent callers wait for the same attempt."""
        if self._connecting is None or (self._connecting.done() and _has_failed(self._connecting)):
            self._connecting = asyncio.ensure_future(
                self.calls.run(
                    "cannot connect",
                    self.waits.connect_s,
                    lambda: self.sdk.ServiceClient(base_url=self._base_url, api_key=self._api_key),
                )
            )
        return await asyncio.shield(self._connecting)


class TinkerTrainee:
    """A model in training on the server."""

    def __init__(self, service: TinkerService, client: TinkerTrainingClient) -> None:
        self._service = service
        self._client = client
        self._clips = True
        self.reduction = service.reduction_of(client.model_id)

    async def teach(
        self, rows: Sequence[Row], objective: Objective
    ) -> Awaitable[list[list[float]]]:
        """Send one piece."""
        service = self._service
        data = [make_datum(service.sdk.types, row, objective) for row in rows]
        pending = await service.calls.run(
            "cannot send a piece",
            service.waits.connect_s,
            lambda: self._client.forward_backward(data, objective.name, objective.config),
        )

        async def outcome() -> list[list[float]]:
            taught = await service.result("a piece was not taught", service.waits.train_s, pending)
            try:
                return [
                    [float(value) for value in output["logprobs"].data]
                    for output in taught.loss_fn_outputs
                ]
            except LookupError as error:
                raise TrainingError(
                    f"{service.name} sent no log-probabilities with a piece"
                ) from error

        return outcome()

    async def step(self, adam: Adam) -> Awaitable[float | None]:
        service = self._service
        pending = await service.calls.run(
            "cannot send an optimiser step",
            service.waits.connect_s,
            lambda: self._client.optim_step(make_adam(service.sdk.types, adam)),
        )
        if self.reduction is Reduction.MEAN and adam.grad_clip_norm > 0.0 and self._clips:
            self._clips = False
            log.info("server does not clip gradients backend=%s", service.name)

        async def outcome() -> float | None:
            stepped = await service.result(
                "an optimiser step did not happen", service.waits.train_s, pending
            )
            norms = [
                value
                for key, value in (stepped.metrics or {}).items()
                if "grad" in key and ("norm" in key or "l2" in key)
            ]
            return float(norms[0]) if norms else None

        return outcome()

    async def save(self, name: str, *, for_good: bool) -> str:
        """Weights and optimiser under a `tinker://` path."""
        return await self._saved(f"cannot save {name}", self._client.save_state, name, for_good)

    async def publish(self, name: str, *, for_good: bool) -> str:
        """Weights for samplers under a `tinker://` path."""
        return await self._saved(
            f"cannot publish {name}", self._client.save_weights_for_sampler, name, for_good
        )

    async def aclose(self) -> None:
        """Unload the model from a server that has room for few."""
        if self.reduction is Reduction.MEAN:
            await self._service.unload(self._client.model_id)

    async def _saved(
        self,
        what: str,
        save: Callable[[str, int | None], TinkerPending[Saved]],
        name: str,
        for_good: bool,
    ) -> str:
        async def saved() -> Saved:
            pending = await run_in_thread(lambda: save(name, None if for_good else EXPIRY_S))
            return await pending.result_async()

        return (await self._service.calls.wait(what, self._service.waits.train_s, saved)).path


class TinkerSampler:
    """Samples from weights on the server. `place` is the model that was created for them, if
    any.
    """

    def __init__(
        self,
        service: TinkerService,
        client: TinkerSamplingClient,
        place: TinkerTrainee | None,
        *,
        is_raw: bool,
    ) -> None:
        self.is_raw = is_raw
        self._service = service
        self._client = client
        self._place = place

    async def sample(self, request: SampleRequest) -> list[DrawnSequence]:
        """Draw sequences with their log-probabilities. Cancelling the call cancels the request."""
        types = self._service.sdk.types
        params = make_sampling(types, request, self._service.stops)
        sampled = await self._asked(
            "no sample",
            lambda: self._client.sample(self._input(request.prompt), request.count, params),
        )
        return [
            DrawnSequence(
                tuple(map(int, each.tokens)),
                tuple(map(float, each.logprobs or ())),
                each.stop_reason == "stop",
            )
            for each in sampled.sequences
        ]

    async def score(self, tokens: Sequence[int]) -> list[float]:
        """The log-probability of each token but the first, for which servers return None or
        nothing.
        """
        scores = await self._asked(
            "no scores", lambda: self._client.compute_logprobs(self._input(tokens))
        )
        known = [score for score in scores[-(len(tokens) - 1) :] if score is not None]
        return [float(score) for score in known]

    def _input(self, tokens: Sequence[int]) -> object:
        return self._service.sdk.types.ModelInput.from_ints(list(tokens))

    async def _asked(self, what: str, ask: "Callable[[], Future[T]]") -> T:
        return await self._service.calls.wait(
            what, self._service.waits.sample_s, lambda: awaited(ask())
        )

    async def aclose(self) -> None:
        if self._place is not None:
            await self._place.aclose()


def _has_failed(connecting: "asyncio.Future[TinkerServiceClient]") -> bool:
    return connecting.cancelled() or connecting.exception() is not None
