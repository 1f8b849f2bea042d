"""The real program in a process of its own: started, asked, stopped, killed."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import httpx

from tests.support import forks

KEY = "mc-test-key"
NOT_LEARNING = {"METACLAW__SKILLS__LEARN": "false"}
"""For tests that look at every request a provider gets: no judge asks in between."""
PATIENCE_S = 60
"""The least limit of a wait. It is for a hang: a busy machine takes many seconds for what otherwise
takes a moment.
"""


def providers_toml(url: str, *, timeout_s: float = 20) -> str:
    """Three providers at one scripted address: one that speaks both OpenAI wires, a chat-only one,
    and an Anthropic one.
    """
    return f"""
[[providers]]
name = "openai"
kind = "openai"
base_url = "{url}/v1"
api_key = "sk-openai"
timeout_s = {timeout_s}

[[providers]]
name = "chatonly"
kind = "openai"
base_url = "{url}/v1"
api_key = "sk-chatonly"
wires = ["chat"]
models = ["chat-model"]
timeout_s = {timeout_s}

[[providers]]
name = "anthropic"
kind = "anthropic"
base_url = "{url}"
api_key = "sk-anthropic"
models = ["claude-model"]
timeout_s = {timeout_s}
"""


def gemini_toml(url: str) -> str:
    """A provider of Google's API at the scripted address."""
    return f"""
[[providers]]
name = "gemini"
kind = "gemini"
base_url = "{url}"
api_key = "sk-gemini"
models = ["gemini-model"]
"""


UNREACHABLE = providers_toml("http://127.0.0.1:1")
"""For tests that ask no model. Without providers a program converts the embedded one, half a
gigabyte, into its home.
"""


def _client() -> httpx.Client:
    return _client_trusting(os.environ.get("SSL_CERT_FILE"))


@cache
def _client_trusting(_certificate: str | None) -> httpx.Client:
    """Made once, which takes longer than a request; once for each certificate that the environment
    says it trusts. It keeps no connection, for programs end."""
    return httpx.Client(timeout=PATIENCE_S, limits=httpx.Limits(max_keepalive_connections=0))


class Program:
    """One home folder, and at most one running proxy on it."""

    def __init__(
        self, home: Path, config: str = "", *, proxy: str = "", env: Mapping[str, str] | None = None
    ) -> None:
        self.home = home
        # Tests count on what words find; those about meaning say so in `env`.
        self.env = {
            **os.environ,
            "METACLAW_HOME": str(home),
            "METACLAW__SKILLS__RETRIEVAL": "words",
            **(env or {}),
        }
        self.process: forks.Process | None = None
        self.url = ""
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = home / "config.toml"
        path.write_text(f'[proxy]\nport = 0\napi_key = "{KEY}"\n{proxy}\n{config}')
        path.chmod(0o600)

    @property
    def log(self) -> Path:
        return self.home / "program.log"

    def start(self, *arguments: str, wait_s: float = 2 * PATIENCE_S) -> "Program":
        with self.log.open("ab") as log:
            self.process = self._launch(["start", *arguments], log)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if (code := self.process.poll()) is not None:
                raise AssertionError(
                    f"the program exited {code} at start:\n{self.log.read_text()[-4000:]}"
                )
            self.url = self._serving_url(self.process.pid)
            if self.url and self._answers():
                return self
            time.sleep(0.02)
        raise TimeoutError(f"the program did not start:\n{self.log.read_text()[-4000:]}")

    def _launch(self, arguments: Sequence[str], log: IO[bytes]) -> forks.Process:
        return forks.start(arguments, self.env, log, log)

    def _serving_url(self, pid: int) -> str:
        try:
            facts = json.loads((self.home / "run" / "serving.json").read_text())
        except (OSError, ValueError):
            return ""
        return str(facts["url"]) if facts.get("pid") == pid else ""

    def _answers(self) -> bool:
        try:
            return _client().get(f"{self.url}/healthz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        """kill -9: no warning, no clean-up."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(PATIENCE_S)

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """SIGTERM, and the exit status."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def get(self, path: str) -> Any:
        """A read of the program's own API."""
        answer = _client().get(f"{self.url}{path}", headers=self.auth)
        answer.raise_for_status()
        return answer.json()

    def wait_for(
        self, path: str, wanted: Callable[[Any], bool], within_s: float = PATIENCE_S
    ) -> Any:
        """Read again and again until it is as wanted, ever more seldom: each look costs the program
        that is waited for.
        """
        began = time.monotonic()
        while not wanted(value := self.get(path)):
            waited_s = time.monotonic() - began
            if waited_s > max(within_s, PATIENCE_S):
                raise TimeoutError(f"{path} did not become as wanted: {value}")
            time.sleep(min(0.25, max(0.02, 0.1 * waited_s)))
        return value

    @property
    def auth(self) -> dict[str, str]:
        return {"authorization": f"Bearer {KEY}"}

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a metaclaw command on this home."""
        return forks.run(arguments, self.env, PATIENCE_S)
