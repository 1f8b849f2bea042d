"""What is measured: each target is started on a free port in its own home and stopped again by its
process group.
"""

import contextlib
import http.client
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .library import write_library
from .procfs import Usage, cpu_s, pss_mb
from .results import Start
from .toolchain import MissingToolError

# Fresh for every run, and strong: LiteLLM refuses to start with a weak one or none.
KEY = f"sk-{secrets.token_hex(32)}"
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
_START_LIMIT_S = 180.0
_STOP_LIMIT_S = 15.0


class StartError(Exception):
    """A target did not come up; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a target: written into a fresh home by its recipe."""

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


# A recipe fills a fresh home, given the port to listen on and the provider's port, and says what to
# run.
Recipe = Callable[[Path, int, int], Launch]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def request(
    port: int, method: str, path: str, body: bytes | None = None, timeout_s: float = 30.0
) -> tuple[int, bytes]:
    """One request with the benchmark's key; raises OSError or HTTPException as http.client does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {KEY}",
        "x-api-key": KEY,
    }
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _surroundings() -> dict[str, str]:
    """The environment without the developer's own settings for any proxy under test, and for
    Python: without its cache of compiled modules, half of a cold start is compiling.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("METACLAW", "LITELLM", "OPENAI_", "PYTHONDONTWRITEBYTECODE"))
    }


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process we started in its own session, with its children: politely, then not."""
    for word in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, word)
        try:
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            continue
        return


class Target:
    """One proxy under test. `sequence` numbers its requests, so that no two are alike."""

    def __init__(self, name: str, recipe: Recipe, workplace: Path, provider_port: int) -> None:
        self.name = name
        self.port = 0
        self.home = workplace / name
        self.sequence = 0
        self._recipe = recipe
        self._workplace = workplace
        self._provider_port = provider_port
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    @property
    def pid(self) -> int:
        if self._process is None:
            raise StartError(f"{self.name} is not running")
        return self._process.pid

    def start(self, first_request: bytes) -> Start:
        """Starts it in a fresh home and waits for the first good answer to a real request."""
        self.home = self._workplace / f"{self.name}-{self._starts}"
        self.home.mkdir()
        self.port = free_port()
        launch = self._recipe(self.home, self.port, self._provider_port)
        before = Usage.now(None)
        began = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                launch.command,
                cwd=self.home,
                env={**_surroundings(), "HOME": str(self.home), **launch.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait_for_answer(first_request, began)
        healthy_s = time.monotonic() - began
        started = Start(
            target=self.name,
            round=self._starts,
            healthy_s=healthy_s,
            cpu_s=cpu_s(self.pid),
            pss_mb=pss_mb(self.pid),
            foreign_cores=Usage.now(None).foreign_since(before),
        )
        self._starts += 1
        return started

    def stop(self) -> None:
        if self._process is not None:
            end_group(self._process)
            self._process = None

    @property
    def _log(self) -> Path:
        return self._workplace / f"{self.home.name}.log"

    def _wait_for_answer(self, body: bytes, began: float) -> None:
        seen = "no connection"
        while time.monotonic() - began < _START_LIMIT_S:
            if self._process is not None and self._process.poll() is not None:
                seen = f"it ended with status {self._process.returncode}"
                break
            try:
                status, answer = request(self.port, "POST", CHAT, body)
            except (OSError, http.client.HTTPException) as error:
                seen = repr(error)
            else:
                if status == 200:
                    return
                seen = f"status {status}: {answer[:200]!r}"
            time.sleep(0.005)
        self.stop()
        logs = [self._log, *sorted(self.home.glob("logs/*.log"))]
        tails = "\n".join(log.read_text(errors="replace")[-1500:] for log in logs)
        raise StartError(f"{self.name} did not answer: {seen}\n{tails}")


class Direct(Target):
    """No proxy at all: the provider itself, which the others are compared with."""

    def __init__(
        self, provider: subprocess.Popen[bytes], provider_port: int, workplace: Path
    ) -> None:
        super().__init__("direct", _no_recipe, workplace, provider_port)
        self._process = provider
        self.port = provider_port

    def start(self, first_request: bytes) -> Start:
        request(self.port, "POST", CHAT, first_request)
        return Start("direct", 0, 0.0, cpu_s(self.pid), pss_mb(self.pid), 0.0)

    def stop(self) -> None:
        """The provider outlives every target; whoever started it ends it."""


def _no_recipe(_home: Path, _port: int, _provider_port: int) -> Launch:
    raise StartError("the provider is started by the harness")


@contextlib.contextmanager
def running_provider(program: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The cheap provider on a port of its own choice."""
    process = subprocess.Popen(
        [program], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        assert process.stdout is not None
        word, _, port = process.stdout.readline().decode().partition(" ")
        if word != "listening":
            raise StartError("the provider did not start")
        yield process, int(port)
    finally:
        end_group(process)


def nginx(home: Path, port: int, provider_port: int) -> Launch:
    """A bare reverse proxy: one worker, kept connections, nothing buffered, nothing logged."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise MissingToolError(
            "nginx is not installed (Debian: apt install nginx-light); without it there are no"
            " ratios to it"
        )
    temporary = "\n".join(
        f"  {kind}_temp_path {home}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;\n" if os.geteuid() == 0 else ""
    config = f"""{user}worker_processes 1;
daemon off;
pid {home}/nginx.pid;
error_log stderr crit;
worker_rlimit_nofile 8192;
events {{ worker_connections 4096; }}
http {{
{temporary}
  access_log off;
  keepalive_requests 1000000000;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  upstream provider {{ server 127.0.0.1:{provider_port}; keepalive 600; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://provider;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_request_buffering off;
    }}
  }}
}}
"""
    (home / "nginx.conf").write_text(config)
    return Launch([program, "-p", str(home), "-e", "stderr", "-c", str(home / "nginx.conf")])


def ours(skills: int, program: Path = Path(sys.executable).parent / "metaclaw") -> Recipe:
    """This project's proxy as a user starts it, but for learning, which is off as the others'
    is.
    """

    def recipe(home: Path, port: int, provider_port: int) -> Launch:
        if not program.exists():
            raise MissingToolError(
                f"{program} is missing: install the project into this environment first (make"
                " install)"
            )
        config = f"""[proxy]
api_key = "{KEY}"

[[providers]]
name = "bench-chat"
kind = "openai"
base_url = "http://127.0.0.1:{provider_port}/v1"
api_key = "sk-bench"
wires = ["chat"]

[[providers]]
name = "bench-messages"
kind = "anthropic"
base_url = "http://127.0.0.1:{provider_port}"
api_key = "sk-bench"
"""
        settings = home / "config.toml"
        settings.write_text(config)
        settings.chmod(0o600)
        home.chmod(0o700)
        write_library(home / "skills", skills)
        return Launch(
            [str(program), "start", "--port", str(port)],
            {"METACLAW_HOME": str(home), "METACLAW__SKILLS__LEARN": "false"},
        )

    return recipe
