"""A proxy that answers by script and holds a home's lock, for commands that ask the one that
runs.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from metaclaw.config import ensure_api_key
from metaclaw.instance import acquire

Answers = Mapping[str, tuple[int, dict[str, Any]]]
"""What is answered to `GET /path`; anything else is a 404."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that came."""

    line: str
    said: dict[str, Any] | None


@contextmanager
def scripted(home: Path, answers: Answers) -> Iterator[list[Asked]]:
    """Answer by script until the block ends; yields the requests as they come."""
    wanted = f"Bearer {ensure_api_key(home).resolve()}"
    seen: list[Asked] = []

    class Script(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            line = f"{self.command} {self.path}"
            seen.append(Asked(line, json.loads(body) if body else None))
            status, facts = answers.get(
                line, (404, {"error": {"message": f"there is nothing at {self.path}"}})
            )
            if self.headers["Authorization"] != wanted:
                status, facts = 401, {"error": {"message": "no"}}
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(facts).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with acquire(home) as instance, ThreadingHTTPServer(("127.0.0.1", 0), Script) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        instance.announce(f"http://127.0.0.1:{server.server_port}")
        try:
            yield seen
        finally:
            server.shutdown()
            thread.join()
