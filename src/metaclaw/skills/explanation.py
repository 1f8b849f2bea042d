"""Why a turn's prompt held the rules, facts and skills that it held, and why not the others: from the record of the turn and what
was in force when it was made."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Turn, TurnKind, listed_names
from metaclaw.skills.scopes import Teams, applies, applying, most_specific


@dataclass(frozen=True, slots=True)
class NotPlaced:
    """Something that was not placed, and the reason in words."""

    skill: Skill
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was `considered` (in force, for this speaker and place), and what became of everything. `withheld` has the share of
    matching tasks on which each would have been placed. `gone` are names of which nothing more is known."""

    considered: tuple[Skill, ...]
    placed: tuple[Skill, ...]
    listed: tuple[Skill, ...]
    withheld: tuple[tuple[Skill, float], ...]
    not_placed: tuple[NotPlaced, ...]
    gone: tuple[str, ...] = ()


def explain(
    turn: Turn,
    then: Sequence[Skill],
    now: Sequence[Skill],
    *,
    teams: Teams | None = None,
    absorbed: Collection[str] = (),
    enabled: bool = True,
) -> Explanation:
    """`then` was in force when the turn's prompt was made, `now` is today; `absorbed` is what the weights that answered knew."""
    known = {str(skill.name): skill for skill in then}
    full, listed = list(dict.fromkeys(turn.stamp.skills)), listed_names(turn.placements)
    withheld = {str(draw.skill): draw.propensity for draw in turn.draws if not draw.placed}
    shown = {*full, *listed}
    day = turn.times.received_at.astimezone().date()
    mine = [skill for skill in then if _why_not_for(skill, turn, teams) is None and not skill.is_expired(day)]
    chosen = {skill.name for skill in most_specific(mine, applying(turn.scope, teams))}
    rest: list[NotPlaced] = []
    for skill in then:
        if skill.name in shown or skill.name in withheld:
            continue
        reason = _why_not_for(skill, turn, teams)
        if not enabled:
            reason = "nothing is placed: skills.enabled is off"
        elif turn.kind is TurnKind.SIDE:
            reason = f"a side request ({turn.kind_reason}) gets none that is not about what it writes"
        elif reason is None and skill.is_expired(day):
            reason = f"it expired on {skill.expires}"
        elif reason is None and skill.name in absorbed:
            reason = f"the weights of version {turn.stamp.policy_version} have learned it"
        elif reason is None and skill.name not in chosen:
            reason = "a more specific one stands in for it"
        rest.append(NotPlaced(skill, reason or _no_room(skill)))
    rest += [
        NotPlaced(skill, f"it came into force later than generation {turn.stamp.generation}")
        for skill in now
        if skill.name not in known and skill.name not in shown
    ]
    gone = tuple(name for name in (*full, *listed) if name not in known)
    return Explanation(
        tuple(mine),
        _found(full, known),
        _found(listed, known),
        tuple((known[name], share) for name, share in withheld.items() if name in known),
        tuple(rest),
        gone,
    )


def _why_not_for(skill: Skill, turn: Turn, teams: Teams | None) -> str | None:
    if not applies(skill.scope, turn.scope, teams):
        return f"it is for {skill.scope}, and the request came from {turn.scope.user or 'nobody named'}"
    if not skill.is_for_workspace(turn.scope.workspace):
        here = turn.scope.workspace or "no known project"
        return f"it is for the project {skill.extra.get('workspace')}, and the request came from {here}"
    return None


def _no_room(skill: Skill) -> str:
    if skill.is_skill:
        return "others matched the request better, and its line had no room in the list"
    return "the rules in force do not all fit skills.rules_budget_tokens, and others matched the request better"


def _found(names: Sequence[str], known: Mapping[str, Skill]) -> tuple[Skill, ...]:
    return tuple(known[name] for name in names if name in known)
