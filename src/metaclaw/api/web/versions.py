"""The versions of a rule or skill, each with what it changed."""

from collections.abc import Sequence
from typing import Any

from metaclaw.api.web.formats import differences
from metaclaw.domain.skill import Skill
from metaclaw.store import SkillVersion


def changes_of(versions: Sequence[SkillVersion]) -> list[dict[str, Any]]:
    """Each version with what it changed against the one before it."""
    found: list[dict[str, Any]] = []
    for at, one in enumerate(versions):
        before = versions[at + 1].skill if at + 1 < len(versions) else None
        body = differences("" if before is None else before.body, one.skill.body)
        when = [] if before is None or before.trigger == one.skill.trigger else differences(before.trigger, one.skill.trigger)
        facts = _facts_changed(before, one)
        is_text = before is None or any(kind != "same" for kind, _ in (*body, *when))
        found.append({"version": one, "body": body, "when": when, "facts": facts, "has_text": is_text, "is_first": before is None})
    return found


def _facts_changed(before: Skill | None, one: SkillVersion) -> list[str]:
    if before is None:
        return []
    now = one.skill
    found = []
    for name in ("workspace", "expires", "check", "enforce"):
        was, is_now = before.extra.get(name), now.extra.get(name)
        if was != is_now:
            found.append(f"{name}: {was or 'none'} → {is_now or 'none'}")
    if before.scope != now.scope:
        found.append(f"for: {before.scope or 'everyone'} → {now.scope or 'everyone'}")
    if before.state != now.state:
        found.append(f"state: {before.state} → {now.state}")
    if before.pinned != now.pinned:
        found.append("pinned" if now.pinned else "unpinned")
    return found
