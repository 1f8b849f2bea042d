"""A real Tinker-API server on loopback: SkyRL's, in an environment of its own (`scripts/skyrl-env`), with a model in miniature."""

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.tiny import make_tiny_model

_CACHE: Final = Path(__file__).resolve().parents[2] / ".cache" / "tinker"
_START_S: Final = 120.0
MISSING: Final = "no Tinker-API server to test against: `make test-tinker` installs one and runs these"


def is_installed() -> bool:
    """Whether the server's environment is there."""
    return (_CACHE / "server" / ".done").exists()


class SkyRL:
    """A running server: where it is, and what model it was started with."""

    def __init__(self, url: str, model: Path, process: "subprocess.Popen[bytes]") -> None:
        self.url = url
        self.model = model
        self._process = process

    def kill(self) -> None:
        """End it as a power cut would. Its children are of its own process group."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)

    def stop(self) -> None:
        """End it, if it still runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()


@contextmanager
def serve(folder: Path) -> Iterator[SkyRL]:
    """A server with its database, checkpoints and log in this folder; compiled code is kept for later runs."""
    model = make_tiny_model(folder / "tiny")
    port = _free_port()
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            _command(folder, model, port), env=_environment(), stdout=log, stderr=log, start_new_session=True
        )
    server = SkyRL(f"http://127.0.0.1:{port}", model, process)
    try:
        _wait_for(server, process, folder / "server.log")
        yield server
    finally:
        server.stop()


def _command(folder: Path, model: Path, port: int) -> list[str]:
    # The server finds out how to start its engine from the command line of its parent, so it must be `uv run … -m`.
    environment = _CACHE / "server"
    uv = [str(environment / "bin" / "uv"), "run", "--no-project", "--active", "--python", str(environment / "bin" / "python")]
    return [
        *uv,
        *("-m", "skyrl.tinker.api", "--host", "127.0.0.1", "--port", str(port), "--backend", "jax", "--base-model", str(model)),
        *("--backend-config", '{"max_lora_adapters": 4, "max_lora_rank": 8}'),
        *("--checkpoints-base", str(folder / "checkpoints"), "--database-url", f"sqlite:///{folder / 'tinker.db'}"),
    ]


def _environment() -> dict[str, str]:
    environment = _CACHE / "server"
    return {
        **os.environ,
        "VIRTUAL_ENV": str(environment),
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        "UV_OFFLINE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(_CACHE / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def _wait_for(server: SkyRL, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{server.url}/api/v1/healthz", timeout=2) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
