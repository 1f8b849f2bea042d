"""Merging near-duplicates: two skills become one only if the merged text passes the probes of both.

Who writes the merged text is another matter; here is which skills to merge, and whether a text may take their place. The test is
the gate's own shadow (see `gate.shadow`): against its parents a merge need not be better, but every probe they pass must still
pass."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from metaclaw.domain.candidate import Change, Probe, Proposal
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.ports import Replayer
from metaclaw.skills.gate.lint import lint
from metaclaw.skills.gate.shadow import Budget, Decision, Rules, ShadowReport, shadow
from metaclaw.skills.hygiene.similar import find_similar, group_similar

_MOST_PARENTS = 4


@dataclass(frozen=True, slots=True)
class MergeReport:
    """Whether a merged text may take its parents' place. `by_parent` holds the test on each parent's own probes."""

    decision: Decision
    reason: str
    by_parent: Mapping[SkillName, ShadowReport]


def find_merges(skills: Sequence[Skill], at_least: float = 0.7) -> list[tuple[Skill, ...]]:
    """Groups of near-duplicates of one scope that the program may merge: nothing a person wrote, said or pinned."""
    own = [skill for skill in skills if skill.author is Authorship.EVOLVER and not skill.pinned]
    return [group[:_MOST_PARENTS] for group in group_similar(find_similar(own, at_least))]


async def try_merge(
    proposal: Proposal,
    probes: Mapping[SkillName, Sequence[Probe]],
    replayer: Replayer,
    budget: Budget,
    clock: Callable[[], float] = monotonic,
    *,
    rules: Rules | None = None,
    model: str = "",
) -> MergeReport:
    """Try a merged text on every parent's probes, parent by parent; the first that does not hold ends it."""
    if proposal.change is not Change.MERGE:
        raise ValueError(f"proposal {proposal.skill.name} is no merge")
    if objections := lint(proposal.skill):
        return MergeReport(Decision.REJECT, "; ".join(objections), {})
    reports: dict[SkillName, ShadowReport] = {}
    for parent in proposal.replaces:
        report = await shadow(proposal, probes.get(parent, ()), replayer, budget, clock, rules=rules, model=model)
        reports[parent] = report
        if report.decision is not Decision.PASS:
            return MergeReport(report.decision, f"on the probes of {parent}: {report.reason}", reports)
    return MergeReport(Decision.PASS, f"the probes of {', '.join(proposal.replaces)} all hold", reports)
