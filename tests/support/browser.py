"""A real browser without a window, driven over Chromium's debugging pipe. Tests that need it are
skipped where there is none.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
_PATIENCE_S = 60
# Chromium reads commands from descriptor 3 and writes to 4.
_MOVE_PIPES = (
    "import fcntl, os, sys; commands, answers = (fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one"
    " in sys.argv[1:3]); os.dup2(commands, 3); os.dup2(answers, 4); os.execv(sys.argv[3],"
    " sys.argv[3:])"
)


class Browser:
    """One page. Expressions are evaluated in it; promises are waited for."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        command = [
            sys.executable,
            "-S",
            "-c",
            _MOVE_PIPES,
            str(to_browser),
            str(from_browser),
            CHROMIUM,
            "--headless",
        ]
        command += [
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
        ]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdout=quiet, stderr=quiet, stdin=quiet
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number = b"", 0
        self._session: str | None = None
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]

    def send(self, method: str, **params: Any) -> Any:
        """One command of the debugging protocol, and its result."""
        self._number += 1
        said: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        said |= {} if self._session is None else {"sessionId": self._session}
        os.write(self._out, json.dumps(said).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self) -> Any:
        while b"\0" not in self._buffer:
            piece = os.read(self._in, 1 << 16)
            assert piece, "the browser ended"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, url: str) -> None:
        """Go to an address."""
        self.send("Page.navigate", url=url)

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Until the expression is true."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (value := self.run(expression)):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{expression} did not become true on a page with:"
                    f" {self.run('document.body.innerText')}"
                )
            time.sleep(0.02)
        return value

    def screenshot(self, path: Path, width: int = 1000, height: int = 1000) -> None:
        """What the page looks like."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._process.kill()
        self._process.wait(_PATIENCE_S)
        os.close(self._out)
        os.close(self._in)
