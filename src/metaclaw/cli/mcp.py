"""`metaclaw mcp`: an MCP server on standard input and output, with which an agent asks what was
learned and proposes rules. It changes nothing that is in force: an agent is not the person.

Messages are JSON-RPC 2.0, one per line (https://modelcontextprotocol.io, version 2025-06-18)."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from metaclaw import __version__
from metaclaw.cli.client import Facts, last_turn, read, request, segment
from metaclaw.errors import MetaClawError
from metaclaw.text import list_terms, shorten

VERSIONS: Final = ("2025-06-18", "2025-03-26", "2024-11-05")
_PARSE_ERROR, _INVALID_REQUEST, _NO_METHOD, _INVALID_PARAMS = -32700, -32600, -32601, -32602
_MOST_FOUND: Final = 10
_MOST_CHARS: Final = 2_000
_ERROR_CHARS: Final = 300
_SOURCE: Final = "an agent"
_INSTRUCTIONS: Final = (
    "MetaClaw remembers the rules and facts that the person stated, and lessons from earlier work."
    " Rules are the person's: propose one if they ask you to remember something; it is in force only"
    " after they approve it."
)


class _RpcError(Exception):
    """A request that cannot be answered, with the code of JSON-RPC."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Tool(NamedTuple):
    """A tool: what it is for, its parameters with their schemas, and those it must have."""

    run: Callable[..., Facts]
    about: str
    fields: Mapping[str, Facts] = {}
    required: tuple[str, ...] = ()
    is_reading: bool = True

    @property
    def schema(self) -> Facts:
        return {
            "type": "object",
            "properties": dict(self.fields),
            "required": list(self.required),
            "additionalProperties": False,
        }


def _text(about: str, most: int = 2000) -> Facts:
    return {"type": "string", "minLength": 1, "maxLength": most, "description": about}


@dataclass(frozen=True, slots=True)
class McpServer:
    """Answers the messages of one client. `proposed` are the candidates of this client."""

    home: Path
    project: str
    proposed: list[str] = field(default_factory=list)

    def answer(self, line: str | bytes) -> Facts | None:
        """The response to one message; None for a notification, or a response of the client."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            return _failure(None, _PARSE_ERROR, f"not JSON: {error}")
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return _failure(None, _INVALID_REQUEST, "write one JSON-RPC 2.0 message per line")
        if "method" not in message or "id" not in message:
            return None
        number, params = message["id"], message.get("params") or {}
        try:
            result = self._result(message["method"], params if isinstance(params, dict) else {})
        except _RpcError as error:
            return _failure(number, error.code, str(error))
        return {"jsonrpc": "2.0", "id": number, "result": result}

    def _result(self, method: object, params: Facts) -> Facts:
        match method:
            case "initialize":
                wanted = params.get("protocolVersion")
                return {
                    "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "metaclaw", "version": __version__},
                    "instructions": _INSTRUCTIONS,
                }
            case "ping":
                return {}
            case "tools/list":
                return {"tools": [_described(name, tool) for name, tool in self._tools().items()]}
            case "tools/call":
                return self._call(params.get("name"), params.get("arguments") or {})
        raise _RpcError(_NO_METHOD, f"there is no method {method}")

    def _call(self, name: object, given: object) -> Facts:
        from jsonschema import Draft202012Validator  # a client waits for the start

        tool = self._tools().get(str(name))
        if tool is None:
            raise _RpcError(_INVALID_PARAMS, f"there is no tool {name}")
        for error in Draft202012Validator(tool.schema).iter_errors(given):
            raise _RpcError(_INVALID_PARAMS, shorten(f"{name}: {error.message}", _ERROR_CHARS))
        assert isinstance(given, dict)
        try:
            found = tool.run(**given)
        except MetaClawError as error:
            return {"content": [{"type": "text", "text": str(error)}], "isError": True}
        text = json.dumps(found, indent=1, ensure_ascii=False)
        content = [{"type": "text", "text": text}]
        return {"content": content, "structuredContent": found, "isError": False}

    def _tools(self) -> dict[str, _Tool]:
        kind = {"enum": ["rule", "fact"], "description": "To be followed, or to be remembered"}
        return {
            "what_have_you_learned": _Tool(
                self._learned,
                "The person's rules and facts for this project, and lessons from earlier work",
            ),
            "why": _Tool(
                self._why,
                "Which rules, lessons and skills were in the prompt of a turn, and why",
                {"turn": _text("The id of a turn, or its beginning [the last turn]", 100)},
            ),
            "search": _Tool(
                self._search,
                "Rules, facts, lessons and skills that have these words",
                {"words": _text("What to look for", 400)},
                ("words",),
            ),
            "propose": _Tool(
                self._propose,
                "Propose a rule or fact that the person wants kept. It waits until they approve it",
                {
                    "text": _text("The rule or fact, in one sentence"),
                    "kind": kind,
                    "when": _text("The situation that it is for [always]", 500),
                    "everywhere": {"type": "boolean", "description": "For all projects"},
                },
                ("text",),
                is_reading=False,
            ),
            "undo": _Tool(
                self._undo,
                "Take back a proposal that you made and that still waits. What is in force only the"
                " person takes back",
                {"candidate": _text("The id that `propose` gave [your last one]", 100)},
                is_reading=False,
            ),
        }

    def _learned(self) -> Facts:
        rules = read(self.home, "/api/rule-section", workspace=self.project)["rules"]
        return {
            "project": self.project,
            "rules": [_brief(one, "when") for one in rules if one["kind"] == "rule"],
            "facts": [_brief(one, "when") for one in rules if one["kind"] == "fact"],
            "lessons": [_brief(one) for one in self._lessons()],
        }

    def _lessons(self) -> list[Facts]:
        found: list[Facts] = read(self.home, "/api/lessons")["lessons"]
        return [one for one in found if one["workspace"] in (None, self.project)]

    def _why(self, turn: str | None = None) -> Facts:
        turn = turn or last_turn(self.home)["id"]
        found = read(self.home, f"/api/turns/{segment(turn)}/why")
        groups = ("placed", "listed", "not_placed")
        return {
            "turn": found["turn"],
            **{name: [_brief(one, "reason") for one in found[name]] for name in groups},
            "broken": found["broken"],
            "held": [one["rule"] for one in found["enforced"]],
        }

    def _search(self, words: str) -> Facts:
        rules = read(self.home, "/api/rule-section", workspace=self.project)["rules"]
        skills = read(self.home, "/api/skills")["skills"]
        listed = {one["name"] for one in rules}
        things = [
            *({**_brief(one, "when"), "kind": one["kind"]} for one in rules),
            *({**_brief(one), "kind": "lesson"} for one in self._lessons()),
            *(
                {"name": one["name"], "text": one["description"], "kind": "skill"}
                for one in skills
                if one["kind"] == "skill" and one["name"] not in listed
            ),
        ]
        return {"found": list(_best(words, things))}

    def _propose(
        self, text: str, kind: str = "rule", when: str = "always", everywhere: bool = False
    ) -> Facts:
        fields = {"text": text, "kind": kind, "when": when, "source": _SOURCE}
        place = None if everywhere else self.project
        found = request(self.home, "POST", "/api/candidates", {**fields, "workspace": place})
        if found["added"]:
            self.proposed.append(found["candidate"])
        return found

    def _undo(self, candidate: str | None = None) -> Facts:
        named = candidate or (self.proposed[-1] if self.proposed else None)
        if named not in self.proposed:
            raise MetaClawError(
                "you can only take back what you proposed in this session; what is in force the"
                " person takes back with: metaclaw undo"
            )
        found = request(self.home, "POST", f"/api/candidates/{segment(named)}/reject")
        self.proposed.remove(named)
        return {"candidate": found["id"], "standing": found["standing"]}


def _described(name: str, tool: _Tool) -> Facts:
    hints = {"readOnlyHint": tool.is_reading, "destructiveHint": False, "openWorldHint": False}
    about = {"name": name, "description": tool.about, "inputSchema": tool.schema}
    return {**about, "annotations": hints}


def _failure(number: Any, code: int, message: str) -> Facts:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


def _brief(one: Facts, *others: str) -> Facts:
    said = one.get("text") or one.get("description") or ""
    return {"name": one["name"], "text": said[:_MOST_CHARS]} | {name: one[name] for name in others}


def _best(words: str, things: Iterable[Facts]) -> Iterator[Facts]:
    """The things that share most terms with the words, the best first."""
    wanted = frozenset(list_terms(words))
    ranked = ((len(wanted & {*list_terms(f"{one['name']} {one['text']}")}), one) for one in things)
    found = sorted((pair for pair in ranked if pair[0]), key=lambda pair: -pair[0])
    yield from (one for _, one in found[:_MOST_FOUND])


@click.command()
@click.option("--project", help="The folder that it is for [the one in which it is started].")
@click.pass_obj
def mcp(home: Path, project: str | None) -> None:
    """Serve tools for an agent (MCP over standard input and output): what was learned, why, search,
    and proposals. Register it with: metaclaw agents connect NAME --mcp
    """
    from metaclaw.cli.rule_files import project_id

    server = McpServer(home, project_id(project or "."))
    for line in sys.stdin.buffer:
        if line.strip() and (answer := server.answer(line)) is not None:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
