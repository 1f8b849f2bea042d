"""Shadow: what passes, what does not, what it may cost, and what is never guessed."""

import random
from itertools import count

import pytest

from metaclaw.domain.candidate import Change, Probe, ProbeKind, Proposal
from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import SkillState
from metaclaw.domain.verdict import Outcome
from metaclaw.skills.gate.shadow import Budget, Decision, Rules, ShadowReport, shadow
from tests.skills.gate.replays import Answer, F, P, Replays, U, by_rates, probes, proposal

pytestmark = pytest.mark.anyio


async def tried(
    answer: Answer,
    on: list[Probe] | None = None,
    *,
    budget: Budget | None = None,
    rules: Rules | None = None,
    of: Proposal | None = None,
    attempt: int = 1,
) -> tuple[ShadowReport, Replays]:
    replays = Replays(answer, note="no such tool result")
    chosen = probes(4, 6) if on is None else on
    report = await shadow(of or proposal(), chosen, replays, budget or Budget(), rules=rules, model="m", attempt=attempt)
    return report, replays


def mends(probe: Probe, seed: int) -> tuple[Outcome, Outcome]:
    return (F, P) if probe.kind is ProbeKind.FAILING else (P, P)


def ties(probe: Probe, seed: int) -> tuple[Outcome, Outcome]:
    return (F, F) if probe.kind is ProbeKind.FAILING else (P, P)


async def test_a_skill_that_mends_its_kind_and_breaks_nothing_passes_early() -> None:
    report, replays = await tried(mends)
    assert report.decision is Decision.PASS
    certificate = report.certificate
    assert certificate.stage is SkillState.SHADOW
    assert certificate.e_value >= 40
    assert (certificate.losses, certificate.regressions, certificate.model) == (0, 0, "m")
    assert certificate.probes == 10
    assert certificate.tokens == 100 * len(replays.asked)
    assert len(replays.asked) < 40


async def test_every_passing_probe_is_tried_before_a_pass_and_none_twice_with_one_seed() -> None:
    _, replays = await tried(mends)
    assert len(set(replays.asked)) == len(replays.asked)
    for number in range(6):
        assert sum(turn == f"p{number}" for turn, _ in replays.asked) == Rules().passing_seeds


async def test_both_kinds_are_tried_by_turns() -> None:
    _, replays = await tried(mends)
    assert [turn[0] for turn, _ in replays.asked[:6]] == ["f", "p", "f", "p", "f", "p"]


async def test_ties_prove_nothing_and_reject() -> None:
    report, _ = await tried(ties)
    assert report.decision is Decision.REJECT
    assert "not proven" in report.reason
    assert not report.is_harmful


async def test_one_broken_turn_that_always_passed_rejects() -> None:
    def breaks_one(probe: Probe, seed: int) -> tuple[Outcome, Outcome]:
        return (P, F) if probe.turn == "p3" else mends(probe, seed)

    report, _ = await tried(breaks_one)
    assert report.decision is Decision.REJECT
    assert report.is_harmful
    assert report.certificate.regressions == 1
    allowed, _ = await tried(breaks_one, rules=Rules(regressions=1))
    assert allowed.decision is Decision.PASS


async def test_one_failure_by_chance_is_tried_again_and_is_no_regression() -> None:
    def once(probe: Probe, seed: int) -> tuple[Outcome, Outcome]:
        return (P, F) if (probe.turn, seed) == ("p3", 0) else mends(probe, seed)

    report, replays = await tried(once)
    assert report.decision is Decision.PASS
    assert sum(turn == "p3" for turn, _ in replays.asked) > Rules().passing_seeds


async def test_a_turn_that_fails_without_the_skill_as_well_is_no_regression() -> None:
    def flaky(probe: Probe, seed: int) -> tuple[Outcome, Outcome]:
        return ((P, F), (F, P))[seed % 2] if probe.turn == "p3" else mends(probe, seed)

    report, _ = await tried(flaky)
    assert report.decision is Decision.PASS


async def test_harm_spread_over_many_turns_rejects_as_harm() -> None:
    def worse(probe: Probe, seed: int) -> tuple[Outcome, Outcome]:
        return (F, F) if probe.kind is ProbeKind.FAILING else ((P, F) if seed == 0 else (P, P))

    report, _ = await tried(worse, probes(4, 12))
    assert report.decision is Decision.REJECT
    assert report.is_harmful


async def test_what_cannot_be_decided_is_counted_and_not_guessed() -> None:
    report, _ = await tried(lambda probe, seed: (U, P))
    assert report.decision is Decision.UNDECIDED
    assert report.certificate.undecided == len(report.trials)
    assert (report.certificate.wins, report.certificate.e_value) == (0, 1.0)
    assert any("no such tool result" in note for note in report.certificate.notes)


async def test_no_more_is_spent_on_a_turn_that_cannot_be_decided() -> None:
    report, replays = await tried(lambda probe, seed: (U, P))
    assert len(replays.asked) <= 10 * 2 + Rules().at_once
    some, replays = await tried(lambda probe, seed: (F, U) if probe.turn == "f1" else mends(probe, seed))
    assert some.decision is Decision.PASS
    assert sum(turn == "f1" for turn, _ in replays.asked) <= 2
    assert report.decision is Decision.UNDECIDED


async def test_what_is_proven_but_not_tested_for_regressions_in_time_is_undecided() -> None:
    report, _ = await tried(mends, probes(8, 8), budget=Budget(trials=20))
    assert report.decision is Decision.UNDECIDED
    assert report.certificate.e_value >= 40


async def test_without_a_failure_to_try_it_on_nothing_is_decided() -> None:
    report, replays = await tried(mends, probes(0, 5))
    assert report.decision is Decision.UNDECIDED
    assert replays.asked == []


async def test_the_budget_of_trials_tokens_and_time_is_kept() -> None:
    rng = random.Random(1)
    undecidable = by_rates(rng, (0.4, 0.6), (1.0, 1.0))
    few, replays = await tried(undecidable, budget=Budget(trials=10))
    assert len(replays.asked) <= 10
    assert few.decision is not Decision.PASS
    _, replays = await tried(undecidable, budget=Budget(tokens=800))
    assert len(replays.asked) <= 8 + Rules().at_once
    ticks = count(0.0, 10.0)
    slow = Replays(undecidable)
    report = await shadow(proposal(), probes(4, 6), slow, Budget(seconds=25.0), lambda: next(ticks))
    assert len(slow.asked) <= 3 * Rules().at_once
    assert report.decision is not Decision.PASS


async def test_a_later_attempt_at_the_same_failure_needs_more_evidence() -> None:
    first, _ = await tried(mends)
    fifth, _ = await tried(mends, attempt=5)
    assert first.decision is fifth.decision is Decision.PASS
    assert fifth.certificate.e_value > 10 * first.certificate.e_value


async def test_the_trials_see_what_the_proposal_replaces() -> None:
    _, replays = await tried(mends, of=proposal(replaces=("old-one",)))
    assert replays.replaced == ("old-one",)


async def test_useless_candidates_pass_rarely_and_helpful_ones_mostly() -> None:
    async def passed(failing: tuple[float, float], runs: int) -> float:
        rng = random.Random(4)
        reports = [await tried(by_rates(rng, failing, (0.97, 0.97)), probes(4, 8)) for _ in range(runs)]
        return sum(report.decision is Decision.PASS for report, _ in reports) / runs

    assert await passed((0.3, 0.3), 150) <= 0.05
    assert await passed((0.2, 0.8), 60) >= 0.85


def merge() -> Proposal:
    return proposal(replaces=("one", "two"), change=Change.MERGE)


async def test_a_merge_need_not_be_better_but_must_keep_what_its_parents_pass() -> None:
    report, replays = await tried(lambda probe, seed: (P, P), of=merge())
    assert report.decision is Decision.PASS
    assert len(replays.asked) == 10 * Rules().passing_seeds
    lost, _ = await tried(lambda probe, seed: (P, F) if probe.turn == "f1" else (P, P), of=merge())
    assert lost.decision is Decision.REJECT
    unknown, _ = await tried(lambda probe, seed: (P, U) if probe.turn == "f1" else (P, P), of=merge())
    assert unknown.decision is Decision.UNDECIDED


async def test_a_merge_without_probes_is_undecided() -> None:
    report, _ = await tried(mends, [], of=merge())
    assert report.decision is Decision.UNDECIDED


async def test_a_single_recorded_failure_is_noted() -> None:
    report, _ = await tried(mends, [Probe(TurnId("f0"), ProbeKind.FAILING)])
    assert report.decision is Decision.PASS
    assert any("one recorded failure" in note for note in report.certificate.notes)
    assert any("regressions" in note for note in report.certificate.notes)
