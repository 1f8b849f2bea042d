"""Skills, their evidence, candidates and generations, as JSON."""

from typing import TYPE_CHECKING

from metaclaw.api.turn_views import time_view
from metaclaw.domain.candidate import Candidate, Certificate
from metaclaw.domain.chat import Json
from metaclaw.domain.skill import RetiredSkill, Skill, SkillState
from metaclaw.skills import is_rule
from metaclaw.store import GenerationRow

if TYPE_CHECKING:
    from metaclaw.learn import SkillFacts


def skill_view(skill: Skill) -> dict[str, Json]:
    """A skill without its body."""
    return {
        "name": skill.name,
        "kind": skill.kind.value,
        "description": skill.trigger,
        "category": skill.category,
        "scope": skill.scope,
        "workspace": None if skill.extra.get("workspace") is None else str(skill.extra["workspace"]),
        "expires": None if skill.expires is None else skill.expires.isoformat(),
        "state": state_of(skill).value,
        "author": skill.author.value,
        "pinned": skill.pinned,
        "hash": skill.content_hash,
    }


def state_of(skill: Skill) -> SkillState:
    """The state that is shown: a person's own words are never on trial, also where an older version put them there."""
    return SkillState.LIVE if is_rule(skill) else skill.state


def retired_skill_view(retired: RetiredSkill) -> dict[str, Json]:
    """A skill, rule or fact that is no longer in force, without its body."""
    view = skill_view(retired.skill)
    return {**view, "state": "retired", "pinned": False, "retired_at": time_view(retired.retired_at), "reason": retired.reason}


def skill_facts_view(facts: "SkillFacts") -> dict[str, Json]:
    """The certificate, origin and uplift of a skill."""
    worth = facts.uplift
    interval = None if worth is None else worth.interval
    return {
        "certificate": certificate_view(facts.certificate),
        "learned_from": list(facts.learned_from),
        "uplift": None
        if worth is None
        else {
            "estimate": worth.estimate,
            "interval": None if interval is None else [interval.low, interval.high],
            "placed": worth.placed,
            "withheld": worth.withheld,
            "unknown": worth.unknown,
        },
    }


def certificate_view(certificate: Certificate | None) -> Json:
    """The evidence a skill stands on; null where it has none."""
    if certificate is None:
        return None
    return {
        "stage": certificate.stage.value,
        "probes": certificate.probes,
        "wins": certificate.wins,
        "losses": certificate.losses,
        "ties": certificate.ties,
        "undecided": certificate.undecided,
        "regressions": certificate.regressions,
        "expected_loss": certificate.expected_loss,
        "tokens": certificate.tokens,
        "model": certificate.model,
        "notes": list(certificate.notes),
    }


def candidate_view(candidate: Candidate) -> dict[str, Json]:
    """A candidate without its body."""
    proposal = candidate.proposal
    return {
        "id": candidate.id,
        "skill": proposal.skill.name,
        "description": proposal.skill.trigger,
        "scope": proposal.skill.scope,
        "change": proposal.change.value,
        "replaces": list(proposal.replaces),
        "kind": proposal.kind,
        "written_by": proposal.written_by,
        "is_instruction": proposal.is_instruction,
        "standing": candidate.standing.value,
        "reason": candidate.reason,
        "generation": candidate.generation,
        "made_at": time_view(candidate.made_at),
        "certificate": certificate_view(candidate.certificate),
    }


def generation_view(row: GenerationRow) -> dict[str, Json]:
    """A generation as a list shows it."""
    return {
        "number": row.number,
        "hash": row.hash,
        "reason": row.reason,
        "published_at": time_view(row.published_at),
        "added": row.added,
        "removed": row.removed,
    }
