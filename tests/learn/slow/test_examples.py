"""Worked examples in the text of a skill, confirmed by its check, as demonstrations."""

from dataclasses import replace
from pathlib import Path

import pytest

from metaclaw.domain.chat import Text
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.learn.slow.examples import Examples, worked_examples
from metaclaw.learn.slow.lessons import Least
from metaclaw.learn.slow.rewards import Rewards
from tests.learn.slow.stage import STARS, AsciiTokeniser, CutError, Stage
from tests.support.softmax import END


@pytest.mark.parametrize(
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
def test_examples_are_read_in_the_forms_people_write_them(text: str, asked: str, answers: tuple[str, ...]) -> None:
    first = worked_examples(f"Keep to this.\n{text}")[0]
    assert (first.asked, first.answers) == (asked, answers)


def test_ordinary_text_holds_no_examples() -> None:
    assert worked_examples("Write the hour, then the minutes.\n\nSee also: the roster.\n- nothing else") == []


PROGRAM = """program: |
  import json, sys
  given = json.load(sys.stdin)
  print(json.dumps({"score": 1 if given["text"] == given["task"][::-1] else 0.1}))"""
REVERSED = Skill(
    SkillName("stars"),
    "When answering anything",
    "Say it backwards. Examples:\nabcd -> dcba\nwrong -> wrong\nxyz -> zyx",
    extra={"check": PROGRAM},
)


def examples(stage: Stage, skill: Skill) -> Examples:
    rewards = Rewards(judge_for=lambda model: None, skill=lambda name: skill, redact=lambda text: text)
    return Examples(skill=lambda name: skill, request=stage._request, rewards=rewards, tokeniser=AsciiTokeniser())


@pytest.mark.anyio
async def test_only_what_the_check_confirms_is_shown_and_without_the_line_that_gives_it_away(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    lessons = [lesson for turn in stage.talk(3) if (lesson := stage.turns._lesson(turn)) is not None]
    found = await examples(stage, REVERSED).of(lessons)
    assert [bytes(one.tokens[:-1]).decode() for one in found] == ["dcba", "zyx"]
    assert all(one.tokens[-1] == END for one in found)
    assert all(len(one.prompts) == 2 and bytes(prompt).endswith(b"abcd:") for one in found[:1] for prompt in one.prompts)
    assert not any(lesson.step.task.encode() in bytes(prompt) for lesson in lessons for one in found for prompt in one.prompts)


@pytest.mark.anyio
async def test_the_line_of_an_example_is_not_in_its_prompt(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    lessons = [lesson for turn in stage.talk(1) if (lesson := stage.turns._lesson(turn)) is not None]
    # The rule of the stage stands in its prompts: its body is taken for an example here.
    shown = replace(STARS, body=f"{STARS.body}\nwell -> x*")
    ours = examples(stage, shown)
    request = stage._request(lessons[0].turn)
    assert request is not None
    system = request.messages[0]
    placed = replace(system, parts=(Text("Hi.\nwell -> x*\nBye."),))
    ours._request = lambda turn: replace(request, messages=(placed, *request.messages[1:]))
    (found,) = await ours.of(lessons)
    assert bytes(found.prompts[0]) == b"Hi.\nBye.\nwell:"


@pytest.mark.anyio
async def test_a_run_with_demonstrations_that_is_cut_and_goes_on_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    expected, calls = await _trained(tmp_path / "whole", ())
    without, _ = await _trained(tmp_path / "without", (), body="Nothing.")
    assert expected != without
    for number, cuts in enumerate([(2,), (4, 5), (calls // 3, 3)]):
        assert (await _trained(tmp_path / f"cut-{number}", cuts))[0] == expected


async def _trained(folder: Path, cuts: tuple[int, ...], body: str = "well -> x*\nso -> **") -> tuple[bytes, int]:
    """The weights of a run that is cut off at these calls of its backend, and how many calls the last part took."""
    folder.mkdir()
    stage = Stage(folder)
    stage.recipe = replace(stage.recipe, rehearsal=0.0, hindsight=True, steps=3)
    stage.talk(40)
    stage.batches.open_batch(0, stage.turns._eligible(stage.turns.clocks(), 8, stage.turns.is_held_out), 4)
    for cut in (*cuts, None):
        stage.build()
        object.__setattr__(stage.slow._shop, "examples", examples(stage, replace(STARS, body=body)))
        stage.backend.cut_at = cut
        try:
            await stage.slow.once(Least(8))
        except CutError:
            continue
    (version,) = stage.policies.versions()
    return Path(version.weights.adapter).read_bytes(), stage.backend.calls
