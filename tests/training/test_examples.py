"""Prompts made from recorded turns: worked examples of a skill that its check confirms, and
hints.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from metaclaw.domain.chat import Text
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.policy import Weights
from metaclaw.domain.skill import Skill
from metaclaw.domain.training import Datum, Drawing, Loss, LossKind, PieceStats, Rollout
from metaclaw.training.advantages import ScoredGroup
from metaclaw.training.examples import worked_examples
from metaclaw.training.hints import HintPrompts, distil, may_help
from metaclaw.training.imitation import is_flat
from metaclaw.training.records import StepRecord
from metaclaw.training.training_turns import LeastTurns
from tests.support.cases import each
from tests.support.softmax import END, encode
from tests.training.made import rollout
from tests.training.stage import STARS, AsciiTokeniser, CutError, Stage


@each(
    ("text", "asked", "answers"),
    [
        ("Write 2:17 pm. -> 14:17", "Write 2:17 pm.", ("14:17",)),
        ("- `a b` → `A-B`", "a b", ("`A-B`", "A-B")),
        ("Add 4 and 9. -> 13\ncheck 3\n\nAnd more.", "Add 4 and 9.", ("13\ncheck 3", "13")),
        ("Add 4 and 9. => 13\nAdd 1 and 1. => 2", "Add 4 and 9.", ("13",)),
        ("Q: How is 7 written?\nA: VII", "How is 7 written?", ("VII",)),
        ("**User:** seven\n**Assistant:** VII", "seven", ("VII",)),
        ("| seven | VII |", "seven", ("VII",)),
    ],
)
def test_examples_are_read_in_the_forms_people_write_them(
    text: str, asked: str, answers: tuple[str, ...]
) -> None:
    first = worked_examples(f"Keep to this.\n{text}")[0]
    assert (first.asked, first.answers) == (asked, answers)


def test_ordinary_text_holds_no_examples() -> None:
    assert (
        worked_examples(
            "Write the hour, then the minutes.\n\nSee also: the roster.\n- nothing else"
        )
        == []
    )


WITH_HINDSIGHT = {"rehearsal": 0.0, "hindsight": True}
PROGRAM = """program: |
  import json, sys
  given = json.load(sys.stdin)
  print(json.dumps({"score": 1 if given["text"] == given["task"][::-1] else 0.1}))"""
REVERSED = Skill(
    SkillName("stars"),
    "When answering anything",
    "Say it backwards. Examples:\nabcd -> dcba\nwrong -> wrong\nxyz -> zyx",
    check=PROGRAM,
)


@pytest.mark.anyio
async def test_only_what_the_check_confirms_is_shown_and_without_the_line_that_gives_it_away(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, skill=REVERSED)
    turns = [one for turn in stage.talk(3) if (one := stage.turns._training_turn(turn)) is not None]
    found = await stage.slow.trainer.examples.of(turns)
    assert [bytes(one.tokens[:-1]).decode() for one in found] == ["dcba", "zyx"]
    assert all(one.tokens[-1] == END for one in found)
    assert all(
        len(one.prompts) == 2 and bytes(prompt).endswith(b"abcd:")
        for one in found[:1]
        for prompt in one.prompts
    )
    assert not any(
        turn.step.task.encode() in bytes(prompt)
        for turn in turns
        for one in found
        for prompt in one.prompts
    )


@pytest.mark.anyio
async def test_the_line_of_an_example_is_not_in_its_prompt(tmp_path: Path) -> None:
    stage = Stage(tmp_path, skill=replace(STARS, body=f"{STARS.body}\nwell -> x*\n\nBye."))
    turns = [one for turn in stage.talk(1) if (one := stage.turns._training_turn(turn)) is not None]
    examples = stage.slow.trainer.examples
    request = examples.request(turns[0].id)
    assert request is not None
    placed = "".join(part.text for part in request.messages[0].parts if isinstance(part, Text))
    assert "\nwell -> x*\n" in placed
    (found,) = await examples.of(turns)
    assert bytes(found.prompts[0]).decode() == placed.replace("well -> x*\n", "") + "\nwell:"


@pytest.mark.anyio
async def test_a_run_with_demonstrations_that_is_cut_and_goes_on_ends_where_an_uninterrupted_one_does(
    tmp_path: Path,
) -> None:
    expected, calls = await _trained(tmp_path / "whole", ())
    without, _ = await _trained(tmp_path / "without", (), body="Nothing.")
    assert expected != without
    for number, cuts in enumerate([(2,), (4, 5), (calls // 3, 3)]):
        assert (await _trained(tmp_path / f"cut-{number}", cuts))[0] == expected


async def _trained(
    folder: Path, cuts: tuple[int, ...], body: str = "well -> x*\nso -> **"
) -> tuple[bytes, int]:
    """The weights of a run that is cut off at these calls of its backend, and how many calls the
    last part took.
    """
    folder.mkdir()
    stage = Stage(folder, {**WITH_HINDSIGHT, "steps": 3}, skill=replace(STARS, body=body))
    stage.talk(40)
    stage.batches.open_batch(
        0, stage.turns._eligible(stage.turns.clocks(), 8, stage.turns.is_held_out), 4
    )
    for cut in (*cuts, None):
        stage.build()
        stage.backend.cut_at = cut
        try:
            await stage.slow.once(LeastTurns(8))
        except CutError:
            continue
    (version,) = stage.policies.versions()
    return Path(version.weights.adapter).read_bytes(), stage.backend.calls


RIGHT = "x*"
"""Follows the rule of the stage: a star beside something."""


class Hinted:
    """A backend that follows the rule when it is hinted at it, `does_follow`, and else draws as it
    does.
    """

    def __init__(self, stage: Stage, *, does_follow: bool = True) -> None:
        self.imitated: list[Datum] = []
        self.hinted = 0
        backend = stage.backend._backend
        sample, sample_base, accumulate = backend.sample, backend.sample_base, backend.accumulate

        async def sampled(
            prompts: list[tuple[int, ...]], drawing: Drawing, weights: Weights | None = None
        ) -> list[list[Rollout]]:
            return answered(prompts, await sample(prompts, drawing, weights))

        async def sampled_base(
            prompts: list[tuple[int, ...]], drawing: Drawing
        ) -> list[list[Rollout]]:
            return answered(prompts, await sample_base(prompts, drawing))

        def answered(
            prompts: list[tuple[int, ...]], drawn: list[list[Rollout]]
        ) -> list[list[Rollout]]:
            right = Rollout((*encode(RIGHT), END), (-1.0, -1.0, -1.0), RIGHT, True)
            are_hinted = [is_hinted(prompt) for prompt in prompts]
            self.hinted += sum(are_hinted)
            # By itself it never follows the rule.
            return [
                [right if mine and does_follow else _without_stars(one) for one in group]
                for mine, group in zip(are_hinted, drawn, strict=True)
            ]

        async def accumulated(data: list[Datum], loss: Loss) -> PieceStats:
            self.imitated += data if loss.kind is LossKind.CROSS_ENTROPY else []
            return await accumulate(data, loss)

        backend.sample, backend.accumulate = sampled, accumulated  # type: ignore[method-assign,assignment]
        backend.sample_base = sampled_base  # type: ignore[method-assign,assignment]


def _without_stars(one: Rollout) -> Rollout:
    return replace(one, text=one.text.replace("*", "x") or "x")


def is_hinted(prompt: Sequence[int]) -> bool:
    """Whether the rule is told behind the question."""
    return f"(Keep to this: {STARS.body}" in bytes(prompt).decode()


def stage_with_hints(folder: Path) -> Stage:
    return Stage(folder, {**WITH_HINDSIGHT, "steps": 3})


@pytest.mark.anyio
async def test_what_follows_the_rule_with_a_hint_is_taught_without_it(tmp_path: Path) -> None:
    stage = stage_with_hints(tmp_path)
    backend = Hinted(stage)
    stage.talk(40)
    await stage.slow.once(LeastTurns(8))
    assert backend.imitated
    assert {one.tokens_T for one in backend.imitated} == {(*encode(RIGHT), END)}
    assert not any(is_hinted(one.prompt) for one in backend.imitated)


@pytest.mark.anyio
async def test_hints_that_do_not_help_teach_nothing(tmp_path: Path) -> None:
    stage = stage_with_hints(tmp_path)
    backend = Hinted(stage, does_follow=False)
    stage.talk(40)
    await stage.slow.once(LeastTurns(8))
    assert backend.hinted > 0
    assert backend.imitated == []


@each(("hinted", "helped", "may"), [(0, 0, True), (40, 0, True), (80, 1, False), (80, 20, True)])
def test_hints_are_given_up_when_they_hardly_ever_help(hinted: int, helped: int, may: bool) -> None:
    halves = [
        StepRecord([], None, False, [], 1.0, hinted=hinted // 2, helped=helped // 2 + odd)
        for odd in (0, helped % 2)
    ]
    assert may_help(halves) is may


async def _trained_with_hints(folder: Path, cuts: tuple[int, ...]) -> tuple[bytes, int]:
    """The weights of a run that is cut off at these calls of its backend, and how many calls the
    last part took.
    """
    folder.mkdir()
    stage = stage_with_hints(folder)
    stage.talk(40)
    stage.batches.open_batch(
        0, stage.turns._eligible(stage.turns.clocks(), 8, stage.turns.is_held_out), 4
    )
    for cut in (*cuts, None):
        Hinted(stage)
        stage.backend.cut_at = cut
        try:
            await stage.slow.once(LeastTurns(8))
        except CutError:
            stage.build()
    (version,) = stage.policies.versions()
    return Path(version.weights.adapter).read_bytes(), stage.backend.calls


@pytest.mark.anyio
async def test_a_run_with_hints_that_is_cut_and_goes_on_ends_where_an_uninterrupted_one_does(
    tmp_path: Path,
) -> None:
    expected, calls = await _trained_with_hints(tmp_path / "whole", ())
    for number, cuts in enumerate([(2,), (4, 5), (calls // 3, 3)]):
        assert (await _trained_with_hints(tmp_path / f"cut-{number}", cuts))[0] == expected


def scored(*rewards: float | None) -> ScoredGroup:
    return ScoredGroup(
        TurnId("t"), (1,), tuple(rollout(number) for number in range(1, len(rewards) + 1)), rewards
    )


@each(
    ("rewards", "needs"),
    [
        ((0.0, 0.0), True),
        ((0.2, 0.2), True),
        ((0.0, 1.0), False),
        ((1.0, 1.0), False),
        ((None, None), False),
    ],
)
def test_a_group_without_spread_and_reward_needs_a_hint(
    rewards: tuple[float | None, ...], needs: bool
) -> None:
    assert is_flat(scored(*rewards)) is needs


def test_only_answers_that_earned_more_with_the_hint_are_taught() -> None:
    taught = distil([scored(0.2, 0.2)], [scored(0.2, 1.0)])
    assert [one.tokens_T for one in taught] == [(2,)]


def test_a_hint_is_the_rules_text_and_the_answer_that_was_wanted_not_the_whole_correction(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    (turn,) = stage.talk(1)
    recorded, step = stage.reader.turn(turn), stage.turns.recorded.step(turn)
    assert recorded is not None
    assert step is not None
    corrected = replace(step, said_after="No, that is wrong, it must be 77-xx")

    def text(skill: bool, reference: str | None) -> str:
        found = HintPrompts(
            skill=lambda name: STARS if skill and name == SkillName(STARS.name) else None,
            reference=lambda step: reference,
            tokeniser=AsciiTokeniser(),
        ).of(recorded.turn, corrected)
        return "" if found is None else "".join(map(chr, found))

    assert STARS.body in text(skill=True, reference=None)
    assert "***" in text(skill=False, reference="***")
    assert "77-xx" not in text(skill=True, reference="***")
    assert text(skill=False, reference=None) == ""
