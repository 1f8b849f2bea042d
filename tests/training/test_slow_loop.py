"""The slow loop from recorded turns to weights that serve: it learns, it is proven, and nothing is
lost or taught twice.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.policy import GateReport, PolicyState, Weights
from metaclaw.domain.skill import Authorship, Fact, Rule, Skill
from metaclaw.domain.status import LoopState
from metaclaw.domain.training import Adam, Datum, Loss, LossKind, Rejection
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import BackendDownError, TrainerMemoryError
from metaclaw.ports import RunPlan
from metaclaw.schedule import ManualWindows
from metaclaw.store import BatchState
from metaclaw.training.setbacks import Starvation
from metaclaw.training.training_turns import TurnCount
from tests.learn.learning import Speaker
from tests.support.depth import tries
from tests.support.softmax import encode
from tests.support.toy_backend import ToyBackend
from tests.training.stage import STARS, UNCHECKED, CutError, Stage

pytestmark = pytest.mark.anyio


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


async def test_query_turns_teach_a_version_that_follows_the_rule_and_serves(stage: Stage) -> None:
    stage.talk(60)
    before = await stage.share_with_stars(None)
    assert await stage.slow.once(TurnCount(8))
    (version,) = stage.policies.versions()
    assert version.state is PolicyState.SERVING
    assert stage.slot.serving.version == version.number
    assert await stage.share_with_stars(version.weights) > before + 0.2


async def test_every_run_takes_new_turns_and_at_most_as_many_earlier_ones(stage: Stage) -> None:
    stage.talk(60)
    await stage.slow.once(TurnCount(8))
    await stage.slow.once(TurnCount(8))
    first, second = (set(stage.batches.turns_of(batch)) for batch in (1, 2))
    assert len(first) == 8
    assert len(second - first) == 8
    assert second >= first


async def test_turns_kept_for_the_gate_never_teach(stage: Stage) -> None:
    turns = stage.talk(60)
    held = {turn for turn in turns if stage.turns.is_held_out(turn)}
    while await stage.slow.once(TurnCount(8, 8)) and stage.turns.has_enough(TurnCount(8, 8)):
        pass
    taught = {turn for batch in range(1, 8) for turn in stage.batches.turns_of(batch)}
    assert held
    assert not taught & held


async def test_a_run_that_a_person_asks_for_is_said_to_be_prepared_until_it_trains(
    stage: Stage,
) -> None:
    stage.talk(60)
    stage.slow.demand()
    states = [stage.slow.status.state]
    async with anyio.create_task_group() as group:

        async def train() -> None:
            await stage.slow.once(TurnCount(8))
            group.cancel_scope.cancel()

        group.start_soon(train)
        while True:
            states.append(stage.slow.status.state)
            await anyio.sleep(0.002)
    assert [*list(dict.fromkeys(states))[:2], stage.slow.status.state] == [
        LoopState.PREPARING,
        LoopState.TRAINING,
        LoopState.WAITING,
    ]


async def test_with_too_few_turns_nothing_is_trained_and_the_reasons_are_counted(
    stage: Stage,
) -> None:
    stage.talk(3)
    stage.talk(2, outcome=Outcome.UNKNOWN)
    assert not await stage.slow.once(TurnCount(8))
    assert stage.policies.versions() == []
    assert stage.turns.rejections()[Rejection.UNKNOWN] == 2


async def test_what_a_judge_that_is_down_does_not_score_teaches_nothing_and_is_dropped(
    tmp_path: Path,
) -> None:
    judge = Speaker("judge", lambda prompt: ValueError("down"))
    stage = Stage(tmp_path, skill=UNCHECKED, judge=judge)
    stage.talk(40)
    await stage.slow.once(TurnCount(8))
    batch = stage.batches.batch(1)
    assert stage.policies.versions() == []
    assert batch is not None
    assert batch.state is BatchState.DROPPED


ADA, BOB = Scope("ada"), Scope("bob")


def said(number: int) -> Skill:
    """What people say while a model is trained, none of which changes what stands in Bob's prompts
    but for facts.
    """
    rule = Rule(
        SkillName(f"rule-{number}"),
        "always",
        f"Use tool {number}.",
        author=Authorship.INSTRUCTION,
    )
    others = ["user:ada", "owner", "workspace:shop", "team:web"]
    if number % 3 == 0:
        return Fact(rule.name, "always", rule.body, scope="user:bob", author=rule.author)
    if number % 3 == 1:
        return replace(STARS, examples=(f"Task {number}",))
    return replace(rule, scope=others[number % 4])


async def test_twenty_things_said_during_a_run_neither_drop_it_nor_age_the_turns_of_others(
    stage: Stage,
) -> None:
    stage.talk(60, speaker=BOB)
    waiting, numbers = stage.turns.waiting(100).turns, iter(range(20))

    def say() -> None:
        if (number := next(numbers, None)) is not None:
            stage.library.publish([said(number)], (), "said", by_person=True)

    stage.backend.before = say
    assert await stage.slow.once(TurnCount(8))
    assert next(numbers, None) is None
    assert stage.library.view.generation == 21
    (first,) = stage.policies.versions()
    assert (first.state, first.generation) == (PolicyState.SERVING, 1)
    assert stage.turns.waiting(100).turns == waiting - 8
    assert Rejection.OLD_GENERATION not in stage.turns.rejections()
    assert await stage.slow.once(TurnCount(8))
    second = stage.policies.versions()[0]
    assert (second.number, second.parent, second.generation) == (2, 1, 21)


def say_in_the_middle(stage: Stage) -> None:
    if stage.backend.calls == 5:
        rule = Rule(
            SkillName("uv"),
            "always",
            "Use uv.",
            scope="user:ada",
        )
        stage.library.publish([rule], (), "said", by_person=True)


async def test_a_rule_said_during_a_run_ages_its_speakers_turns_and_the_run_goes_on_with_the_others(
    stage: Stage,
) -> None:
    of_ada, of_bob = stage.talk(30, speaker=ADA), stage.talk(30, speaker=BOB)
    mixed = [turn for turn in (*of_ada[:8], *of_bob[:8]) if not stage.turns.is_held_out(turn)]
    stage.batches.open_batch(0, mixed, 4)
    stage.backend.before = partial(say_in_the_middle, stage)
    assert await stage.slow.once(TurnCount(8))
    (version,) = stage.policies.versions()
    assert version.state is PolicyState.SERVING
    assert stage.batches.turns_of(1) == mixed
    assert stage.turns.rejections()[Rejection.OLD_GENERATION] == len(of_ada)
    assert await stage.slow.once(TurnCount(8))
    assert set(stage.batches.turns_of(2)) < set(of_bob)


async def test_a_run_is_dropped_when_rules_have_changed_for_all_its_speakers(stage: Stage) -> None:
    stage.talk(40, speaker=ADA)
    stage.backend.before = partial(say_in_the_middle, stage)
    assert await stage.slow.once(TurnCount(8))
    batch = stage.batches.batch(1)
    assert batch is not None
    assert (batch.state, stage.policies.versions()) == (BatchState.DROPPED, [])


async def test_a_fact_is_never_absorbed(stage: Stage) -> None:
    stage.library.publish(
        [Fact(STARS.name, STARS.trigger, STARS.body, check=STARS.check)],
        (),
        "a fact",
        by_person=True,
    )
    await serve_stars(stage)
    stage.talk(60)
    await stage.slow.absorption.once()
    assert stage.slot.absorbed(1) == frozenset()


async def test_a_change_of_skills_in_the_middle_drops_the_run(stage: Stage) -> None:
    stage.talk(40)
    stage.backend.cut_at = 5
    with pytest.raises(CutError):
        await stage.slow.once(TurnCount(8))
    stage.library.publish(
        [replace(STARS, body="Every answer has two stars (**) in it.")],
        (),
        "changed by hand",
        by_person=True,
    )
    stage.build()
    await stage.slow.once(TurnCount(8))
    batch = stage.batches.batch(1)
    assert batch is not None
    assert batch.state is BatchState.DROPPED
    assert "skills have changed" in batch.note
    assert stage.policies.versions() == []


async def test_a_candidate_that_is_not_shown_to_be_better_is_rejected_with_its_reasons(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, gate={"least": 21, "most": 20, "wave": 10})
    stage.talk(60)
    await stage.slow.once(TurnCount(8))
    (version,) = stage.policies.versions()
    assert version.state is PolicyState.REJECTED
    assert version.report is not None
    assert "not shown better" in " ".join(version.report.reasons)
    assert stage.slot.serving.version == 0


@pytest.mark.parametrize("lost_abilities", [False, True])
async def test_a_candidate_that_a_person_promotes_while_the_gate_weighs_it_serves_as_it_was(
    stage: Stage, lost_abilities: bool
) -> None:
    weigh, seen = stage.slow.trial.proof.weigh, list[bytes]()

    async def promoted_meanwhile(*given: object, **named: object) -> GateReport:
        report = await weigh(*given, **named)  # type: ignore[arg-type]
        (candidate,) = stage.policies.versions()
        seen.append(Path(candidate.weights.adapter).read_bytes())
        await stage.slow.versions.promote(candidate.number, "a person promoted it")
        return replace(report, is_passed=not lost_abilities, lost_abilities=lost_abilities)

    stage.slow.trial.proof.weigh = promoted_meanwhile  # type: ignore[method-assign]
    stage.talk(60)
    await stage.slow.once(TurnCount(8))
    (version,) = stage.policies.versions()
    assert (version.state, version.note) == (PolicyState.SERVING, "a person promoted it")
    assert stage.slot.serving.version == version.number
    assert [Path(version.weights.adapter).read_bytes()] == seen


class Strict:
    """A gate that says of the first tries of a candidate that general abilities were lost, and then
    weighs it.
    """

    def __init__(self, stage: Stage, refused: int, cut_at: int | None = None) -> None:
        self._proof, self._refused, self._cut_at = stage.slow.trial.proof, refused, cut_at
        self.tried: list[int] = []
        self.seen: list[bytes] = []

    async def weigh(
        self, candidate: Weights, *rest: object, number: int, **named: object
    ) -> GateReport:
        if number == self._cut_at:
            raise CutError
        self.tried.append(number)
        self.seen.append(Path(candidate.adapter).read_bytes())
        if number <= self._refused:
            return GateReport(
                is_passed=False, reasons=("general abilities lost",), lost_abilities=True
            )
        return await self._proof.weigh(candidate, *rest, number=number, **named)  # type: ignore[arg-type]


def strictly(stage: Stage, refused: int, cut_at: int | None = None) -> Strict:
    gate = Strict(stage, refused, cut_at)
    stage.slow.trial.proof = gate  # type: ignore[assignment]
    return gate


async def test_a_candidate_that_lost_only_general_abilities_is_weighed_again_with_a_smaller_change(
    stage: Stage,
) -> None:
    stage.talk(60)
    gate = strictly(stage, refused=1)
    await stage.slow.once(TurnCount(8))
    (version,) = stage.policies.versions()
    assert gate.tried == [1, 2]
    assert version.state is PolicyState.SERVING
    assert version.note.endswith("with 80% of its change: more of it cost general abilities")
    assert await stage.share_with_stars(version.weights) > await stage.share_with_stars(None)


async def test_a_candidate_that_loses_general_abilities_in_every_size_is_rejected(
    stage: Stage,
) -> None:
    stage.talk(60)
    gate = strictly(stage, refused=3)
    await stage.slow.once(TurnCount(8))
    (version,) = stage.policies.versions()
    assert gate.tried == [1, 2, 3]
    assert len(set(gate.seen)) == 3
    assert version.state is PolicyState.REJECTED
    assert version.note.startswith("general abilities lost; with 64% of its change")


async def test_a_program_killed_while_it_weighs_a_smaller_change_goes_on_with_that(
    stage: Stage,
) -> None:
    stage.talk(60)
    strictly(stage, refused=1, cut_at=2)
    with pytest.raises(CutError):
        await stage.slow.once(TurnCount(8))
    stage.build()
    gate = strictly(stage, refused=1)
    await stage.slow.once(TurnCount(8))
    assert gate.tried == [2]
    assert stage.policies.versions()[0].state is PolicyState.SERVING


async def test_a_second_version_goes_on_from_the_first(stage: Stage) -> None:
    stage.talk(60)
    await stage.slow.once(TurnCount(8))
    first = stage.policies.versions()[0]
    stage.talk(60)
    await stage.slow.once(TurnCount(8))
    second = stage.policies.versions()[0]
    assert (second.number, second.parent) == (2, first.number)
    assert (
        await stage.share_with_stars(second.weights)
        >= await stage.share_with_stars(first.weights) - 0.05
    )


async def uninterrupted(folder: Path) -> tuple[Weights, int]:
    folder.mkdir()
    stage = Stage(folder)
    stage.talk(40)
    stage.batches.open_batch(
        0, stage.turns._eligible(stage.turns.clocks(), 8, stage.turns.is_held_out), 4
    )
    await stage.slow.once(TurnCount(8))
    return stage.policies.versions()[0].weights, stage.backend.calls


@pytest.mark.slow
async def test_a_run_that_is_cut_anywhere_and_goes_on_ends_where_an_uninterrupted_one_does(
    tmp_path: Path,
) -> None:
    expected, calls = await uninterrupted(tmp_path / "whole")
    chance = random.Random(1)
    for number in range(tries(3, nightly=8)):
        (tmp_path / f"cut-{number}").mkdir()
        stage = Stage(tmp_path / f"cut-{number}")
        stage.talk(40)
        stage.batches.open_batch(
            0, stage.turns._eligible(stage.turns.clocks(), 8, stage.turns.is_held_out), 4
        )
        for cuts_left in (2, 1, 0):
            stage.backend.cut_at = chance.randrange(1, calls) if cuts_left else None
            stage.backend.cut_after = chance.random() < 0.5
            try:
                await stage.slow.once(TurnCount(8))
                break
            except CutError:
                stage.build()
        (version,) = stage.policies.versions()
        assert Path(version.weights.adapter).read_bytes() == Path(expected.adapter).read_bytes()


async def test_a_candidate_that_nobody_judged_yet_is_judged_when_the_program_is_back(
    stage: Stage,
) -> None:
    stage.talk(60)
    kept = stage.slow.trial.proof.weigh

    async def unplugged(*arguments: object, **named: object) -> None:
        raise CutError

    stage.slow.trial.proof.weigh = unplugged  # type: ignore[method-assign,assignment]
    with pytest.raises(CutError):
        await stage.slow.once(TurnCount(8))
    assert stage.policies.versions()[0].state is PolicyState.CANDIDATE
    stage.slow.trial.proof.weigh = kept  # type: ignore[method-assign]
    stage.build()
    await stage.slow.once(TurnCount(8))
    (version,) = stage.policies.versions()
    assert version.state is PolicyState.SERVING
    assert version.report is not None
    assert version.report.kl is not None
    assert version.report.kl > 0.0


async def test_a_candidate_that_cannot_be_tried_is_rejected_and_holds_nobody_up(
    stage: Stage,
) -> None:
    broken = stage.policies.publish(
        Weights("toy", str(stage.folder / "nothing-there")), parent=0, base="toy"
    )
    for _ in range(5):
        await stage.slow.once(TurnCount(8))
    found = stage.policies.version(broken.number)
    assert found is not None
    assert found.state is PolicyState.REJECTED


async def serve_stars(stage: Stage, absorbed: Sequence[SkillName] = ()) -> None:
    """A version that was taught to say stars, whatever it is told."""
    toy = ToyBackend(stage.folder / "policies")
    await toy.open(RunPlan("by hand", None, 4, 1, stage.folder / "by-hand"))
    for _ in range(12):
        await toy.accumulate(
            [Datum(TurnId("t_0"), encode("x:"), encode("*"), (1.0,), None)],
            Loss(LossKind.CROSS_ENTROPY),
        )
        await toy.apply(Adam(learning_rate=0.5), 1.0)
    stage.policies.publish(await toy.keep("000001"), parent=0, base="toy", absorbed=absorbed)
    await stage.versions.promote(1, "a test")


async def test_a_skill_the_weights_have_absorbed_leaves_the_prompt_and_comes_back_with_the_old_weights(
    stage: Stage,
) -> None:
    await serve_stars(stage)
    stage.talk(60)
    assert await stage.slow.absorption.once()
    assert stage.slot.absorbed(1) == {STARS.name}
    await stage.versions.rollback(0, "a test")
    assert stage.slot.absorbed(stage.slot.serving.version) == frozenset()


async def test_a_skill_of_which_few_prompts_cannot_tell_is_weighed_on_when_there_are_more(
    stage: Stage,
) -> None:
    await serve_stars(stage)
    while stage.turns.kept(8) < 8:
        stage.talk(1)
    assert await stage.slow.absorption.once()
    assert stage.slot.absorbed(1) == frozenset()
    drawn = stage.backend.calls
    assert not await stage.slow.absorption.once()
    assert stage.backend.calls == drawn
    stage.talk(30)
    assert await stage.slow.absorption.once()
    assert stage.slot.absorbed(1) == {STARS.name}


@pytest.mark.parametrize("is_changed", [False, True])
async def test_a_version_inherits_what_its_parent_has_absorbed_unless_the_skill_says_something_else_now(
    tmp_path: Path, is_changed: bool
) -> None:
    small = {
        "prompts_per_step": 8,
        "group_size": 8,
        "steps": 1,
        "max_new_tokens": 4,
        "learning_rate": 0.1,
        "rehearsal": 0.0,
    }
    stage = Stage(tmp_path, small, {"warm_up": 1, "temperature": 3.0})
    await serve_stars(stage, [STARS.name])
    if is_changed:
        stage.library.publish(
            [replace(STARS, body="Put a star (*) into every answer.")],
            (),
            "put otherwise",
            by_person=True,
        )
    stage.talk(20)
    await stage.slow.once(TurnCount(8))
    second = stage.policies.version(2)
    assert second is not None
    assert second.absorbed == (frozenset() if is_changed else {STARS.name})


async def test_a_backend_that_is_down_for_however_long_costs_neither_the_batch_nor_the_candidate(
    stage: Stage,
) -> None:
    stage.talk(60)
    real = stage.backend.sample
    calls = 0

    async def gone(*arguments: object, **named: object) -> None:
        nonlocal calls
        calls += 1
        raise BackendDownError("nobody is there")

    stage.backend.sample = gone  # type: ignore[attr-defined]
    for _ in range(6):
        assert await stage.slow.once(TurnCount(8))
    assert calls == 6
    batch = stage.batches.batch(1)
    assert batch is not None
    assert batch.state is BatchState.OPEN
    stage.backend.sample = real  # type: ignore[attr-defined]
    weigh = stage.slow.trial.proof.weigh
    stage.slow.trial.proof.weigh = gone  # type: ignore[method-assign,assignment]
    for _ in range(6):
        assert await stage.slow.once(TurnCount(8))
    assert stage.policies.versions()[0].state is PolicyState.CANDIDATE
    stage.slow.trial.proof.weigh = weigh  # type: ignore[method-assign]
    assert await stage.slow.once(TurnCount(8))
    assert stage.policies.versions()[0].state is PolicyState.SERVING


async def test_a_run_that_was_interrupted_goes_on_when_a_person_asks_for_training(
    stage: Stage,
) -> None:
    stage.talk(60)
    assert stage.turns.open_batch(TurnCount(8), 1024, 1) == 1
    stage.windows.shut("traffic: a main turn")
    facts = await stage.training.train()
    assert (facts["started"], facts["continues"], facts["turns"]) == (True, True, 0)
    with anyio.fail_after(60):
        assert await stage.slow.once(TurnCount(8))
    assert stage.policies.versions()[0].state is PolicyState.SERVING
    assert (await stage.training.train())["continues"] is False


async def test_a_trainer_without_memory_waits_in_words_and_goes_on_from_its_last_step(
    stage: Stage,
) -> None:
    stage.talk(60)
    real, seen, opened = stage.backend.accumulate, list[tuple[LoopState, str | None]](), list[int]()
    wait, open_run = stage.slow.wakeup.wait, stage.backend.open

    async def accumulate(*arguments: object, **named: object) -> object:
        tally = stage.slow.status.tally
        if tally is not None and tally.steps == 3 and len(seen) < 6:
            raise TrainerMemoryError("the trainer finds too little memory (CUDA out of memory)")
        return await real(*arguments, **named)  # type: ignore[operator]

    async def waited(at_most_s: float) -> None:
        seen.append((stage.slow.status.state, stage.slow.status.trouble))
        await wait(at_most_s)

    async def noted(plan: RunPlan) -> object:
        progress = await open_run(plan)  # type: ignore[operator]
        opened.append(progress.steps)
        return progress

    stage.backend.accumulate, stage.backend.open = accumulate, noted  # type: ignore[attr-defined]
    stage.slow.wakeup.wait = waited  # type: ignore[method-assign]
    for _ in range(7):
        assert await stage.slow.once(TurnCount(8))
    assert (
        seen
        == [
            (
                LoopState.MEMORY,
                "waits: the trainer finds too little memory (CUDA out of memory); retrying in 0 s",
            ),
        ]
        * 6
    )
    assert opened == [0, *[3] * 6]
    assert stage.policies.versions()[0].state is PolicyState.SERVING


def test_a_day_without_a_window_is_told_with_its_reason_and_what_to_do() -> None:
    clock, windows = [0.0], ManualWindows()
    starvation = Starvation(windows, lambda: clock[0])
    windows.shut("traffic: a main turn")
    clock[0] = 86_399.0
    assert starvation.warning(LoopState.SHUT) is None
    clock[0] = 90_000.0
    told = starvation.warning(LoopState.SHUT)
    assert told is not None
    assert "waits for a window for 25 h (traffic: a main turn)" in told
    assert "metaclaw policy train" in told
    assert starvation.warning(LoopState.WAITING) is None
    windows.open("you are away")
    assert starvation.warning(LoopState.SHUT) is None
    windows.shut("you are back")
    assert starvation.warning(LoopState.TRAINING) is None
    clock[0] = 180_000.0
    assert starvation.warning(LoopState.TRAINING) is not None
