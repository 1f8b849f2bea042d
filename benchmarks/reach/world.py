"""The running program, and people who talk to it through the agents they use."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import httpx

from benchmarks.reach.data import Record
from benchmarks.reach.provider import ScriptedProvider
from benchmarks.reach.text import carries
from tests.support.program import Program

SYSTEM = "You are a helpful agent."
NEXT = "Do the next thing on the list."
_INDEXING_S = 600.0
_PLACE = "/home/ola/code/harbor"
_PENDING = ("turns", "listening", "lessons", "evolutions")
_POLL_S = 0.05
_TOOL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


def _config(url: str, more: str) -> str:
    return f"""
[[providers]]
name = "p"
kind = "openai"
base_url = "{url}/v1"
api_key = "x"
models = ["m"]
wires = ["chat"]

[judge]
provider = "p"
model = "m"

[evolver]
provider = "p"
model = "m"
{more}"""


@dataclass
class Sent:
    """One answered request: the text that the program added to it, the names that the response
    headers give, its session, and the conversation up to its answer.
    """

    added: str
    full: tuple[str, ...]
    listed: tuple[str, ...]
    session: int = 0
    past: tuple[tuple[str, str], ...] = ()

    def carries(self, words: str) -> bool:
        """Whether the program placed these words."""
        return carries(self.added, words)

    def names(self, name: str) -> bool:
        """Whether the program placed this skill, in full or in its list."""
        return name in self.full or name in self.listed


@dataclass(frozen=True)
class Offered:
    """A request with tools: the words of the provider's last request for it, the number of these
    requests, and whether the client saw a call of the program's own tools.
    """

    words: str
    calls: int
    was_seen: bool


@dataclass
class World:
    """One running program with its scripted provider. Every conversation of a person is a session
    of its own.

    `turns` are the ids of the newest conversation's turns.
    """

    program: Program
    provider: ScriptedProvider
    http: httpx.Client
    patience_s: float
    sessions: int = 0
    turns: list[str] = field(default_factory=list)

    def say(
        self,
        user: str,
        *words: str,
        agent: str = "chat",
        workspace: str = "",
        system: str = SYSTEM,
        after: Sent | None = None,
    ) -> Sent:
        """Say these words one after another in a new session, or in the one of `after`; what became
        of the last one.
        """
        if after is None:
            self.sessions += 1
        session = self.sessions if after is None else after.session
        self.turns = []
        past = [] if after is None else [*after.past]
        sent = Sent("", (), ())
        for said in words:
            path, headers, body = _request(agent, f"reach-{session}", workspace, system, past, said)
            headers |= {"x-user-id": user, **self.program.auth}
            response = self.http.post(f"{self.program.url}{path}", json=body, headers=headers)
            response.raise_for_status()
            self.turns.append(response.headers.get("x-metaclaw-turn", ""))
            added = self.provider.newest
            for own in sorted(
                (system, *(text for turn in past for text in turn), said), key=len, reverse=True
            ):
                added = added.replace(own, " ")
            past.append((said, _answer_text(agent, response.json())))
            sent = Sent(
                added,
                _names(response, "x-metaclaw-skills"),
                _names(response, "x-metaclaw-listed"),
                session,
                tuple(past),
            )
        return sent

    def ask_with_tools(self, user: str, said: str, agent: str, *, stream: bool) -> "Offered":
        """Say this in a new session of an agent that offers tools; what its model had before it
        answered.
        """
        self.sessions += 1
        session = f"reach-{self.sessions}"
        path, headers, body = _request(agent, session, _PLACE, SYSTEM, (), said)
        if agent == "chat":
            function = {"name": "shell", "description": "Run a command.", "parameters": _TOOL}
            body["tools"] = [{"type": "function", "function": function}]
        headers |= {"x-user-id": user, **self.program.auth}
        before = self.provider.requests
        response = self.http.post(
            f"{self.program.url}{path}", json={**body, "stream": stream}, headers=headers
        )
        response.raise_for_status()
        calls = self.provider.requests - before
        lines = response.text.splitlines() if stream else [f"data: {response.text}"]
        events = (line.removeprefix("data: ") for line in lines if line.startswith("data: {"))
        was_seen = any(_calls_ours(json.loads(event)) for event in events)
        return Offered(self.provider.newest, calls, was_seen)

    def read_by_tool(self, user: str, text: str) -> None:
        """Let an agent read this text with a tool."""
        self.sessions += 1
        call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        messages = [
            {"role": "user", "content": "Read it and sum it up."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": text},
        ]
        headers = {"x-session-id": f"reach-{self.sessions}", "x-user-id": user, **self.program.auth}
        url = f"{self.program.url}/v1/chat/completions"
        self.http.post(
            url, json={"model": "m", "messages": messages}, headers=headers
        ).raise_for_status()

    def reject(self, turn: str, comment: str) -> None:
        """Mark a turn as failed, as the page and `metaclaw feedback` do."""
        body = {"turn": turn, "outcome": "fail", "comment": comment}
        self.http.post(
            f"{self.program.url}/api/feedback", json=body, headers=self.program.auth
        ).raise_for_status()

    def settle(self) -> bool:
        """Wait until the program has read everything. False if it still had not when patience ran
        out.
        """
        deadline, calm = time.monotonic() + self.patience_s, 0
        while time.monotonic() < deadline:
            pending = self.program.get("/api/status")["learning"]["pending"]
            calm = 0 if any(pending.get(name) for name in _PENDING) else calm + 1
            if calm == 3:
                return True
            time.sleep(_POLL_S)
        return False

    def restart(self) -> None:
        """Stop the program and start it on the same home."""
        self.program.stop()
        self.program.start()

    def learned(self, user: str) -> dict[str, Record]:
        """Rules, facts and skills that belong to one person."""
        found: dict[str, Record] = {}
        for kind in ("skills", "rules"):
            response = self.http.get(f"{self.program.url}/api/{kind}", headers=self.program.auth)
            for learned in response.json().get(kind, []) if response.status_code == 200 else []:
                if str(learned.get("scope", "")).startswith(f"user:{user}"):
                    found[str(learned["name"])] = {**found.get(learned["name"], {}), **learned}
        for name, learned in found.items():
            if "text" not in learned:  # the list of skills goes without their bodies
                learned |= self.program.get(f"/api/skills/{name}")
        return found


@contextmanager
def running(
    provider: ScriptedProvider,
    *,
    patience_s: float,
    skills: Sequence[Record] = (),
    rules: Sequence[Record] = (),
    config: str = "",
) -> Iterator[World]:
    """A fresh home with these skills and rules in it, and the program on it."""
    with (
        TemporaryDirectory(prefix="metaclaw-reach-") as folder,
        provider.serving(),
        httpx.Client(timeout=60) as http,
    ):
        home = Path(folder) / "home"
        program = Program(
            home, _config(provider.url, config), env={"METACLAW__SKILLS__RETRIEVAL": "auto"}
        )
        for skill in skills:
            _write(
                home,
                skill["name"],
                {"description": skill["trigger"], "examples": skill["examples"]},
                skill["body"],
            )
        for rule in rules:
            _write(
                home,
                rule["name"],
                {"kind": "rule", "description": rule["when"], "scope": rule["scope"]},
                rule["text"],
            )
        program.start()
        try:
            program.wait_for(
                "/api/skills", lambda found: len(found["skills"]) >= len(skills) + len(rules)
            )
            # A library is indexed once, in the background: what is measured is a home that has been
            # used before.
            program.wait_for(
                "/api/status",
                lambda found: (
                    not found["skills"]["retrieval"]["state"].startswith(("start", "index"))
                ),
                within_s=_INDEXING_S,
            )
            yield World(program, provider, http, patience_s)
        finally:
            program.stop()


def _write(home: Path, name: str, head: Record, body: str) -> None:
    folder = home / "skills" / name
    folder.mkdir(parents=True)
    fields = "\n".join(
        f"{key}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in {"name": name, **head}.items()
    )
    (folder / "SKILL.md").write_text(f"---\n{fields}\n---\n\n{body}\n")


def _request(
    agent: str,
    session: str,
    workspace: str,
    system: str,
    past: Sequence[tuple[str, str]],
    said: str,
) -> tuple[str, dict[str, str], dict[str, Any]]:
    """A request as this agent sends it, with the working directory where this agent puts it."""
    if agent == "claude-code":
        return _claude_code(session, workspace, system, past, said)
    if agent == "codex":
        return _codex(session, workspace, system, past, said)
    headers = {"x-session-id": session}
    if agent == "header":
        headers["x-workspace-id"] = workspace
    elif agent == "openclaw":
        system = f"{system}\n## Workspace\nYour working directory is: {workspace}"
    messages = [{"role": "system", "content": system}]
    for asked, answered in past:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return (
        "/v1/chat/completions",
        headers,
        {"model": "m", "messages": [*messages, {"role": "user", "content": said}]},
    )


def _claude_code(
    session: str, workspace: str, system: str, past: Sequence[tuple[str, str]], said: str
) -> tuple[str, dict[str, str], dict[str, Any]]:
    place = (
        "# Environment\nYou have been invoked in the following environment: \n - Primary working"
        f" directory: {workspace}\n"
    )
    messages: list[dict[str, Any]] = []
    for asked, answered in (*past, (said, "")):
        messages.append({"role": "user", "content": [{"type": "text", "text": asked}]})
        if len(messages) == 1:
            messages.append({"role": "system", "content": [{"type": "text", "text": place}]})
        if answered:
            messages.append({"role": "assistant", "content": [{"type": "text", "text": answered}]})
    headers = {
        "user-agent": "claude-cli/2.1.325 (external, sdk-cli)",
        "x-app": "cli",
        "x-claude-code-session-id": str(uuid5(NAMESPACE_URL, session)),
        "anthropic-version": "2023-06-01",
    }
    tools = [{"name": "Bash", "description": "Run a command.", "input_schema": _TOOL}]
    body = {
        "model": "m",
        "max_tokens": 1000,
        "system": [{"type": "text", "text": system}],
        "messages": messages,
        "tools": tools,
    }
    return "/v1/messages?beta=true", headers, body


def _codex(
    session: str, workspace: str, system: str, past: Sequence[tuple[str, str]], said: str
) -> tuple[str, dict[str, str], dict[str, Any]]:
    place = (
        f"<environment_context>\n  <cwd>{workspace}</cwd>\n "
        " <shell>bash</shell>\n</environment_context>"
    )
    items = [_codex_item("developer", system), _codex_item("user", place)]
    for asked, answered in past:
        items += [_codex_item("user", asked), _codex_item("assistant", answered)]
    thread = str(uuid5(NAMESPACE_URL, session))
    headers = {
        "originator": "codex_exec",
        "user-agent": "codex_exec/0.166.0",
        "session-id": thread,
        "thread-id": thread,
    }
    tools = [
        {
            "type": "function",
            "name": "shell",
            "description": "Run a command.",
            "parameters": _TOOL,
            "strict": False,
        }
    ]
    body = {
        "model": "m",
        "store": False,
        "input": [*items, _codex_item("user", said)],
        "tools": tools,
        "prompt_cache_key": thread,
    }
    return "/v1/responses", headers, body


def _codex_item(role: str, text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "role": role,
        "content": [{"type": "output_text" if role == "assistant" else "input_text", "text": text}],
    }


def _calls_ours(value: object) -> bool:
    """Whether an answer has a call of a tool of the program's own. Some wires repeat the definitions
    of the tools, which are none.
    """
    if isinstance(value, list):
        return any(map(_calls_ours, value))
    if not isinstance(value, dict):
        return False
    is_ours = str(value.get("name")).startswith("metaclaw_")
    is_call = "arguments" in value or "input" in value
    return (is_ours and is_call) or any(map(_calls_ours, value.values()))


def _answer_text(agent: str, answer: dict[str, Any]) -> str:
    if agent == "claude-code":
        return "".join(part.get("text", "") for part in answer["content"])
    if agent == "codex":
        return "".join(
            part.get("text", "") for item in answer["output"] for part in item.get("content", [])
        )
    return str(answer["choices"][0]["message"]["content"])


def _names(response: httpx.Response, header: str) -> tuple[str, ...]:
    return tuple(
        name.strip() for name in response.headers.get(header, "").split(",") if name.strip()
    )
