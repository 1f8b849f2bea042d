"""Merging: only near-duplicates that the program wrote itself."""

from dataclasses import replace

from metaclaw.domain.skill import Authorship
from metaclaw.skills.maintenance import find_merges
from tests.skills.gate.replays import skill


def test_near_duplicates_that_the_program_wrote_may_be_merged() -> None:
    pair = [skill("one"), skill("two")]
    assert [[one.name for one in group] for group in find_merges(pair)] == [["one", "two"]]
    assert find_merges([skill("one"), replace(skill("two"), author=Authorship.PERSON)]) == []
    assert find_merges([skill("one"), replace(skill("two"), pinned=True)]) == []
    assert find_merges([skill("one", scope="user:a"), skill("two", scope="user:b")]) == []
