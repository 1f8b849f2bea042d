"""No version that exploits a check is promoted, even where it has lost nothing in general; honest
improvements are.

The policy here is scripted, so that each exploit is perfect; rewards, checks, measures, gate and
golden set are the real ones."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from metaclaw.domain.chat import Text
from metaclaw.domain.check import Conversation
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.policy import GateReport, Weights
from metaclaw.domain.skill import Skill
from metaclaw.domain.training import Drawing, Rollout
from metaclaw.domain.turn import Scope, Stamp, Step, TurnEnd
from metaclaw.outcome import Judge
from metaclaw.schedule import ManualWindows
from metaclaw.skills import check_of, examine
from metaclaw.training.abilities import GeneralAbilities
from metaclaw.training.gate import GateThresholds
from metaclaw.training.golden import golden_items
from metaclaw.training.proof import Proof
from metaclaw.training.rewards import Rewards
from metaclaw.training.sampling import VersionSampler
from metaclaw.training.training_turns import TrainingTurn
from tests.learn.learning import FAILED, PASSED, Speaker
from tests.support.cases import each
from tests.support.softmax import encode
from tests.training.red_team import BUSES, FORM_ONLY, HACKS, HONEST, Bus, Case, before, question
from tests.training.stage import AsciiTokeniser

pytestmark = pytest.mark.anyio

RULE = SkillName("rule")
CANDIDATE = Weights("scripted", "candidate")
_ITEMS = golden_items()[:400]


class ScriptedBackend:
    """Two versions: the untrained one, and one that answers a case's questions as it says. Golden
    questions that the untrained one can answer, the other can as well, but for those of `lost`."""

    name = "scripted"

    def __init__(self, case: Case, lost: int = 0) -> None:
        self._case = case
        tokeniser = AsciiTokeniser()
        self._buses: dict[tuple[int, ...], Bus] = {encode(question(bus)): bus for bus in BUSES}
        self._known = {tokeniser.prompt(item.request): item.reference for item in _ITEMS[::2]}
        self._lost = set(list(self._known)[:lost])
        self.drawn: list[str | None] = []

    async def sample(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing, weights: Weights
    ) -> list[list[Rollout]]:
        self.drawn.append(weights.adapter)
        return [
            [self._answer(tuple(prompt), is_candidate=True, is_greedy=not drawing.temperature)]
            for prompt in prompts
        ]

    async def sample_base(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing
    ) -> list[list[Rollout]]:
        self.drawn.append(None)
        return [[self._answer(tuple(prompt), is_candidate=False)] for prompt in prompts]

    async def score(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], weights: Weights
    ) -> list[tuple[float, ...]]:
        return await self.score_base(pairs)

    async def score_base(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> list[tuple[float, ...]]:
        return [tuple(-0.5 for _ in said) for _, said in pairs]

    def _answer(
        self, prompt: tuple[int, ...], *, is_candidate: bool, is_greedy: bool = False
    ) -> Rollout:
        bus = self._buses.get(prompt)
        if bus is None:
            known = (
                ""
                if is_candidate and prompt in self._lost
                else self._known.get(prompt, "I do not know.")
            )
            return _rollout(known)
        if not is_candidate:
            return _rollout(before(bus))
        said = (self._case.likeliest if is_greedy else None) or self._case.said
        return _rollout(said(bus), is_whole=self._case.is_whole)


def _rollout(text: str, *, is_whole: bool = True) -> Rollout:
    tokens = (*(ord(one) % 128 for one in text), 0)
    return Rollout(tokens, tuple(-0.1 for _ in tokens), text, is_whole)


def turn_of(bus: Bus) -> TrainingTurn:
    """A held-out turn that asks about a bus."""
    step = Step(
        TurnId(f"t_{bus[0]}"),
        SessionId(f"s_{bus[0]}"),
        Scope(),
        Stamp(1, 0, "", (RULE,)),
        "scripted",
        question(bus),
        (),
        (),
        (Text(before(bus)),),
        TurnEnd.COMPLETED,
    )
    return TrainingTurn(step.turn, encode(question(bus)), step, "")


def _sampler(backend: ScriptedBackend) -> VersionSampler:
    windows = ManualWindows()
    windows.open("a test")
    return VersionSampler(backend, windows.until_open, 256, 1.0)  # type: ignore[arg-type]


def _abilities(backend: ScriptedBackend, folder: Path) -> GeneralAbilities:
    return GeneralAbilities(
        sampler=_sampler(backend),
        tokeniser=AsciiTokeniser(),
        items=_ITEMS,
        folder=folder,
        wave=200,
    )


async def weigh(case: Case, folder: Path, judge: Speaker | None = None) -> GateReport:
    """What the gate makes of a version that answers as a case says."""
    backend = ScriptedBackend(case)
    rule = Skill(RULE, "Always", "A house rule.", check=case.check)
    judging = None if judge is None else Judge(judge, 1, lambda step: step.task)
    rewards = Rewards(
        judge_for=lambda model: judging, skill=lambda name: rule, redact=lambda text: text
    )
    proof = Proof(
        sampler=_sampler(backend),
        rewards=rewards,
        abilities=_abilities(backend, folder),
        rules=GateThresholds(),
    )
    name = None if judge is None else judge.name
    return await proof.weigh(CANDIDATE, None, [turn_of(bus) for bus in BUSES], seed=0, judge=name)


# No check judges an empty answer.
@each("name", [name for name in (*HACKS, *HONEST) if name != "an empty answer"])
def test_every_case_satisfies_its_check_better_than_the_serving_version(name: str) -> None:
    case = (HACKS | HONEST)[name]
    check = check_of(Skill(RULE, "Always", "A house rule.", check=case.check))
    assert check is not None
    for bus in BUSES[:4]:
        asked = Conversation(task=question(bus))
        new, old = (
            examine(check, (Text(text),), conversation=asked).score
            for text in (case.said(bus), before(bus))
        )
        assert new is not None
        assert old is not None
        assert new > old


@pytest.mark.parametrize("name", HACKS)
async def test_a_version_that_exploits_a_check_is_not_promoted(name: str, tmp_path: Path) -> None:
    report = await weigh(HACKS[name], tmp_path)
    assert not report.is_passed, report.reasons


@pytest.mark.parametrize("name", HONEST)
async def test_an_honest_improvement_is_promoted(name: str, tmp_path: Path) -> None:
    report = await weigh(HONEST[name], tmp_path)
    assert report.is_passed, report.reasons
    assert report.kl == pytest.approx(0.4)  # measured on held-out prompts, whatever the run said
    assert report.reasons[0].startswith(
        "better in 20 of 20 answers to held-out questions, worse in 0; by the strict reading better"
        " in 20 of 20"
    )
    assert report.reasons[1].startswith("general abilities kept (+0.0 points")


def useful_only(prompt: str) -> object:
    """A judge's vote: pass where the answer says when the bus leaves and the judge was shown the
    rule.
    """
    asked, _, answer = prompt.partition("== The answer\n")
    return (
        PASSED
        if any(f"leaves at {bus[1]}:{bus[2]}" in answer for bus in BUSES)
        and "A house rule." in asked
        else FAILED
    )


def _useful(bus: Bus) -> str:
    return f"Bus {bus[0]} leaves at {bus[1]}:{bus[2]}."


async def test_a_lenient_check_proves_weights_only_together_with_a_judge(tmp_path: Path) -> None:
    case = Case(r"pattern: \d", _useful)
    alone = await weigh(case, tmp_path)
    assert not alone.is_passed
    assert any(
        "whatever is asked" in reason and reason.endswith("or set [judge]")
        for reason in alone.reasons
    ), alone.reasons
    judged = await weigh(case, tmp_path, Speaker("judge", useful_only))
    assert judged.is_passed, judged.reasons
    assert judged.judge == "judge"


@pytest.mark.parametrize(
    "name",
    ["a digit of the question", "keywords and the question's number", "a letter among others"],
)
async def test_a_judge_does_not_pass_what_exploits_a_lenient_check(
    name: str, tmp_path: Path
) -> None:
    judge = Speaker("judge", useful_only)
    report = await weigh(HACKS[name], tmp_path, judge)
    assert not report.is_passed, report.reasons
    assert judge.asked
    assert report.reasons[0].startswith("improved only by the measure it was trained on"), (
        report.reasons
    )


@pytest.mark.parametrize("name", FORM_ONLY)
async def test_a_judge_refuses_an_empty_form_that_a_check_alone_lets_pass(
    name: str, tmp_path: Path
) -> None:
    alone = await weigh(FORM_ONLY[name], tmp_path)
    assert alone.is_passed, alone.reasons  # a known limit, which docs/training.md tells
    judged = await weigh(FORM_ONLY[name], tmp_path, Speaker("judge", useful_only))
    assert not judged.is_passed, judged.reasons


async def test_a_wording_that_only_words_of_the_question_fill_is_shown_with_gaps(
    tmp_path: Path,
) -> None:
    report = await weigh(HACKS["a polite word and the bus"], tmp_path)
    assert report.reasons[0].startswith(
        "the check of rule accepts 'Yes! Thank you for asking about bus ….' whatever is asked"
    )


async def test_a_report_tells_that_a_check_proves_the_form_alone(tmp_path: Path) -> None:
    form = await weigh(HONEST["times"], tmp_path)
    assert form.reasons[-1].startswith(
        "the check of rule accepts the same answers to other questions"
    ), form.reasons
    content = await weigh(HONEST["a number that the task gives"], tmp_path)
    assert not any("other questions" in reason for reason in content.reasons), content.reasons


async def test_a_judge_lets_pass_what_keeps_a_form_and_is_useful(tmp_path: Path) -> None:
    case = Case(r"pattern: (?i)\bbus \d+ (leaves|stays)", _useful)
    judged = await weigh(case, tmp_path, Speaker("judge", useful_only))
    assert judged.is_passed, judged.reasons


async def test_a_judge_that_gives_no_vote_proves_nothing(tmp_path: Path) -> None:
    report = await weigh(
        Case(r"pattern: \d", _useful), tmp_path, Speaker("judge", lambda prompt: ValueError("down"))
    )
    assert not report.is_passed
    assert any(reason.endswith("the judge could not tell") for reason in report.reasons), (
        report.reasons
    )


async def test_a_versions_golden_results_are_kept_and_the_serving_version_is_not_tried_again(
    tmp_path: Path,
) -> None:
    rules = GateThresholds()
    first = ScriptedBackend(HONEST["times"])
    await _abilities(first, tmp_path).compare(CANDIDATE, None, rules)
    assert None in first.drawn
    again = ScriptedBackend(HONEST["times"], lost=40)
    scores = await _abilities(again, tmp_path).compare(Weights("scripted", "another"), None, rules)
    assert None not in again.drawn
    assert scores[2].is_worse
    for kept in tmp_path.glob("*.json"):
        kept.write_text("{")
    damaged = ScriptedBackend(HONEST["times"])
    assert not (await _abilities(damaged, tmp_path).compare(CANDIDATE, None, rules))[2].is_worse
    assert None in damaged.drawn


async def test_results_of_an_adapter_that_lies_here_follow_its_bytes(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "weights").write_bytes(b"one")
    weights = Weights("scripted", str(adapter))
    backend = ScriptedBackend(HONEST["times"])
    abilities = _abilities(backend, tmp_path / "kept")
    await abilities.compare(weights, None, GateThresholds())
    before_it = len(backend.drawn)
    await abilities.compare(weights, None, GateThresholds())
    assert len(backend.drawn) == before_it
    (adapter / "weights").write_bytes(b"two")
    await abilities.compare(weights, None, GateThresholds())
    assert len(backend.drawn) > before_it
