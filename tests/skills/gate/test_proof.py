"""Replays: as few as the decision needs, within a budget, and never paid for twice."""

import pytest

from metaclaw.domain.candidate import Certificate, Change, Probe, ProbeKind, ReplayCost
from metaclaw.domain.verdict import Outcome
from metaclaw.skills import Decision, prove
from metaclaw.skills.gate.evidence import ReplayBudget, SkillProof
from tests.skills.gate.replays import (
    F,
    P,
    Replays,
    U,
    breaks,
    changes_nothing,
    fixes,
    probes,
    proposal,
    skill,
)
from tests.support.cases import each

pytestmark = pytest.mark.anyio


async def proven(
    replays: Replays, failing: int = 1, passing: int = 0, **options: object
) -> SkillProof:
    return await prove(proposal(), probes(failing, passing), replays, **options)  # type: ignore[arg-type]


async def test_one_fixed_failure_is_enough_to_start_a_live_trial() -> None:
    replays = Replays(fixes)
    proof = await proven(replays)
    assert (proof.decision, replays.asked) == (Decision.PASS, ["f0"])
    assert proof.reason.startswith("fixed the failure in 1 of 1 replays")


async def test_where_no_live_trial_follows_three_fixed_failures_are_asked_for() -> None:
    replays = Replays(fixes, 5_000)
    proof = await proven(replays, is_tried_live=False)
    assert (proof.decision, len(replays.asked)) == (Decision.PASS, 3)


async def test_a_similar_turn_that_passed_is_tried_too() -> None:
    replays = Replays(fixes, 5_000)
    proof = await proven(replays, 3, 3)
    assert replays.asked == ["f0", "p0"]
    assert proof.reason == "fixed the failure in 1 of 1 replays and broke nothing"


async def test_a_skill_that_fixes_nothing_is_rejected_after_three_replays() -> None:
    replays = Replays(changes_nothing)
    proof = await proven(replays)
    assert (proof.decision, len(replays.asked)) == (Decision.REJECT, 3)
    assert proof.reason.startswith("fixed the failure in 0 of 3 replays")


async def test_a_skill_that_breaks_what_passed_is_rejected() -> None:
    def trades(probe: Probe, seed: int) -> Outcome:
        return P if probe.kind is ProbeKind.FAILING else F

    proof = await proven(Replays(trades, 5_000), 2, 4)
    assert proof.decision is Decision.REJECT
    assert proof.certificate.regressions > 0
    assert "broke" in proof.reason


async def test_one_unlucky_replay_does_not_reject_a_good_skill() -> None:
    proof = await proven(Replays(lambda probe, seed: F if seed == 0 else P))
    assert proof.decision is Decision.PASS


@each("turn_tokens", [700, 12_000, 25_000, 100_000])
async def test_replays_take_at_most_four_times_the_turn_or_a_small_amount(turn_tokens: int) -> None:
    for answer in (fixes, changes_nothing, breaks):
        replays = Replays(answer, turn_tokens)
        await proven(replays, 8, 8)
        assert len(replays.asked) * turn_tokens <= max(6_000, 4 * turn_tokens)


async def test_of_a_small_turn_only_the_failure_is_replayed() -> None:
    replays = Replays(fixes, 500)
    assert (await proven(replays, 1, 3)).decision is Decision.PASS
    assert replays.asked == ["f0"]


async def test_a_good_skill_is_not_rejected_for_lack_of_budget() -> None:
    replays = Replays(fixes)
    proof = await proven(replays, budget=ReplayBudget(10))
    assert (proof.decision, replays.asked) == (Decision.PASS, [])
    assert "live tasks decide" in proof.reason


async def test_a_turn_that_does_not_fit_into_the_budget_does_not_stop_the_others() -> None:
    class Uneven(Replays):
        async def estimate(self, probe: Probe, skill: object) -> ReplayCost:
            return ReplayCost(50_000 if probe.turn == "p0" else 5_000)

    replays = Uneven(fixes)
    await proven(replays, 1, 2)
    assert replays.asked == ["f0", "p1"]


async def test_what_cannot_be_told_is_not_paid_for_again_and_left_to_the_live_trial() -> None:
    replays = Replays(lambda probe, seed: U, note="no call of Deploy was recorded")
    proof = await proven(replays)
    assert (proof.decision, len(replays.asked)) == (Decision.PASS, 1)
    assert proof.certificate.notes == ("no call of Deploy was recorded",)


async def test_a_model_that_cannot_be_asked_now_makes_it_wait() -> None:
    proof = await proven(Replays(lambda probe, seed: U, 0, "provider down", is_unavailable=True))
    assert proof.decision is Decision.WAIT
    assert proof.certificate.replays == ()


async def test_without_a_recorded_failure_nothing_is_proven() -> None:
    assert (await proven(Replays(fixes), 0, 0)).decision is Decision.REJECT


async def test_what_was_paid_for_is_continued_and_not_repeated() -> None:
    kept: list[Certificate] = []

    async def paid(certificate: Certificate) -> bool:
        kept.append(certificate)
        return len(kept) < 2  # the program stops here

    first = Replays(changes_nothing, 25_000)
    await proven(first, 2, 0, paid=paid)
    second = Replays(fixes, 25_000)
    proof = await proven(second, 2, 0, earlier=kept[-1])
    assert first.asked == ["f0", "f1"]
    assert second.asked == ["f0", "f1"]  # another try of each, with what is left of the budget
    assert len(proof.certificate.replays) == 4
    assert proof.certificate.tokens == 100_000


async def test_a_candidate_that_is_decided_by_what_was_paid_for_costs_nothing_more() -> None:
    earlier = (await proven(Replays(fixes))).certificate
    again = Replays(breaks)
    assert (await proven(again, earlier=earlier)).decision is Decision.PASS
    assert again.asked == []


async def test_a_merge_keeps_what_its_parents_get_right() -> None:
    merged = proposal(skill("merged"), replaces=("one", "two"), change=Change.MERGE)
    good = Replays(fixes)
    assert (await prove(merged, probes(2, 2), good, ReplayBudget(10_000))).decision is Decision.PASS
    assert sorted(good.asked) == ["f0", "f1", "p0", "p1"]
    forgets = Replays(lambda probe, seed: F if probe.turn == "f1" else P)
    proof = await prove(merged, probes(2, 2), forgets, ReplayBudget(10_000))
    assert (proof.decision, sum(turn == "f1" for turn in forgets.asked)) == (Decision.REJECT, 2)
    for nothing in (Replays(lambda probe, seed: U), Replays(fixes, 50_000)):
        assert (
            await prove(merged, probes(1, 1), nothing, ReplayBudget(10_000))
        ).decision is Decision.REJECT
