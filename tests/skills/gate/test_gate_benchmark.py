"""The gate benchmark: its candidates are what they claim, it meets its goals, and they can be
missed.
"""

import anyio

from benchmarks.gate import Result, judge, load_candidates, measure, run
from metaclaw.skills.gate.gate import lint


def test_the_planted_candidates_are_enough_and_have_the_effects_their_kinds_promise() -> None:
    planted = load_candidates()
    kinds = [one.kind for one in planted]
    assert kinds.count("helpful") >= 40
    assert kinds.count("useless") >= 40
    assert kinds.count("harmful") >= 20
    assert len({one.skill.name for one in planted}) == len(planted)
    for one in planted:
        gain, loss = one.failing[1] - one.failing[0], one.passing[0] - one.passing[1]
        match one.kind:
            case "helpful":
                assert gain >= 0.2, one.skill.name
                assert loss <= 0.02, one.skill.name
                assert lint(one.skill) == (), one.skill.name
            case "useless":
                assert -0.03 <= gain <= 0, one.skill.name
                assert 0 <= loss <= 0.03, one.skill.name
            case "harmful":
                assert one.live_effect <= -0.03 or loss >= 0.2, one.skill.name


def test_the_full_gate_lets_hardly_anything_harmful_through_and_no_gate_lets_everything() -> None:
    facts = measure(2)
    lines: list[str] = []
    assert judge({"full": facts["full"]}, lines.append), lines
    assert not judge({"full": facts["lint"]}, lines.append)
    assert any(line.startswith("NO ") for line in lines)


def test_a_run_is_the_same_for_the_same_seed() -> None:
    async def once() -> Result:
        return await run("full", load_candidates()[:30], 7)

    assert anyio.run(once) == anyio.run(once)
