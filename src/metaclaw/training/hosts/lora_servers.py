"""Servers that load LoRA adapters while they run (ports.PolicyHost): vLLM and others like it.

Each version is loaded under its own name (`policy-000012`), which is never used for other weights.
vLLM must be started with `--enable-lora`, `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True` and room for the
versions that answer at the same time (`--max-loras`)."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from metaclaw.domain.chat import Json
from metaclaw.domain.policy import BASE_POLICY, Weights
from metaclaw.engine import is_complete_adapter
from metaclaw.errors import BackendDownError, TrainingError, WeightsLostError
from metaclaw.ports import HttpProvider, ModelProvider, PolicyHost
from metaclaw.training.backends.blocking_calls import ServerReply, post_json

if TYPE_CHECKING:
    from metaclaw.engine import Vocabulary

log = logging.getLogger(__name__)

PREFIX = "policy-"


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The server that `policy.provider` names. `model` is its name for the untrained model.
    `in_use` returns the versions that serve, which must stay loaded; `read_vocabulary` reads the
    model's tokens from disk."""

    provider: HttpProvider
    base_url: str
    api_key: str | None = field(repr=False)
    model: str
    in_use: Callable[[], frozenset[int]]
    read_vocabulary: Callable[[], "Vocabulary"]


@dataclass(frozen=True, slots=True)
class ModelHost:
    """What loads versions, and how they are asked: by `serves`, or else by requests that are
    relayed to the provider with the model that `model_of` names."""

    host: PolicyHost
    model_of: Callable[[int], str] | None = None
    serves: ModelProvider | None = None


class AdminClient:
    """Calls to a server's management routes. The base URL may end in `/v1`. The key is never
    logged.
    """

    def __init__(
        self, base_url: str, api_key: str | None = None, *, timeout_s: float = 120.0
    ) -> None:
        self.url = base_url.rstrip("/").removesuffix("/v1")
        self._timeout_s = timeout_s
        self._headers = {"accept": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"

    async def post(self, path: str, body: Json) -> ServerReply:
        """Raises BackendDownError if no answer came, TrainingError if the URL is invalid."""
        try:
            return await post_json(self.url + path, body, self._headers, self._timeout_s)
        except TimeoutError as error:
            raise BackendDownError(
                f"{self.url} did not answer within {self._timeout_s:g} s"
            ) from error
        except OSError as error:
            raise BackendDownError(f"{self.url} cannot be asked: {error}") from error
        except ValueError as error:
            raise TrainingError(f"{self.url} cannot be asked: {error}") from error


class ServerRoutes(Protocol):
    """The routes of one kind of server."""

    def load(self, name: str, folder: str) -> tuple[str, Json]:
        """Path and body of the request that loads an adapter."""

    def unload(self, name: str) -> tuple[str, Json]:
        """Path and body of the request that unloads an adapter."""

    def complaint(self, reply: ServerReply) -> str | None:
        """Why the request failed, or None."""

    def is_taken(self, complaint: str) -> bool:
        """Whether it failed because an adapter of this name is loaded."""

    def is_gone(self, complaint: str) -> bool:
        """Whether it failed because no adapter of this name is loaded."""


class LoadingHost:
    """A PolicyHost. After each load, older versions are unloaded, except the newest `keeps` and
    those `in_use`.
    """

    def __init__(
        self,
        admin: AdminClient,
        dialect: ServerRoutes,
        *,
        keeps: int = 2,
        in_use: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        self._admin = admin
        self._dialect = dialect
        self._keeps = keeps
        self._in_use = in_use
        self._loaded: dict[int, Weights] = {}
        self._one_at_a_time = asyncio.Lock()

    @property
    def loaded(self) -> frozenset[int]:
        """The versions that can be asked for."""
        return frozenset(self._loaded)

    async def load(self, version: int, weights: Weights) -> None:
        """Load a version in addition to the others. Raises TrainingError and changes nothing if it
        cannot be loaded.
        """
        async with self._one_at_a_time:
            if version <= BASE_POLICY:
                raise TrainingError(f"version {version} has no trained weights")
            if (known := self._loaded.get(version)) is not None:
                if known.adapter != weights.adapter:
                    raise TrainingError(
                        f"version {version} is loaded with other weights, from {known.adapter}"
                    )
                return
            await self._load(version, _folder(weights))
            self._loaded[version] = weights
            log.info("version loaded server=%s version=%d", self._admin.url, version)
            await self._tidy()

    async def unload(self, version: int) -> None:
        """Unload a version, if it is loaded; the server finishes its running answers."""
        async with self._one_at_a_time:
            await self._unload(version)

    def forget(self, version: int) -> None:
        """Note that the server no longer has this version, because it was restarted."""
        self._loaded.pop(version, None)

    async def _tidy(self) -> None:
        staying = {*sorted(self._loaded)[-self._keeps :], *self._in_use()}
        for version in sorted(self._loaded.keys() - staying):
            try:
                await self._unload(version)
            except TrainingError as error:
                # The new version is loaded. Unloading the old one is tried again after the next
                # load.
                log.warning("version stays loaded server=%s error=%s", self._admin.url, error)

    async def _load(self, version: int, folder: str) -> None:
        complaint = await self._ask(*self._dialect.load(version_name(version), folder))
        if complaint is not None and self._dialect.is_taken(complaint):
            # The server ran before this process did, so the weights under this name may be others.
            await self._drop(version)
            complaint = await self._ask(*self._dialect.load(version_name(version), folder))
        if complaint is not None:
            # The server reads the same folder: an incomplete adapter can never be loaded. Other
            # errors may be temporary.
            kind = TrainingError if is_complete_adapter(Path(folder)) else WeightsLostError
            raise kind(f"version {version} cannot be loaded by {self._admin.url}: {complaint}")

    async def _unload(self, version: int) -> None:
        if version in self._loaded:
            await self._drop(version)
            del self._loaded[version]
            log.info("version unloaded server=%s version=%d", self._admin.url, version)

    async def _drop(self, version: int) -> None:
        complaint = await self._ask(*self._dialect.unload(version_name(version)))
        if complaint is not None and not self._dialect.is_gone(complaint):
            raise TrainingError(
                f"version {version} cannot be unloaded by {self._admin.url}: {complaint}"
            )

    async def _ask(self, path: str, body: Json) -> str | None:
        return self._dialect.complaint(await self._admin.post(path, body))


class VllmRoutes:
    """vLLM's routes for adapters."""

    def load(self, name: str, folder: str) -> tuple[str, Json]:
        return "/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder}

    def unload(self, name: str) -> tuple[str, Json]:
        return "/v1/unload_lora_adapter", {"lora_name": name}

    def complaint(self, reply: ServerReply) -> str | None:
        return None if reply.status < 300 else f"{_words(reply.text)} (status {reply.status})"

    def is_taken(self, complaint: str) -> bool:
        """By the message of vLLM 0.32."""
        return "has already been loaded" in complaint

    def is_gone(self, complaint: str) -> bool:
        """By the message of vLLM 0.32."""
        return "cannot be found" in complaint


def version_name(version: int) -> str:
    """`policy-000012`."""
    return f"{PREFIX}{version:06d}"


def _folder(weights: Weights) -> str:
    """The adapter's folder, which the server reads itself. Raises TrainingError for weights without
    a folder.
    """
    if "://" in weights.adapter:
        raise TrainingError(
            f"{weights.adapter} is not a folder with an adapter, so no other server can load it"
        )
    return str(Path(weights.adapter).absolute())


def _words(text: str) -> str:
    """The message in an error's body. Its place differs between versions of the server."""
    try:
        answer = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text.strip()[:300] or "no reason given"
    inner = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = inner.get("message") or inner.get("detail") if isinstance(inner, dict) else inner
    return str(message or answer)[:300]
