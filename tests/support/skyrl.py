"""A real Tinker-API server on loopback: SkyRL's, in an environment of its own
(`scripts/skyrl-env`), with a model in miniature.
"""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.ports import free_port
from tests.support.tiny import make_tiny_model

_CACHE: Final = Path(__file__).resolve().parents[2] / ".cache" / "tinker"
_START_S: Final = 300.0
# Batches of one size, so that few shapes are compiled. A model in training, and kept weights that
# are asked for, take an adapter each; one is the server's own.
_ENGINE: Final = {
    "max_lora_adapters": 4,
    "max_lora_rank": 8,
    "sample_max_num_sequences": 8,
    "train_micro_batch_size": 8,
}
MISSING: Final = (
    "no Tinker-API server to test against: `make test-tinker` installs one and runs these"
)


def is_installed(release: str = "server") -> bool:
    """Whether the server's environment is there."""
    return (_CACHE / release / ".done").exists()


class SkyRL:
    """A server that can be started, killed and started again at the same place with what it had on
    disk.
    """

    def __init__(self, folder: Path, model: Path, release: str) -> None:
        self.model = model
        self.release = release
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        path = self._folder / "server.log"
        command = _command(_CACHE / self.release, self._folder, self.model, self._port)
        with path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=_environment(_CACHE / self.release),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _wait_for(self, self._process, path)

    def kill(self) -> None:
        """End it as a power cut would. Its children are of its own process group."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)

    def stop(self) -> None:
        """End it, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()


@contextmanager
def serve(folder: Path, model: Path | None = None, release: str = "server") -> Iterator[SkyRL]:
    """A server with its database, checkpoints and log in this folder; compiled code is kept for
    later runs. `release` is its environment.
    """
    server = SkyRL(folder, model or make_tiny_model(folder / "tiny"), release)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _command(environment: Path, folder: Path, model: Path, port: int) -> list[str]:
    # The server finds out how to start its engine from the command line of its parent, so it must
    # be `uv run … -m`.
    uv = [
        str(environment / "bin" / "uv"),
        "run",
        "--no-project",
        "--active",
        "--python",
        str(environment / "bin" / "python"),
    ]
    return [
        *uv,
        *(
            "-m",
            "skyrl.tinker.api",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--backend",
            "jax",
            "--base-model",
            str(model),
        ),
        *("--backend-config", json.dumps(_ENGINE)),
        *(
            "--checkpoints-base",
            str(folder / "checkpoints"),
            "--database-url",
            f"sqlite:///{folder / 'tinker.db'}",
        ),
    ]


def _environment(environment: Path) -> dict[str, str]:
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
