"""Skills in full on request: tools of our own that the main model may call, which the client never
sees.

A request that lists skills offers `metaclaw_skill`, and `metaclaw_find` where not all skills are in
the list. Whether a session has them is decided by its first request, so that the provider's cache of
the prompt holds. `enforcement.hold` answers the calls and asks the provider again."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from metaclaw.domain.chat import Json, Tool, Wire
from metaclaw.domain.skill import Skill
from metaclaw.skills import SKILL_TOOL, listed_line, skill_text
from metaclaw.wires import HeldCall, encode_json, read_json, wire_format

FIND_TOOL: Final = "metaclaw_find"
MOST_FOUND: Final = 10
_FUNCTIONS: Final = (None, "function", "custom", "namespace")
_AUTO: Final = (None, "auto", {"type": "auto"})


def _tool(name: str, description: str, key: str, meaning: str) -> Tool:
    properties: Json = {key: {"type": "string", "description": meaning}}
    schema: dict[str, Json] = {
        "type": "object",
        "properties": properties,
        "required": [key],
        "additionalProperties": False,
    }
    return Tool(name, description, schema)


_TOOLS: Final = {
    SKILL_TOOL: _tool(
        SKILL_TOOL,
        "Read one of the user's procedures in full, before you work that way. The procedures are"
        " listed in the instructions.",
        "name",
        "The name from the list.",
    ),
    FIND_TOOL: _tool(
        FIND_TOOL,
        "Search the user's procedures: the list in the instructions does not hold all of them.",
        "query",
        "What the procedure is about, in a few words.",
    ),
}


class SkillTools(NamedTuple):
    """The tools of one request. `read` finds a skill of the speaker by name, `find` those nearest to
    a query.
    """

    names: tuple[str, ...]
    read: Callable[[str], Skill | None]
    find: Callable[[str], Sequence[Skill]]

    def answer(self, call: HeldCall) -> tuple[str, Skill | None]:
        """The result of a call of ours, and the skill that it holds in full."""
        given = read_json(call.arguments)
        value = next(iter(given.values()), "") if isinstance(given, dict) else given
        wanted = value.strip() if isinstance(value, str) else ""
        if call.name == SKILL_TOOL:
            skill = self.read(wanted)
            if skill is not None:
                return skill_text(skill), skill
        found = self.find(wanted)[:MOST_FOUND]
        if not found:
            return "There is no such procedure.", None
        is_miss = call.name == SKILL_TOOL
        head = "There is no procedure of this name. Near it:" if is_miss else "Procedures:"
        return "\n".join((head, *map(listed_line, found))), None


NO_TOOLS: Final = SkillTools((), lambda name: None, lambda query: ())
"""For requests without tools of ours."""


def may_offer(wire: Wire, fields: Mapping[str, Json]) -> bool:
    """Whether a request may be given tools of ours: it has functions, lets the model choose, and
    wants one answer that the provider does not keep.
    """
    tools = fields.get("tools")
    if not isinstance(tools, list) or fields.get("tool_choice") not in _AUTO:
        return False
    if fields.get("n") not in (None, 1) or wire_format(wire).is_kept_by_provider(fields):
        return False
    kinds = [tool.get("type") in _FUNCTIONS for tool in tools if isinstance(tool, dict)]
    return any(kinds) and all(definition_of(tool).get("name") != SKILL_TOOL for tool in tools)


def definition_of(tool: Json) -> Mapping[str, Json]:
    """The object that names and describes a tool: chat completions have it in `function`."""
    definition = tool.get("function", tool) if isinstance(tool, dict) else None
    return definition if isinstance(definition, dict) else {}


@lru_cache(16)
def tool_items(wire: Wire, names: tuple[str, ...]) -> bytes:
    """The definitions of these tools, as items of a request's list of tools."""
    render = wire_format(wire).render_tool
    return b",".join(encode_json(render(_TOOLS[name])) for name in names)
