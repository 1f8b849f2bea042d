"""A real vLLM on loopback: its CPU build in an environment of its own (`scripts/vllm-env`), loading
adapters while it runs.
"""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.ports import free_port

_ENVIRONMENT: Final = Path(__file__).resolve().parents[2] / ".cache" / "vllm" / "env"
_START_S: Final = 600.0


def is_installed() -> bool:
    """Whether its environment is there."""
    return (_ENVIRONMENT / ".done").exists()


@dataclass(frozen=True)
class Vllm:
    """A running server."""

    url: str

    def complete(
        self, model: str, prompt: Sequence[int], max_tokens: int = 4
    ) -> tuple[list[int], list[float]]:
        """The most likely tokens after a prompt, with their log-probabilities."""
        wanted = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "logprobs": 1,
        }
        body = json.dumps(wanted | {"return_token_ids": True}).encode()
        request = urllib.request.Request(
            f"{self.url}/v1/completions", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            choice: dict[str, Any] = json.load(reply)["choices"][0]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]


SETTINGS: Final = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def command_for(model: str, port: str, context_tokens: int, name: str = "tiny") -> list[str]:
    """The command of a server that computes in single precision, as the trainer does on a CPU with
    a model in miniature.
    """
    return [
        *(str(_ENVIRONMENT / "bin" / "vllm"), "serve", model, "--served-model-name", name),
        *("--host", "127.0.0.1", "--port", port, "--dtype", "float32", "--enforce-eager"),
        *("--max-model-len", str(context_tokens)),
        *("--enable-lora", "--max-loras", "3", "--max-lora-rank", "16"),
    ]


@contextmanager
def serve(model: Path, folder: Path, *, context_tokens: int = 512) -> Iterator[Vllm]:
    """A server for this model, which it calls `tiny`, with its log in the folder."""
    port = free_port()
    command = command_for(str(model), str(port), context_tokens)
    log = folder / "vllm.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=os.environ | SETTINGS, stdout=file, stderr=file, start_new_session=True
        )
    server = Vllm(f"http://127.0.0.1:{port}")
    try:
        _wait_for(server, process, log)
        yield server
    finally:
        _end(process)


def _wait_for(server: Vllm, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=2) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
