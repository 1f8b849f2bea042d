"""Samples of answers in words: what a person or a model writes to show how a rule is broken or followed."""

import json
import re
from collections.abc import Mapping
from typing import Final

from metaclaw.domain.chat import Json, Part, Text, ToolCall
from metaclaw.domain.check import Check, Place, ProgramCheck, ToolClass
from metaclaw.skills.checks.calls import decoded

_FENCE: Final = re.compile(r"\A\s*```[^\n]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_PROMPT: Final = re.compile(r"\A\$ ")
_IN_PROSE: Final = re.compile(
    r"(?:the agent|it|i|run|runs|ran|running|call|calls|called|use|uses|used)\b[^`]*`([^`\n]+)`[^`]*", re.IGNORECASE
)


def sample_answer(check: Check, sample: str) -> tuple[Part, ...]:
    """The answer that a sample stands for: its words, or, for a check of calls, the call: a command, a file (its path on the first
    line, the new text below), or JSON with the name of a tool and its arguments."""
    if isinstance(check, ProgramCheck) or check.where.place is Place.ANSWER:
        return (Text(sample),)
    return (_call(check.where.tools, sample),)


def _call(tools: tuple[str, ...], sample: str) -> ToolCall:
    fenced = _FENCE.match(sample)
    bare = _PROMPT.sub("", fenced[1] if fenced else sample.strip())
    match decoded(bare):
        case {"name": str(name), "arguments": dict(arguments)}:
            return _made(name, arguments)
        case {"name": str(name), "arguments": str(arguments)}:
            return ToolCall("sample", name, arguments)
        case dict(arguments) if tools and tools[0] not in list(ToolClass):
            return _made(tools[0], arguments)
    tool = tools[0] if tools else ToolClass.SHELL.value
    match tool:
        case ToolClass.SHELL:
            told = _IN_PROSE.fullmatch(bare)
            return _made("bash", {"command": told[1] if told else bare})
        case ToolClass.EDIT:
            path, _, text = bare.partition("\n")
            return _made("write", {"path": path.strip(), "content": text})
        case ToolClass.READ:
            return _made("read", {"path": bare})
        case ToolClass.WEB:
            return _made("web_fetch", {"url": bare})
        case _:
            return _made(tool, {"command": bare})


def _made(name: str, arguments: Mapping[str, Json]) -> ToolCall:
    return ToolCall("sample", name, json.dumps(arguments, ensure_ascii=False))
