"""Proposals for tests of the gate."""

from metaclaw.domain.candidate import Change, Proposal
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill


def skill(
    name: str = "csv-decimal-comma", body: str | None = None, scope: str | None = None
) -> Skill:
    text = (
        body
        or "1. Look at the separator.\n2. Read with a decimal comma.\n\nDo not replace commas by hand."
    )
    return Skill(
        SkillName(name),
        "When reading CSV exports from German accounting software",
        text,
        scope=scope,
        author=Authorship.EVOLVER,
    )


def proposal(
    of: Skill | None = None,
    *,
    replaces: tuple[str, ...] = (),
    change: Change | None = None,
    said: bool = False,
) -> Proposal:
    names = tuple(SkillName(name) for name in replaces)
    kind = change or (Change.EDIT if names else Change.NEW)
    return Proposal(of or skill(), kind, names, (TurnId("taught"),), "csv", "evolver", said)
