"""How AutoResearchClaw asks: urllib, whole answers, two messages, no session; past whatever answers
with an error.

Bodies are those recorded of the real program where there are any (only the model's name is
another), else of the same shape."""

import json
import logging
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mode
from typing import Any

from bench.tests.research.arc_stand_in_config import Config, Judge

log = logging.getLogger(__name__)

AGENT = (
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko)"
    " Chrome/131.0.0.0 Safari/537.36"
)
TRIES = 3
AGAIN = (400, 429, 500, 502, 503, 504, 529)


@dataclass(frozen=True)
class Ask:
    """A request for something. `capture` names a recorded one of its kind; only a main one is given
    the client's own overlay.
    """

    words: str
    json_mode: bool = False
    max_tokens: int = 4096
    capture: str = ""
    is_main: bool = True


@dataclass
class Client:
    """Asks at one address, and at another if that fails in any way. What it did is in
    `calls.jsonl`.
    """

    url: str
    key: str
    model: str
    fallback_url: str
    fallback_key: str
    folder: Path
    captures: Path | None
    asked: int = 0

    @staticmethod
    def of(config: Config, folder: Path, captures: Path | None) -> "Client | None":
        """None where an address or a key is missing: then stages do without a model."""
        url = config.proxy_url if config.bridge_enabled else config.base_url
        fallback = (config.fallback_url or config.base_url) if config.bridge_enabled else ""
        client = Client(
            url,
            config.key,
            config.model,
            fallback,
            config.fallback_key or config.key,
            folder,
            captures,
        )
        return client if url and config.key else None

    def chat(self, ask: Ask, system: str, context: str, overlay: str) -> str:
        """What was answered. Raises RuntimeError once it has been tried three times."""
        body = self._body(ask, system, context, overlay)
        self.asked += 1
        error: Exception | None = None
        for _ in range(TRIES):
            try:
                return self._once(json.dumps(body).encode())
            except urllib.error.HTTPError as failed:
                error = failed
                if failed.code not in AGAIN:
                    break
            except OSError as failed:
                error = failed
        raise RuntimeError(f"nobody answered: {error}")

    def _body(self, ask: Ask, system: str, context: str, overlay: str) -> dict[str, Any]:
        body = recorded(self.captures, ask.capture)
        if body is None:
            messages = [
                {"role": "system", "content": system},
                {"role": "user", "content": f"{ask.words}\n{context}"},
            ]
            body = {
                "model": self.model,
                "messages": [one for one in messages if one["content"]],
                "temperature": 0.7,
            }
            body["max_tokens"] = ask.max_tokens
            if ask.json_mode:
                body["response_format"] = {"type": "json_object"}
        body["model"] = self.model
        body["messages"][-1]["content"] += overlay
        return body

    def _once(self, payload: bytes) -> str:
        try:
            said = self._post(self.url, self.key, payload, "primary")
        except OSError as error:  # an HTTP error is one, too
            if not self.fallback_url:
                raise
            log.warning("not answered, asking elsewhere: %s", error)
            said = self._post(self.fallback_url, self.fallback_key, payload, "fallback")
        content: str = said["choices"][0]["message"]["content"] or ""
        return content

    def _post(self, url: str, key: str, payload: bytes, via: str) -> Any:
        headers = {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/json",
            "User-Agent": AGENT,
        }
        note(self.folder, via, f"{url.rstrip('/')}/chat/completions")
        return post(f"{url.rstrip('/')}/chat/completions", payload, headers)


def recorded(captures: Path | None, kind: str) -> dict[str, Any] | None:
    """The body of a recorded request of the real program."""
    path = (
        next(iter(sorted(captures.glob(f"autoresearchclaw-*__{kind}.json"))), None)
        if captures and kind
        else None
    )
    body: dict[str, Any] | None = json.loads(path.read_text())["body"] if path else None
    return body


def post(url: str, payload: bytes, headers: dict[str, str]) -> Any:
    with urllib.request.urlopen(
        urllib.request.Request(url, payload, headers), timeout=30
    ) as answer:
        return json.loads(answer.read())


def note(folder: Path, via: str, url: str) -> None:
    with (folder / "calls.jsonl").open("a") as file:
        file.write(json.dumps({"via": via, "url": url}) + "\n")


def ask_judges(judge: Judge, stage: int, captures: Path | None) -> float:
    """The votes of the gate, asked for at the same time; what most of them say."""
    body = recorded(captures, "prm_judge") or {
        "model": judge.model,
        "messages": [
            {
                "role": "system",
                "content": (
                    "You are a quality reviewer for an automated academic research pipeline."
                ),
            },
            {
                "role": "user",
                "content": (
                    "## Evaluation Criteria\nIs it good?\n\n## Output to Evaluate\nWhat stage"
                    f" {stage} made."
                ),
            },
        ],
        "temperature": judge.temperature,
        "max_completion_tokens": 512,
    }
    payload = json.dumps({**body, "model": judge.model}).encode()
    headers = {"Authorization": f"Bearer {judge.key}", "Content-Type": "application/json"}

    def vote(_: int) -> float | None:
        try:
            said = post(f"{judge.api_base.rstrip('/')}/chat/completions", payload, headers)[
                "choices"
            ][0]["message"]["content"]
            return float(said.partition("Score:")[2].split()[0])
        except (OSError, ValueError, LookupError):
            return None

    with ThreadPoolExecutor(judge.votes) as pool:
        votes = [one for one in pool.map(vote, range(judge.votes)) if one is not None]
    return mode(votes) if votes else 0.0


def end_session(config: Config, run_id: str, folder: Path) -> None:
    """Say that the run is over: without credentials, below `/v1`, and whatever comes of it is
    passed over.
    """
    url = f"{config.proxy_url.rstrip('/')}/v1/chat/completions"
    body = {
        "model": "session-end",
        "messages": [{"role": "user", "content": "session complete"}],
        "max_tokens": 1,
    }
    said = {"X-Session-Id": f"arc-{run_id}", "X-Session-Done": "true", "X-Turn-Type": "main"}
    try:
        post(url, json.dumps(body).encode(), {"Content-Type": "application/json", **said})
        note(folder, "end", url)
    except (OSError, ValueError) as error:
        note(folder, f"end failed: {error}", url)
