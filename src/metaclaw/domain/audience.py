"""Who a rule or skill is for, and a hash of what can reach the prompts of each audience."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from metaclaw.domain.skill import Skill, SkillKind, combined_hash

_OWNER = "owner"
_KINDS = ("team:", "workspace:", "user:")
_BARE = "id:"


class Audience(NamedTuple):
    """The speakers that a rule or skill is for.

    `scope` is empty for everyone, else `owner`, `user:ID`, `workspace:ID`, `team:NAME`, or `id:ID` for a scope that names a user or
    a workspace by its id alone. `workspace` is empty where it applies in every workspace; a directory includes those below it.
    """

    scope: str
    workspace: str


def audience_of(skill: Skill) -> Audience | None:
    """The audience of a rule or skill; None for a fact, and for what is placed for no speaker at all."""
    workspace = skill.extra.get("workspace")
    if skill.kind is SkillKind.FACT or skill.scope == "" or not isinstance(workspace, str | None):
        return None
    scope = skill.scope or ""
    is_bare = scope not in ("", _OWNER) and not scope.startswith(_KINDS)
    return Audience(_BARE + scope if is_bare else scope, workspace or "")


def placed_hash(skill: Skill) -> str:
    """Identity of everything about a rule or skill that decides which text is placed and for which tasks. Its state, author and
    examples are no part of it."""
    overrides = json.dumps(skill.extra.get("overrides"), default=str)
    text = "\0".join((skill.content_hash, str(skill.applies_always), overrides))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def audience_hashes(placed: Iterable[tuple[Audience | None, str]]) -> dict[Audience, str]:
    """For each audience one hash of the rules and skills that are for it, from `audience_of` and `placed_hash` of each."""
    members: defaultdict[Audience, list[str]] = defaultdict(list)
    for audience, digest in placed:
        if audience is not None:
            members[audience].append(digest)
    return {audience: combined_hash(digests) for audience, digests in members.items()}
