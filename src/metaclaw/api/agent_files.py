"""The route that lists the skills and memory files that agents keep themselves, with what in them
repeats or contradicts a rule of the person. They are only read.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from metaclaw.api.home_routes import HomeRoutes
from metaclaw.api.router import ApiRequest, route
from metaclaw.domain.skill import Rule
from metaclaw.errors import SkillError
from metaclaw.skills import contrary, overlap, parse_skill, read_rules
from metaclaw.text import list_terms

_HOMES: Final = (
    ("claude-code", "CLAUDE_CONFIG_DIR", ".claude"),
    ("openclaw", "OPENCLAW_STATE_DIR", ".openclaw"),
    ("hermes", "HERMES_HOME", ".hermes"),
)
"""Agents, with the variable that names their folder, and its default in the home folder."""
_FILES: Final = {
    "claude-code": ("CLAUDE.md", "skills/*/SKILL.md", "projects/*/memory/*.md"),
    "openclaw": (
        *("workspace/*.md", "workspace/memory/*.md", "workspace/skills/*/SKILL.md"),
        "skills/*/SKILL.md",
    ),
    "hermes": ("SOUL.md", "memories/*.md", "skills/**/SKILL.md"),
}
_IN_PROJECTS: Final = (
    *("CLAUDE.md", "CLAUDE.local.md", "AGENTS.md", ".claude/CLAUDE.md"),
    ".claude/skills/*/SKILL.md",
)
# OpenClaw's own configuration may name another folder for its workspace.
_WORKSPACE: Final = re.compile(r"""\bworkspace["']?\s*:\s*["']([^"'\n]+)["']""")
_MOST_FILES: Final = 500
_MOST_BYTES: Final = 256 * 1024
_MOST_ITEMS: Final = 200
_SAME: Final = 0.7
_RELATED: Final = 0.25


@dataclass(frozen=True, slots=True)
class AgentFileRoutes:
    home: HomeRoutes

    @route(
        "GET",
        "/api/agent-files",
        "Skills and memory files of Claude Code, OpenClaw and Hermes, and how they relate to rules",
    )
    def _files(self, request: ApiRequest) -> object:
        rules = [(rule, frozenset(list_terms(rule.body))) for rule in self.home.rulebook.rules()]
        found = {path: (agent, project) for agent, project, path in self._paths()}
        views = []
        for path, (agent, project) in list(found.items())[:_MOST_FILES]:
            here = (one for one in rules if project is None or one[0].is_for_workspace(project))
            views.append(_view(agent, path, list(here)))
        return {"files": views}

    def _paths(self) -> Iterator[tuple[str, str | None, Path]]:
        """The files with their agent, and the project that they are for, if it is one."""
        for agent, variable, default in _HOMES:
            folder = Path(os.environ.get(variable) or Path.home() / default).expanduser()
            for pattern in _FILES[agent]:
                yield from ((agent, None, path) for path in sorted(folder.glob(pattern)))
            for workspace in _named_workspaces(folder / f"{agent}.json"):
                for pattern in ("*.md", "memory/*.md", "skills/*/SKILL.md"):
                    yield from ((agent, None, path) for path in sorted(workspace.glob(pattern)))
        for project in self.home.projects():
            for pattern in _IN_PROJECTS if Path(project).is_absolute() else ():
                found = sorted(Path(project).glob(pattern))
                yield from (("project", project, path) for path in found)


def _named_workspaces(config: Path) -> list[Path]:
    """The folders that an agent's configuration, in JSON with comments, names as workspaces."""
    try:
        text = config.read_text("utf-8", "replace")[:_MOST_BYTES]
    except OSError:
        return []
    named = (Path(name).expanduser() for name in _WORKSPACE.findall(text))
    return [folder for folder in named if folder.is_absolute()]


def _view(agent: str, path: Path, rules: Sequence[tuple[Rule, frozenset[str]]]) -> dict[str, Any]:
    is_skill = path.name == "SKILL.md"
    view: dict[str, Any] = {
        "agent": agent,
        "kind": "skill" if is_skill else "memory",
        "path": str(path),
        "trouble": None,
        "relations": [],
    }
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
        items = read_rules(parse_skill(text, str(path)).body if is_skill else text).rules
    except (OSError, SkillError) as error:
        return {**view, "trouble": str(error)}
    related = (one for item in items[:_MOST_ITEMS] for one in _relations(item["text"], rules))
    return {**view, "relations": list(related)}


def _relations(text: str, rules: Sequence[tuple[Rule, frozenset[str]]]) -> Iterator[dict[str, str]]:
    """How one sentence of a file relates to the rules: it repeats or contradicts them."""
    terms = frozenset(list_terms(text))
    for rule, own in rules:
        shared = overlap(terms, own)
        why = None
        if rule.applies_always or shared >= _RELATED:
            why = contrary(text, rule.body, least_terms=1)
        if why is not None:
            yield {"rule": rule.name, "kind": "contradicts", "text": text, "why": why}
        elif shared >= _SAME:
            yield {"rule": rule.name, "kind": "repeats", "text": text, "why": rule.body}
