"""Merging: only near-duplicates the program wrote itself, and only if the merged text holds on both parents' probes."""

from dataclasses import replace

import pytest

from metaclaw.domain.candidate import Change, Probe
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Authorship
from metaclaw.domain.verdict import Outcome
from metaclaw.skills.gate import Budget, Decision
from metaclaw.skills.hygiene import find_merges, try_merge
from tests.skills.gate.replays import F, P, Replays, U, probes, proposal, skill

ONE, TWO = SkillName("one"), SkillName("two")
MERGED = proposal(skill("merged"), replaces=(ONE, TWO), change=Change.MERGE)
PROBES = {ONE: probes(2, 2), TWO: [replace(probe, turn=TurnId(f"two-{probe.turn}")) for probe in probes(2, 2)]}


def test_near_duplicates_that_the_program_wrote_may_be_merged() -> None:
    pair = [skill("one"), skill("two")]
    assert [[one.name for one in group] for group in find_merges(pair)] == [["one", "two"]]
    assert find_merges([skill("one"), replace(skill("two"), author=Authorship.PERSON)]) == []
    assert find_merges([skill("one"), replace(skill("two"), pinned=True)]) == []
    assert find_merges([skill("one", scope="user:a"), skill("two", scope="user:b")]) == []


@pytest.mark.anyio
async def test_a_merged_text_that_holds_on_both_may_take_their_place() -> None:
    report = await try_merge(MERGED, PROBES, Replays(lambda probe, seed: (P, P)), Budget())
    assert report.decision is Decision.PASS
    assert set(report.by_parent) == {"one", "two"}


@pytest.mark.anyio
async def test_a_merged_text_that_loses_one_parents_lesson_may_not() -> None:
    def forgets_two(probe: Probe, seed: int) -> tuple[Outcome, Outcome]:
        return (P, F) if probe.turn.startswith("two") else (P, P)

    report = await try_merge(MERGED, PROBES, Replays(forgets_two), Budget())
    assert report.decision is Decision.REJECT
    assert "two" in report.reason


@pytest.mark.anyio
async def test_what_cannot_be_tried_is_not_merged() -> None:
    unknown = await try_merge(MERGED, PROBES, Replays(lambda probe, seed: (P, U)), Budget())
    assert unknown.decision is Decision.UNDECIDED
    missing = await try_merge(MERGED, {ONE: PROBES[ONE]}, Replays(lambda probe, seed: (P, P)), Budget())
    assert missing.decision is Decision.UNDECIDED


@pytest.mark.anyio
async def test_a_merged_text_must_be_a_good_draft_and_a_merge() -> None:
    bad = proposal(skill("merged", body="Both at once."), replaces=(ONE, TWO), change=Change.MERGE)
    replays = Replays(lambda probe, seed: (P, P))
    assert (await try_merge(bad, PROBES, replays, Budget())).decision is Decision.REJECT
    assert replays.asked == []
    with pytest.raises(ValueError, match="no merge"):
        await try_merge(proposal(), PROBES, replays, Budget())
