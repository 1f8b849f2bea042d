"""The ways in which agents spell the same tool call."""

import json
import shlex
from collections.abc import Callable
from typing import Any

from metaclaw.domain.chat import ToolCall


def call(name: str, arguments: object) -> ToolCall:
    """A call with these arguments as JSON."""
    return ToolCall("call_1", name, json.dumps(arguments))


def _batch(command: str) -> dict[str, Any]:
    return {
        "tool_uses": [{"recipient_name": "functions.exec_command", "parameters": {"cmd": command}}]
    }


def _script(command: str) -> str:
    return (
        f"const out = await tools.exec_command({{cmd: {json.dumps(command)}, workdir:"
        " '/tmp'});\ntext(out.output);"
    )


SHELLS: dict[str, Callable[[str], ToolCall]] = {
    "Bash": lambda it: call("Bash", {"command": it, "description": "Do it", "timeout": 1000}),
    "bash": lambda it: call("bash", {"command": it}),
    "bash -lc": lambda it: call("bash", {"command": f"bash -lc {shlex.quote(it)}"}),
    "exec_command": lambda it: call(
        "exec_command", {"cmd": it, "workdir": "/tmp", "yield_time_ms": 1000}
    ),
    "shell": lambda it: call("shell", {"command": ["bash", "-lc", it], "workdir": "/tmp"}),
    "exec": lambda it: call("exec", {"command": it, "yieldMs": 10000}),
    "exec in JavaScript": lambda it: ToolCall("call_1", "exec", json.dumps({"input": _script(it)})),
    "tool_call": lambda it: call("tool_call", {"id": "exec", "args": {"command": it}}),
    "tool_call as text": lambda it: call(
        "tool_call", {"id": "exec", "args": json.dumps({"command": it})}
    ),
    "parallel": lambda it: call("multi_tool_use.parallel", _batch(it)),
    "terminal": lambda it: call("terminal", {"command": it}),
    "run_terminal_cmd": lambda it: call(
        "run_terminal_cmd", {"command": it, "is_background": False, "explanation": "x"}
    ),
    "execute_command": lambda it: call(
        "execute_command", {"command": it, "requires_approval": False}
    ),
    "run_shell_command": lambda it: call("run_shell_command", {"command": it, "description": "x"}),
    "execute_shell_command": lambda it: call("execute_shell_command", {"command": it}),
    "execute_bash": lambda it: call("execute_bash", {"command": it}),
    "mcp__box__shell_exec": lambda it: call("mcp__box__shell_exec", {"cmd": it}),
    "free text": lambda it: ToolCall("call_1", "bash", it),
}
"""Real and common spellings of running a command."""


def _patch(path: str, text: str) -> str:
    lines = "".join(f"+{line}\n" for line in text.splitlines())
    return f"*** Begin Patch\n*** Update File: {path}\n@@\n-old text\n{lines}*** End Patch\n"


def _diff(path: str, text: str) -> str:
    lines = "".join(f"+{line}\n" for line in text.splitlines())
    return f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-old text\n{lines}"


def _blocks(text: str) -> str:
    return f"------- SEARCH\nold text\n=======\n{text}+++++++ REPLACE\n"


EDITS: dict[str, Callable[[str, str], ToolCall]] = {
    "Write": lambda path, text: call("Write", {"file_path": path, "content": text}),
    "Edit": lambda path, text: call(
        "Edit", {"file_path": path, "old_string": "old text", "new_string": text}
    ),
    "MultiEdit": lambda path, text: call(
        "MultiEdit", {"file_path": path, "edits": [{"old_string": "old text", "new_string": text}]}
    ),
    "write": lambda path, text: call("write", {"path": path, "content": text}),
    "edit of opencode": lambda path, text: call(
        "edit", {"filePath": path, "oldString": "old text", "newString": text}
    ),
    "edit of OpenClaw": lambda path, text: call(
        "edit", {"path": path, "edits": [{"oldText": "old text", "newText": text}]}
    ),
    "tool_call": lambda path, text: call(
        "tool_call", {"id": "write", "args": {"path": path, "content": text}}
    ),
    "apply_patch": lambda path, text: call("apply_patch", {"input": _patch(path, text)}),
    "apply_patch as text": lambda path, text: ToolCall("call_1", "apply_patch", _patch(path, text)),
    "patch in JavaScript": lambda path, text: call(
        "exec", {"input": f"await tools.apply_patch({json.dumps(_patch(path, text))});"}
    ),
    "patch of Hermes": lambda path, text: call(
        "patch", {"mode": "replace", "path": path, "old_string": "old text", "new_string": text}
    ),
    "diff": lambda path, text: call("patch", {"mode": "patch", "patch": _diff(path, text)}),
    "write_file": lambda path, text: call("write_file", {"path": path, "content": text}),
    "str_replace_editor": lambda path, text: call(
        "str_replace_editor",
        {"command": "str_replace", "path": path, "old_str": "old text", "new_str": text},
    ),
    "create": lambda path, text: call(
        "str_replace_based_edit_tool", {"command": "create", "path": path, "file_text": text}
    ),
    "write_to_file": lambda path, text: call("write_to_file", {"path": path, "content": text}),
    "replace_in_file": lambda path, text: call(
        "replace_in_file", {"path": path, "diff": _blocks(text)}
    ),
    "edit_file": lambda path, text: call(
        "edit_file", {"target_file": path, "code_edit": text, "instructions": "x"}
    ),
}
"""Real and common spellings of changing a file."""


def shell_call(spelling: str, command: str) -> ToolCall:
    """The command in this spelling."""
    return SHELLS[spelling](command)


def edit_call(spelling: str, path: str, text: str) -> ToolCall:
    """The change of a file in this spelling."""
    return EDITS[spelling](path, text)
