"""A small company at work through the running program: agents, corrections, a failure, a learned
skill. For the pages.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.support.program import PATIENCE_S, Program
from tests.support.provider import Json, Seen, _json
from tests.support.teacher import FAIL, HEARD_NOTHING, PASS, Teacher, _whole, message_of, understood

SHOP, SITE = "/home/ada/shop", "/home/ada/website"
SKILL = {
    "name": "migrate-before-deploy",
    "trigger": "When deploying a service whose database schema has changed",
    "body": (
        "1. List the pending migrations with `make migrations`.\n2. Apply them to staging and run"
        " the smoke test.\n3. Deploy only when the smoke test passes.\n\nDo not deploy first: the"
        " new code reads columns that are not there yet."
    ),
    "category": "operations",
    "examples": ["Deploy the orders service to production"],
}
_HEARD: Sequence[tuple[str, Json]] = (
    ("use uv", understood("Use uv instead of pip for Python packages.", scope="project")),
    (
        "YYYY-MM-DD",
        understood(
            "Write dates as YYYY-MM-DD in changelogs and release notes.", when="writing dates"
        ),
    ),
    ("never push", understood("Never push to main; open a pull request instead.")),
    (
        "staging runs",
        understood("Staging runs at staging.shop.example behind the company VPN.", kind="fact"),
    ),
    ("British", understood("Write British English in everything customers read.")),
    (
        "this week",
        understood(
            "Do not touch the checkout page this week: the sale is running.", expires="2099-12-31"
        ),
    ),
)
_ANSWERS: Sequence[tuple[str, str]] = (
    (
        "uv",
        (
            "Understood: I use uv from now on. `uv add httpx` is done, and the lock file is up to"
            " date."
        ),
    ),
    (
        "changelog",
        (
            "## 2.4.0, 2026-02-01\n\n- The basket keeps its items when a customer signs in.\n-"
            " Refunds appear in the order history."
        ),
    ),
    (
        "flaky",
        (
            "The test waited for a fixed 200 ms. It now waits until the order appears, and passed"
            " 50 times in a row."
        ),
    ),
    (
        "deploy",
        (
            "Deployed the orders service. The health check fails: column orders.discount does not"
            " exist."
        ),
    ),
    (
        "postcard",
        (
            "Dear customer,\n\nyour parcel is on its way. We hope the colour is exactly the one you"
            " were looking for."
        ),
    ),
    (
        "export",
        (
            "I added the endpoint `GET /orders/export`, which streams a CSV file, and a test for"
            " 10,000 orders."
        ),
    ),
    ("push", "I opened pull request 214 with the change instead; the checks are green."),
)
_CALLS = {
    "flaky": ("run_tests", {"path": "tests/test_orders.py", "repeat": 50}),
    "export": ("edit_file", {"path": "shop/orders.py"}),
}


class Workplace(Teacher):
    """The scripted provider of the company: it works, listens, judges and writes skills."""

    def __init__(self) -> None:
        super().__init__(
            work=_work, listen=_listen, judge=_judge, evolve=lambda prompt: {"skills": [SKILL]}
        )

    async def _answer(self, seen: Seen, receive: Any, send: Any) -> None:
        request = seen.json if seen.body else {}
        wants = next((name for name in _CALLS if name in _last(request)), None)
        if (
            seen.header("x-metaclaw-purpose") is None
            and wants
            and request.get("tools")
            and request["messages"][-1]["role"] == "user"
        ):
            name, arguments = _CALLS[wants]
            called = {
                "id": "call_1",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            whole = _counted(_whole(request, ""), request)
            whole["choices"][0] |= {
                "message": {"role": "assistant", "content": None, "tool_calls": [called]},
                "finish_reason": "tool_calls",
            }
            await _json(send, 200, whole)
            return
        await super()._answer(seen, receive, _counting(send, request))


class Agent:
    """One agent's conversation in a project."""

    def __init__(
        self, program: Program, client: str, project: str, user: str | None = None
    ) -> None:
        self._program = program
        self._headers = {**program.auth, "User-Agent": client, "X-Workspace-Id": project}
        self._headers |= {} if user is None else {"X-User-Id": user}
        self._messages: list[Json] = [
            {
                "role": "system",
                "content": "You are a coding agent. Keep answers short.\n\nTools run in a sandbox.",
            }
        ]
        self.turn = self.session = ""

    def say(self, words: str, result: str | None = None) -> str:
        """Ask; if the model calls a tool, give it this result. The last answer."""
        self._messages.append({"role": "user", "content": words})
        message = self._ask()
        if message.get("tool_calls"):
            self._messages.append(
                {
                    "role": "tool",
                    "tool_call_id": message["tool_calls"][0]["id"],
                    "content": result or "done",
                }
            )
            message = self._ask()
        return str(message["content"])

    def _ask(self) -> Json:
        tools = [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": "A tool.",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
            for name in ("run_tests", "edit_file")
        ]
        body = {"model": "gpt-5-mini", "messages": self._messages, "tools": tools}
        answer = httpx.post(
            f"{self._program.url}/v1/chat/completions",
            json=body,
            headers=self._headers,
            timeout=PATIENCE_S,
        )
        answer.raise_for_status()
        self.turn, self.session = (
            answer.headers["x-metaclaw-turn"],
            answer.headers["x-metaclaw-session"],
        )
        message: Json = answer.json()["choices"][0]["message"]
        self._messages.append({name: value for name, value in message.items() if value is not None})
        return message


def program_at_work(
    workplace: Workplace, home: Path, *, more: str = "", gate: str = "lint"
) -> Program:
    """The program in front of the workplace's model."""
    return Program(
        home,
        f"""
[[providers]]
name = "openai"
kind = "openai"
base_url = "{workplace.url}/v1"
api_key = "sk-work"
models = ["gpt-5-mini"]
wires = ["chat"]

[skills]
gate = "{gate}"

[judge]
provider = "openai"
model = "gpt-5-mini"

[evolver]
provider = "openai"
model = "gpt-5-mini"
min_failures = 1
{more}
""",
    )


def work_a_day(program: Program) -> dict[str, Agent]:
    """Everything a day brings: conversations, rules, a failure with a skill that is learned from
    it. Each agent by what it did.
    """
    done: dict[str, Agent] = {}

    def agent(name: str, client: str, project: str) -> Agent:
        done[name] = Agent(program, client, project)
        return done[name]

    one = agent("flaky", "opencode/1.2", SHOP)
    one.say(
        "The flaky test in test_orders.py fails about once a day. Find out why.",
        "50 passed in 41.2 s",
    )
    one.say(
        "Good. Please remember that staging runs at staging.shop.example behind the company VPN."
    )
    two = agent("packages", "codex_cli_rs/0.40", SHOP)
    two.say("Add httpx to the project.")
    two.say("No, use uv instead of pip here. Always.")
    three = agent("changelog", "opencode/1.2", SHOP)
    three.say("Write the changelog for 2.4.0.")
    three.say("Dates as YYYY-MM-DD please, always.")
    four = agent("postcard", "python-httpx/0.27", SITE)
    four.say("Write the postcard text that goes into parcels.")
    four.say("From now on write British English in everything customers read.")
    five = agent("export", "opencode/1.2", SHOP)
    five.say("Add an export of orders as CSV.", "shop/orders.py: 38 lines added")
    five.say("Never push to main, open a pull request.")
    five.say("Do not touch the checkout page this week, the sale is running.")
    program.wait_for("/api/rules", lambda facts: len(facts["rules"]) >= 6)
    six = agent("deploy", "codex_cli_rs/0.40", SHOP)
    six.say("Deploy the orders service to production.")
    six.say("That is wrong: you must apply the migrations before you deploy.")
    seven = agent("export-again", "opencode/1.2", SHOP)
    seven.say(
        "Add the customer's country to the export of orders.", "shop/orders.py: 6 lines changed"
    )
    return done


def _counting(send: Any, request: Json) -> Any:
    """A `send` that puts likely numbers of tokens into answers."""

    async def counted(message: Json) -> None:
        if message["type"] == "http.response.body" and message["body"].startswith(
            b'{"id": "chatcmpl-taught"'
        ):
            message = {
                **message,
                "body": json.dumps(_counted(json.loads(message["body"]), request)).encode(),
            }
        await send(message)

    return counted


def _counted(whole: Json, request: Json) -> Json:
    asked, said = len(json.dumps(request)) // 4 + 900, len(json.dumps(whole["choices"])) // 4
    whole["usage"] = {
        "prompt_tokens": asked,
        "completion_tokens": said,
        "total_tokens": asked + said,
    }
    return whole


def _last(request: Json) -> str:
    users = [one for one in request.get("messages", []) if one.get("role") == "user"]
    return str(users[-1].get("content")) if users else ""


def _find(text: str, known: Sequence[tuple[str, Any]], otherwise: Any) -> Any:
    return next((value for words, value in known if words.lower() in text.lower()), otherwise)


def _work(prompt: str) -> str:
    return str(_find(prompt.rsplit("\n", 1)[-1], _ANSWERS, "Done. All checks pass."))


def _listen(prompt: str) -> Json:
    return dict(_find(message_of(prompt), _HEARD, HEARD_NOTHING))


def _judge(prompt: str) -> Json:
    answer = prompt.split("== The answer")[-1]
    return (
        {**FAIL, "reason": "the health check fails after the deployment"}
        if "does not exist" in answer
        else PASS
    )


def wait_for_learning(program: Program, is_there: Callable[[Json], bool]) -> None:
    """Until the program has learned what is wanted."""
    program.wait_for("/api/skills", is_there)
