"""`metaclaw mcp`: the protocol as its published schema has it, and what an agent may do with it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metaclaw.cli.mcp import VERSIONS, McpServer
from tests.cli.program import metaclaw


class Client:
    """A client of one server: it numbers requests, and checks the frame of each response."""

    def __init__(self, server: McpServer) -> None:
        self.server, self.number = server, 0

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        asked = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}
        answer = self.server.answer(json.dumps(asked))
        assert answer is not None
        assert (answer["jsonrpc"], answer["id"]) == ("2.0", self.number)
        assert ("result" in answer) is not ("error" in answer)
        return answer

    def call(self, tool: str, **given: Any) -> Any:
        """What a tool found, which it also has as text."""
        result = self.ask("tools/call", name=tool, arguments=given)["result"]
        assert result["isError"] is False, result
        (part,) = result["content"]
        assert (part["type"], json.loads(part["text"])) == ("text", result["structuredContent"])
        return result["structuredContent"]

    def fails(self, tool: str, **given: Any) -> str:
        result = self.ask("tools/call", name=tool, arguments=given)["result"]
        assert result["isError"] is True
        text: str = result["content"][0]["text"]
        return text


@pytest.fixture
def client(home: Path, tmp_path: Path) -> Client:
    return Client(McpServer(home, str(tmp_path / "shop")))


def test_initialize_agrees_on_a_version_and_names_the_server(client: Client) -> None:
    for asked, agreed in (
        (VERSIONS[0], VERSIONS[0]),
        (VERSIONS[2], VERSIONS[2]),
        ("1", VERSIONS[0]),
    ):
        info = {"name": "test", "version": "1"}
        found = client.ask("initialize", protocolVersion=asked, capabilities={}, clientInfo=info)
        assert found["result"]["protocolVersion"] == agreed
        assert found["result"]["capabilities"] == {"tools": {}}
        assert found["result"]["serverInfo"]["name"] == "metaclaw"
    assert client.server.answer('{"jsonrpc": "2.0", "method": "notifications/initialized"}') is None
    assert client.ask("ping")["result"] == {}


def test_the_tools_have_schemas_and_say_which_only_read(client: Client) -> None:
    tools = {one["name"]: one for one in client.ask("tools/list")["result"]["tools"]}
    assert list(tools) == ["what_have_you_learned", "why", "search", "propose", "undo"]
    for one in tools.values():
        assert one["inputSchema"]["type"] == "object"
        assert one["description"]
    reading = [name for name, one in tools.items() if one["annotations"]["readOnlyHint"]]
    assert reading == ["what_have_you_learned", "why", "search"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{", -32700),
        ("[]", -32600),
        ('{"id": 1, "method": "ping"}', -32600),
        ('{"jsonrpc": "2.0", "id": 1, "method": "resources/list"}', -32601),
        ('{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x"}}', -32602),
    ],
)
def test_what_is_wrong_with_a_message_is_an_error_of_the_protocol(
    client: Client, line: str, code: int
) -> None:
    answer = client.server.answer(line)
    assert answer is not None
    assert answer["error"]["code"] == code
    wrong = client.ask("tools/call", name="propose", arguments={"text": "Use uv.", "hold": True})
    assert wrong["error"]["code"] == -32602


def test_rules_facts_and_skills_of_the_project_are_told_and_found(
    client: Client, tmp_path: Path
) -> None:
    (tmp_path / "shop").mkdir()
    metaclaw("rules", "add", "Use uv instead of pip.")
    metaclaw("rules", "add", "Deploy to stage-2.", "--fact", "--project", str(tmp_path / "shop"))
    metaclaw("rules", "add", "Use npm.", "--project", str(client.server.home))
    found = client.call("what_have_you_learned")
    assert [one["text"] for one in found["rules"]] == ["Use uv instead of pip."]
    assert [one["text"] for one in found["facts"]] == ["Deploy to stage-2."]
    (best, *_) = client.call("search", words="which package tool: pip or uv?")["found"]
    assert (best["kind"], best["text"]) == ("rule", "Use uv instead of pip.")
    assert client.call("search", words="zebra")["found"] == []
    assert "no main turn is recorded" in client.fails("why")
    long = client.ask("tools/call", name="search", arguments={"words": "x" * 20_000})
    assert len(long["error"]["message"]) < 400


def test_a_proposal_waits_for_the_person_and_only_its_maker_takes_it_back(client: Client) -> None:
    metaclaw("rules", "add", "Use uv.")
    made = client.call("propose", text="Sign every commit.")
    assert (made["added"], made["standing"]) == (True, "waiting")
    assert "approve" not in json.dumps(made)  # an agent with a shell is not told how
    assert [one["text"] for one in client.call("what_have_you_learned")["rules"]] == ["Use uv."]
    again = client.call("propose", text="sign every commit")
    assert (again["added"], again["candidate"]) == (False, made["candidate"])
    assert client.call("propose", text="Use uv", everywhere=True)["standing"] == "in force"
    other = Client(McpServer(client.server.home, client.server.project))
    assert "only take back what you proposed" in other.fails("undo", candidate=made["candidate"])
    assert "metaclaw undo" in client.fails("undo", candidate="use-uv")
    assert client.call("undo")["standing"] == "rejected"
    assert "only take back" in client.fails("undo")
    assert client.call("propose", text="Sign every commit.")["standing"] == "rejected"


def test_the_program_speaks_on_standard_input_and_output(home: Path) -> None:
    lines = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "1"}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {"name": "search"}},
    ]
    done = subprocess.run(
        [sys.executable, "-m", "metaclaw.cli", "mcp"],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["id"] for one in answers] == [0, "a"]
    assert answers[1]["error"]["code"] == -32602
