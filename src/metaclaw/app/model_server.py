"""The server of `policy.serve` as a child process, if no provider is named for it: started on a
loopback port, watched, started again when it dies, and ended with the proxy."""

import asyncio
import logging
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from metaclaw.config import Config, PolicyConfig, ProviderConfig
from metaclaw.errors import ConfigError, MetaClawError, UpstreamError
from metaclaw.ports import Call

if TYPE_CHECKING:
    from metaclaw.upstream import HttpEndpoint

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0
_PATIENCE_S: Final = 25.0
_CHILD: Final = Path(__file__).with_name("server_child.py")
_VLLM: Final = (
    *("vllm", "serve", "{model}", "--served-model-name", "{name}"),
    *("--host", "127.0.0.1", "--port", "{port}"),
    # The version that serves, the one before it, and the step that is trained.
    *("--enable-lora", "--max-loras", "3", "--max-lora-rank", "{rank}"),
    # The rest is for training, which may use the same card.
    *("--gpu-memory-utilization", "0.45"),
)
_VLLM_RANKS: Final = (8, 16, 32, 64, 128, 256, 512)


class ModelServerError(MetaClawError):
    """The model's server has ended; it is started again."""


@dataclass(eq=False)
class ModelServer:
    """The process. `model` is its name for the untrained model; `state` is for people."""

    name: str
    model: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    log: Path
    state: str = "starting"

    async def run(self, provider: "HttpEndpoint") -> None:
        """Run the server, which answers as this provider, until it ends. Raises ModelServerError
        then.
        """
        self.state = "starting"
        with self.log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", str(_CHILD), *self.command),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        log.info("model_server_started pid=%d command=%s", process.pid, " ".join(self.command))
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, provider)
                status = await process.wait()
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(process)
        self.state = f"ended with status {status}"
        raise ModelServerError(f"{self.name} {self.state}; its log is {self.log}")

    @property
    def unready(self) -> str | None:
        """Why it does not answer yet, or None."""
        return None if self.state == "ready" else f"the model server {self.name} is {self.state}"

    async def _watch(self, provider: "HttpEndpoint") -> None:
        """Look whether it is healthy, until it is."""
        began = time.monotonic()
        while self.state != "ready":
            await anyio.sleep(_LOOK_EVERY_S)
            self.state = f"starting, for {time.monotonic() - began:.0f} s"
            with suppress(UpstreamError):
                reply = await provider.at_root().call(Call("GET", "/health", "", (), b""), {})
                await reply.aclose()
                if reply.status == 200:
                    self.state = "ready"
        log.info("model_server_ready name=%s after_s=%.0f", self.name, time.monotonic() - began)

    @staticmethod
    async def _end(process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with anyio.move_on_after(_PATIENCE_S):
            await process.wait()


def with_model_server(config: Config, home: Path) -> tuple[Config, ModelServer | None]:
    """The configuration with a provider for the server, and the server; the same without one if
    none is to be started. Raises ConfigError."""
    policy = config.policy
    if policy is None or policy.serve == "backend" or policy.provider is not None:
        return config, None
    from metaclaw.engine import locate_model

    folder = locate_model(home / "models", policy.base_model).folder
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{policy.serve} cannot serve {policy.base_model or 'the embedded model'}: there is no"
            f" Hugging Face folder at {folder}. Start once with --set policy.serve=backend, which"
            " converts the model, or name a folder: metaclaw start --model FOLDER"
        )
    port, key, model = _free_port(), secrets.token_hex(16), folder.name
    values = {
        "model": str(folder),
        "name": model,
        "port": str(port),
        "rank": str(_rank(policy.lora_rank)),
    }
    command = [part.format_map(values) for part in _command(policy)]
    # The key keeps other users of this machine out; a command's arguments would show it.
    environment = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_API_KEY": key,
    }
    provider = ProviderConfig.model_validate(
        {
            "name": policy.serve,
            "kind": "openai",
            "base_url": f"http://127.0.0.1:{port}/v1",
            "api_key": key,
            "models": [model],
            "wires": ["chat"],
        }
    )
    changed = config.model_copy(
        update={
            "providers": (*config.providers, provider),
            "policy": policy.model_copy(update={"provider": provider.name}),
        }
    )
    log_file = home / "logs" / f"{policy.serve}.log"
    return changed, ModelServer(policy.serve, model, command, environment, log_file)


def find_server() -> str | None:
    """The program that serves models by default, if it is installed."""
    return shutil.which(_VLLM[0])


def _command(policy: PolicyConfig) -> Sequence[str]:
    if policy.serve_command:
        return policy.serve_command
    if policy.serve != "vllm":
        raise ConfigError(
            f'policy.serve = "{policy.serve}" needs policy.provider, a server that runs, or'
            " policy.serve_command, which starts one"
        )
    program = find_server()
    if program is None:
        raise ConfigError(
            "vllm is not installed here, or not on the PATH. Install it in an environment of its"
            " own (python3 -m venv ~/vllm && ~/vllm/bin/pip install vllm) and write its path:"
            " metaclaw config set policy.serve_command '~/vllm/bin/vllm, serve, …' (docs/training.md"
            " has the whole line); or name a server that runs: policy.provider"
        )
    return (program, *_VLLM[1:])


def _rank(rank: int) -> int:
    """The least rank that vLLM offers and that holds adapters of this one."""
    return next(most for most in _VLLM_RANKS if rank <= most)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port
