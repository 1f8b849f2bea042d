"""The four tools of the built-in agent. Whatever a model asks for, it is given a text: a result, or
what is wrong with the call.
"""

import json
from pathlib import Path
from typing import Final

from metaclaw_bench.agent import files
from metaclaw_bench.agent.chat import Tool, ToolCall
from metaclaw_bench.agent.files import RefusedError
from metaclaw_bench.json_types import Json
from metaclaw_bench.sandbox import Ran, Sandbox, Stopped

_Fields = dict[str, Json]


def _tool(
    name: str, description: str, fields: dict[str, tuple[str, str]], required: list[Json]
) -> Tool:
    properties: _Fields = {
        field: {"type": kind, "description": words} for field, (kind, words) in fields.items()
    }
    return Tool(
        name, description, {"type": "object", "properties": properties, "required": required}
    )


_PATH: Final = ("string", "path, relative to the workspace")
TOOLS: Final = (
    _tool(
        "read",
        "Read a text file.",
        {
            "path": _PATH,
            "offset": ("integer", "first line, from 1"),
            "limit": ("integer", "number of lines"),
        },
        ["path"],
    ),
    _tool(
        "write",
        "Make a file or replace its contents. Folders above it are made as needed.",
        {"path": _PATH, "content": ("string", "the whole contents")},
        ["path", "content"],
    ),
    _tool("list", "List a folder.", {"path": _PATH}, []),
    _tool(
        "run",
        "Run a shell command in the workspace and see what it prints. There is no network.",
        {"command": ("string", "the command")},
        ["command"],
    ),
)
_NAMES: Final = ", ".join(tool.name for tool in TOOLS)
# What the same tool is called in places a persona may come from.
_ALIASES: Final = {"exec": "run"}


class Toolbox:
    """The tools, at work in one workspace."""

    def __init__(self, workspace: Path, sandbox: Sandbox) -> None:
        self._workspace = workspace
        self._sandbox = sandbox

    async def use(self, call: ToolCall) -> str:
        """What a call comes to. Never raises for what the model did wrong."""
        try:
            return await self._use(_ALIASES.get(call.name, call.name), _arguments(call.arguments))
        except RefusedError as error:
            return f"Error: {error}"
        except OSError as error:
            return f"Error: {error.strerror or error}"

    async def _use(self, name: str, fields: _Fields) -> str:
        match name:
            case "read":
                path, offset = _text(fields, "path"), _number(fields, "offset", 1)
                return files.read(
                    self._workspace, path, offset, _number(fields, "limit", files.MAX_LINES)
                )
            case "write":
                return files.write(self._workspace, _text(fields, "path"), _text(fields, "content"))
            case "list":
                return files.entries(
                    self._workspace,
                    _text(fields, "path") if fields.get("path") is not None else ".",
                )
            case "run":
                return _told(await self._sandbox.run(_text(fields, "command")), self._sandbox)
            case _:
                raise RefusedError(f"there is no tool {name!r}; the tools are {_NAMES}")


def _arguments(text: str) -> _Fields:
    try:
        fields = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"the arguments are no JSON ({error}); send one JSON object") from error
    if not isinstance(fields, dict):
        raise RefusedError("the arguments are no JSON object")
    return fields


def _text(fields: _Fields, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise RefusedError(f"`{name}` is missing or no text")
    if "\0" in value and name != "content":
        raise RefusedError(f"`{name}` has a zero byte in it")
    return value


def _number(fields: _Fields, name: str, default: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise RefusedError(f"`{name}` is no whole number")
    return value


def _told(ran: Ran, sandbox: Sandbox) -> str:
    match ran.end:
        case Stopped.OUT_OF_TIME:
            return (
                f"{ran.output}\n[stopped: it took longer than {sandbox.limits.seconds:g} s]".lstrip(
                    "\n"
                )
            )
        case Stopped.OUT_OF_SPACE:
            most = sandbox.limits.workspace_mib
            return (
                f"{ran.output}\n[stopped: the workspace has grown beyond {most} MiB; delete what is"
                " not needed]".lstrip("\n")
            )
        case Stopped.NOT_STARTED:
            return f"Error: the command could not be started: {ran.output}"
        case 0:
            return ran.output or "(no output)"
        case status:
            return f"{ran.output}\n[exit status {status}]".lstrip("\n")
