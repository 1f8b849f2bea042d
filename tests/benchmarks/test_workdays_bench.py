"""Workdays with a real model: words become skills, the predicate decides what trains, nights teach; the command on a tiny model."""

import json
import math
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from benchmarks.house_rules.run import Machine
from benchmarks.workdays.asking import Desk, batches, questions_of
from benchmarks.workdays.house import BUDGET_TOKENS, MAX_PLACED, House, Session
from benchmarks.workdays.nights import MAX_LAG, Ledger, Teacher, eligible
from benchmarks.workdays.report import Records, goals, read_records, skills_alone, write_report
from benchmarks.workdays.rewards import letters_in, reward
from benchmarks.workdays.run import Course, Run
from benchmarks.workdays.settings import LARGE, SMALL, Condition, Flush, Settings, Support, Writer
from benchmarks.workdays.steady import Steady
from benchmarks.workdays.turns import Asked, Question, in_words, read_answer, reply_to, step_of
from metaclaw.config.policy import PolicyConfig
from metaclaw.config.tree import SkillsConfig
from metaclaw.domain.batch import Adam, Datum, Drawing, Loss, PieceStats, Rollout, StepStats
from metaclaw.domain.eligibility import Rejection
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import Scope, Stamp
from metaclaw.engine.text import Vocabulary
from metaclaw_bench.questions import ChoiceCheck, Day, Feedback, FileCheck, Round
from metaclaw_bench.workdays.model import Answer, Files, Item, Workday
from tests.support.tiny import make_tiny_model

ROOT: Final = Path(__file__).parents[2]
CITIES: Final = ("Oslo", "Lima", "Cairo", "Quito")
DATES_RULE: Final = "Always write dates in memos as year, month and day with hyphens, then /nb."


@dataclass(frozen=True)
class Marks:
    passed: bool
    score: float

    @property
    def partial(self) -> float:
        return max(0.0, self.score)


def score(item: Item, answer: Answer, before: Files) -> Marks:
    """The stand-in's marks: the published formula for choices, equality for files."""
    check = item.round.check
    if isinstance(check, FileCheck):
        passed = {path: text.strip() for path, text in answer.files.items()} == dict(item.reference.files)
        return Marks(passed, float(passed))
    letters = letters_in(answer.text)
    if letters is None:
        return Marks(False, 0.0)
    return Marks(letters == check.answer, 1.0 - len(letters ^ check.answer) / len(check.options))


def _choice(number: int) -> Item:
    city = CITIES[number % len(CITIES)]
    check = ChoiceCheck(("A", "B", "C", "D"), frozenset("AC"))
    feedback = Feedback("Good.", "", {"A": DATES_RULE, "B": "That has no year.", "C": DATES_RULE, "D": "That has no year."})
    question = f"Which dates in a memo for {city} are right?\nA. 2031-02-03/nb\nB. 3 Feb\nC. 2031-02-04/nb\nD. 4 Feb"
    return Item(Round(f"r{number}", question, check, feedback), ("dates",), Answer("\\bbox{A,C}"), (Answer("\\bbox{A}"),))


def _file(number: int) -> Item:
    city = CITIES[number % len(CITIES)]
    feedback = Feedback("Good.", f"Wrong. {DATES_RULE}")
    question = f"Write memo.txt for {city}: one line with the date of 3 February 2031."
    return Item(
        Round(f"r{number}", question, FileCheck("true"), feedback),
        ("dates",),
        Answer("", {"memo.txt": f"{city}: 2031-02-03/nb"}),
        (Answer("", {"memo.txt": f"{city}: 3 Feb"}),),
    )


def workday(number: int, user: str = "ann") -> Workday:
    items = tuple((_file if place % 3 == 2 else _choice)(place) for place in range(6))
    day = Day(f"day{number:02}", "", SessionId(f"s{number}"), (), tuple(item.round for item in items), None)
    return Workday(day, number, user, "en", items, {})


def _asked(question: Question, *, passed: bool, generation: int = 0, version: int = 0) -> Asked:
    said = in_words(question.item.reference) if passed else "I do not know."
    return Asked(question, (1, 2), Stamp(generation, version, "", ()), said, (3,), True, passed, float(passed))


def _questions(number: int = 1) -> list[Question]:
    return questions_of(workday(number), 6)


def _hear(house: House, asked: Asked, said: str) -> bool:
    return bool(house.hear(step_of(asked, said)).born)


def test_limits_are_ones_the_product_can_be_set_to() -> None:
    limits = SkillsConfig(max_placed=MAX_PLACED, budget_tokens=BUDGET_TOKENS)
    assert (limits.max_placed, limits.budget_tokens) == (MAX_PLACED, BUDGET_TOKENS)
    assert PolicyConfig().max_lag == MAX_LAG


def test_a_persons_words_become_a_skill_that_their_next_question_carries_and_nobody_elses() -> None:
    house, question = House(), _questions()[2]
    assert _hear(house, _asked(question, passed=False), reply_to(question, None, passed=False))
    assert house.view.generation == 1
    (skill,) = house.find(question.text, Scope(user="ann"))
    assert DATES_RULE in skill.body
    assert house.find(question.text, Scope(user="bob")) == ()


def test_what_is_in_force_already_changes_nothing_and_a_contrary_rule_takes_its_place() -> None:
    house, question = House(), _questions()[0]
    asked = _asked(question, passed=False)
    assert _hear(house, asked, "Always end reports with 3 bullets.")
    again = house.hear(step_of(asked, "Always end reports with 3 bullets."))
    assert (again.born, again.is_instruction, house.view.generation) == ((), True, 1)
    changed = house.hear(step_of(asked, "From now on, always end reports with 5 bullets."))
    assert len(changed.born) == len(changed.gone) == 1
    assert (house.view.generation, house.view.count) == (2, 1)


SAID: Final = (
    "Always end reports with 3 bullets.",
    "Always end reports with 3 bullets.",
    "From now on, always end reports with 5 bullets.",
    "Never write a date without its year in memos.",
    "Always write a date without its year in memos.",
    "Always answer in German.",
    "From now on, always answer in French.",
    "Thanks, that is fine.",
)


def test_each_rule_that_says_something_new_is_a_generation() -> None:
    house, step = House(), step_of(_asked(_questions()[0], passed=False), "")
    heard = [house.hear(replace(step, said_after=said)) for said in SAID]
    assert [len(one.born) for one in heard] == [1, 0, 1, 1, 1, 1, 1, 0]
    assert [len(one.gone) for one in heard] == [0, 0, 1, 0, 1, 0, 1, 0]
    assert (house.view.generation, house.view.count) == (6, 3)


def test_a_persons_standing_instructions_fill_the_free_places_behind_what_fits() -> None:
    house, asked = House(), _asked(_questions()[0], passed=False)
    topics = ("giraffes", "volcanoes", "submarines", "trumpets", "herrings", "lanterns", "windmills")
    for topic in topics:
        assert _hear(house, asked, f"From now on, always mention {topic} with their weight when you describe {topic}.")
    placed = Session(house, Scope(user="ann")).place("Describe trumpets.")
    assert any("trumpets" in one.body for one in placed)
    assert len(placed) == MAX_PLACED
    assert Session(house, Scope(user="ben")).place("Describe trumpets.") == ()


def test_replies_are_worded_as_the_published_benchmark_words_them() -> None:
    choice, file = _questions()[0], _questions()[2]
    assert reply_to(choice, frozenset("AC"), passed=True) == "Good."
    missed = reply_to(choice, frozenset("AB"), passed=False)
    assert missed.splitlines()[:2] == [f"You missed option C: {DATES_RULE}", "You incorrectly selected option B: That has no year."]
    assert "did not include" in reply_to(choice, None, passed=False)
    assert reply_to(file, None, passed=False).startswith("Wrong. Always")


@pytest.mark.parametrize(
    ("said", "letters"),
    [("\\bbox{A, c}", "AC"), ("\\boxed{B} \\bbox{C}", "B"), ("\\bbox{}", None), ("A", None), ("\\bbox{A", None)],
)
def test_only_the_first_box_counts(said: str, letters: str | None) -> None:
    assert letters_in(said) == (None if letters is None else frozenset(letters))


def test_rewards_rise_from_silence_over_form_to_the_right_answer() -> None:
    choice, file = _questions()[0], _questions()[2]
    for question, ladder in (
        (choice, ["I do not know.", "Use \\b", "\\bbox{B}", "\\bbox{A}", "\\bbox{A,C}"]),
        (file, ["", "No idea at all.", "FILE memo.txt\nDate: 3 Feb", in_words(file.item.reference)]),
    ):
        worth = [reward(score, question, said, is_whole=True)[0] for said in ladder]
        assert worth == sorted(set(worth)), worth
        assert worth[-1] == 1.0
        assert max(worth[:-1]) <= 0.8
    assert reward(score, choice, "\\bbox{A,C}", is_whole=False) == (0.35, True)


def test_references_are_read_back_as_they_were_written() -> None:
    for item in workday(1).items:
        assert score(item, read_answer(in_words(item.reference)), {}).passed


def test_a_day_is_cut_in_batches_that_keep_its_order() -> None:
    questions = _questions()
    assert [len(part) for part in batches(questions, 4)] == [2, 1, 1, 2]
    assert [one for part in batches(questions, 4) for one in part] == questions
    assert len(batches(questions[:1], 3)) == 1


class Manners:
    """A policy with three ways of answering; it begins silent. Prompts begin with the number of their question."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self.logits = [1.0, 0.0, -1.0]
        self.questions = questions
        self.steps = 0
        self._gradient = [0.0] * 3

    def _shares(self) -> list[float]:
        weights = [math.exp(logit) for logit in self.logits]
        return [weight / sum(weights) for weight in weights]

    def sample(self, prompts: Sequence[Sequence[int]], drawing: Drawing) -> list[list[Rollout]]:
        return [[self._draw(prompt[0], drawing, number) for number in range(drawing.count)] for prompt in prompts]

    def _draw(self, question: int, drawing: Drawing, number: int) -> Rollout:
        shares = self._shares()
        chance = random.Random(f"{drawing.seed} {question} {number}")
        manner = chance.choices(range(3), shares)[0] if drawing.temperature else max(range(3), key=shares.__getitem__)
        said = ("Well.", "\\bbox{A}", in_words(self.questions[question].item.reference))[manner]
        return Rollout((manner,), (math.log(shares[manner]),), said, is_whole=True)

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, ...]]:
        return [tuple(math.log(self._shares()[token]) for token in tokens) for _, tokens in pairs]

    def accumulate(self, data: Sequence[Datum], loss: Loss) -> PieceStats:
        for datum in data:
            for place, share in enumerate(self._shares()):
                self._gradient[place] += datum.advantages_T[0] * ((place == datum.tokens_T[0]) - share)
        return PieceStats(len(data), entropy=1.0)

    def apply(self, adam: Adam, normaliser: float) -> StepStats:
        self.steps += 1
        moves = [4 * adam.learning_rate * change / normaliser for change in self._gradient]
        self.logits = [logit + move for logit, move in zip(self.logits, moves, strict=True)]
        self._gradient = [0.0] * 3
        return StepStats(self.steps, 1.0)


def test_nights_teach_a_silent_policy_to_answer() -> None:
    questions = _questions()
    policy = Manners(questions)
    settings = replace(SMALL, prompts=4, group=8, learning_rate=0.5)
    teacher = Teacher(policy, settings, score, 0, None)
    lessons = [replace(_asked(question, passed=False), prompt=(number,)) for number, question in enumerate(questions)]
    taught = [teacher.step(lessons, 0.0) for _ in range(40)]
    assert {step.prompts for step in taught} == {4}
    assert taught[0].passed < 0.4 < 0.9 < taught[-1].passed
    assert taught[0].reward < taught[-1].reward


def _desk(vocabulary: Vocabulary, most: int = 2000) -> Desk:
    return Desk(Manners(_questions()), vocabulary, score, max_tokens=8, max_prompt_tokens=most)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("workdays") / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return folder


@pytest.fixture(scope="module")
def vocabulary(model: Path) -> Vocabulary:
    return Vocabulary(model)


def test_a_prompt_that_would_be_too_long_leaves_skills_out(vocabulary: Vocabulary) -> None:
    house, question = House(), _questions()[2]
    _hear(house, _asked(question, passed=False), reply_to(question, None, passed=False))
    skills = house.find(question.text, question.scope)
    roomy, placed = _desk(vocabulary).prompt(question, skills)
    tight, none = _desk(vocabulary, len(roomy) - 1).prompt(question, skills)
    assert (len(placed), none) == (1, ())
    assert (tight, none) == _desk(vocabulary).prompt(question, ())
    assert len(tight) < len(roomy)


def test_support_never_trains_and_what_is_older_than_the_newest_skill_only_where_its_prompt_would_be_the_same() -> None:
    house, questions = House(), _questions()
    other = replace(questions[1], scope=Scope(user="bob"))
    early = [_asked(one, passed=False) for one in (questions[0], other, questions[2])]
    ledger = Ledger(list(early))
    _hear(house, early[2], reply_to(questions[2], None, passed=False))
    ledger.support[questions[2].turn] = house.view.generation
    late = _asked(questions[3], passed=True, generation=1)
    ledger.turns.append(late)
    found, refused = eligible(ledger, house, 0, Flush.FULL)
    assert found == [late]
    assert refused == {Rejection.SUPPORT: 1, Rejection.OLD_GENERATION: 2}
    found, refused = eligible(ledger, house, 0, Flush.SELECTIVE)
    assert found == [early[1], late]
    ledger.taught.add(late.question.turn)
    assert eligible(ledger, house, 1, Flush.FULL)[1][Rejection.TAUGHT] == 1


TINY: Final = replace(
    SMALL,
    writer=Writer.TEMPLATE,
    early_days=1,
    examples=False,
    days=2,
    questions=6,
    batches=2,
    max_tokens=4,
    max_prompt_tokens=1600,
    prompts=2,
    group=3,
    steps=2,
    rehearsal=0.1,
    rehearsed_prompts=2,
    rehearsed_questions=4,
    minutes=5.0,
)


def _run(model: Path, condition: Condition, settings: Settings = TINY) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = []
    course = Course((workday(1), workday(2)), (workday(9),), score)
    run = Run(condition, 0, settings, course, Machine(model, "cpu", "float32", 1), lambda line: lines.append(dict(line)))
    run.go()
    return lines


@pytest.mark.slow
def test_a_tiny_model_goes_through_every_condition(model: Path) -> None:
    runs = [Records(_run(model, condition)) for condition in Condition]
    assert [len(run.steps) for run in runs] == [0, 0, 4, 4]
    assert all(run.end is not None and len(run.days) == 2 for run in runs)
    skilled = runs[-1]
    assert skilled.days[-1]["skills"] == 1
    assert [night["lessons"] for night in runs[2].nights] == [6, 6]
    # The first batch teaches the rule; of the first day only what came after it may train.
    assert [night["lessons"] for night in skilled.nights] == [3, 6]
    text = write_report(runs)
    assert "| full |" in text
    assert goals(runs)["three seeds or more"] is False


@pytest.mark.slow
def test_a_run_whose_time_is_up_still_answers_the_held_out_days(model: Path) -> None:
    lines = _run(model, Condition.RL, replace(TINY, minutes=0.0))
    assert [line["kind"] for line in lines] == ["begin", "end"]


@pytest.mark.slow
def test_turns_of_which_only_a_known_rule_was_heard_train_unless_all_that_was_heard_is_support(model: Path) -> None:
    lines = _run(model, Condition.FULL, replace(TINY, support=Support.HEARD))
    refused = [line["refused"] for line in lines if line["kind"] == "night"]
    assert all(isinstance(one, dict) and one["fed a skill"] >= 2 for one in refused)


def _lines(condition: Condition, seed: int, accuracy: float) -> list[dict[str, object]]:
    named = {"condition": condition, "seed": seed}
    held_out = {"accuracy": accuracy, "placed": 1.0, "choice_exact": accuracy, "by_rule": {"dates": accuracy}}
    day = {"kind": "day", "summary": {"accuracy": accuracy}, "skills": 2, "version": 1} | named
    end = {"kind": "end", "wall_s": 60.0, "held_out": held_out, "peak_bytes": 10**9} | named
    return [{"kind": "begin"} | named, day, end]


def _runs(baseline: float, skills: float, rl: float, full: float, seeds: int = 3) -> list[Records]:
    values = dict(zip(Condition, (baseline, skills, rl, full), strict=True))
    return [Records(_lines(one, seed, value + 0.001 * seed)) for one, value in values.items() for seed in range(seeds)]


@pytest.mark.parametrize(
    ("values", "seeds", "missed"),
    [
        ((0.2, 0.3, 0.4, 0.5), 3, []),
        ((0.2, 0.2, 0.4, 0.5), 3, ["baseline < skills"]),
        ((0.2, 0.3, 0.6, 0.5), 3, ["RL only < full"]),
        ((0.2, 0.21, 0.2, 0.2005), 3, ["skills ≤ full", "intervals of baseline and full do not overlap", "full ≥ 1.9"]),
        ((0.2, 0.3, 0.4, 0.5), 2, ["three seeds or more"]),
    ],
)
def test_goals_can_be_met_and_missed(values: tuple[float, float, float, float], seeds: int, missed: list[str]) -> None:
    met = goals(_runs(*values, seeds=seeds))
    found = [goal for goal, is_met in met.items() if not is_met]
    assert len(found) == len(missed)
    assert all(goal.startswith(words) for goal, words in zip(found, missed, strict=True))


def test_a_report_shows_conditions_with_intervals_and_says_what_skills_alone_are_worth() -> None:
    runs = _runs(0.2, 0.3, 0.4, 0.5)
    text = write_report(runs)
    assert "| full | 0, 1, 2 | 50.1 % (49.9–50.3) |" in text
    assert "a help is shown" in skills_alone(runs)
    assert "is not shown" in skills_alone(_runs(0.2, 0.2, 0.4, 0.5))
    assert goals(runs[:3]) == {}


def test_a_run_that_was_killed_leaves_records_that_can_be_read(tmp_path: Path) -> None:
    whole, cut = _lines(Condition.FULL, 0, 0.5), _lines(Condition.RL, 0, 0.5)[:-1]
    (tmp_path / "full-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in whole))
    (tmp_path / "RL-only-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in cut) + '{"kind": "st')
    runs = read_records(tmp_path)
    assert [(run.condition, run.end is None) for run in runs] == [(Condition.RL, True), (Condition.FULL, False)]
    assert "Not at their end, and in no mean above but the days': RL only, seed 0 (1 days)." in write_report(runs)


def test_settings_on_the_command_line_replace_those_of_the_preset() -> None:
    from benchmarks.workdays.__main__ import parse, settings_of

    given = settings_of(parse(["--small", "--group", "5", "--flush", "selective", "--minutes", "3"]))
    assert (given.group, given.flush, given.minutes, given.prompts) == (5, Flush.SELECTIVE, 3.0, SMALL.prompts)
    assert settings_of(parse([])) == LARGE


def test_turn_ids_of_a_stream_differ() -> None:
    turns: list[TurnId] = [question.turn for number in (1, 2) for question in _questions(number)]
    assert len(set(turns)) == 12


class Lengths(Manners):
    """Notes how long the prompts are that it is asked for."""

    def __init__(self, questions: Sequence[Question]) -> None:
        super().__init__(questions)
        self.lengths: list[list[int]] = []

    def sample(self, prompts: Sequence[Sequence[int]], drawing: Drawing) -> list[list[Rollout]]:
        self.lengths.append([len(prompt) for prompt in prompts])
        return super().sample(prompts, drawing)


def test_batches_come_in_few_lengths_and_nothing_of_the_filler_comes_back() -> None:
    policy = Lengths(_questions())
    steady, drawing = Steady(policy), Drawing(2, 4, seed=1)
    prompts = [(0,) * 100, (1,) * 300]
    assert steady.sample(prompts, drawing) == policy.sample(prompts, drawing)
    steady.sample([(1,) * 500], drawing)
    assert policy.lengths == [[100, 300, 512], [100, 300], [500]]


ABSENT: Final = [
    "msgspec",
    "yaml",
    "pydantic",
    "anyio",
    "sqlalchemy",
    "transformers",
    "gguf",
    "peft",
    "uvloop",
    "httptools",
    "httpx",
]
BLOCKED: Final = f"""
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {ABSENT} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Without, sys.meta_path)
"""
FEW: Final = (
    "--small --days 2 --questions 6 --batches 2 --steps 1 --prompts 2 --group 2 --max-tokens 4 --max-prompt-tokens 2500 "
    "--held-out-days 1 --early-days 1 --rehearsal 0.1 --rehearsed-prompts 2 --rehearsed-questions 2 --golden --threads 1"
)


@pytest.mark.nightly
def test_the_command_runs_where_only_torch_and_tokenizers_are_installed(model: Path, tmp_path: Path) -> None:
    program = BLOCKED + "from benchmarks.workdays.__main__ import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, *FEW.split(), "--model", str(model), "--out", str(tmp_path), "--conditions", "full"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "| full | 0 | 0.0 % |" in done.stdout
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "full-0.jsonl").read_text().splitlines()]
    assert kinds == ["begin", "day", "step", "night", "day", "step", "night", "end"]
    night, end = (json.loads(line) for line in (tmp_path / "full-0.jsonl").read_text().splitlines()[-2:])
    assert night["judged"] == {"scale": 1.0, "points": [0.0]}  # so small a model has nothing to lose
    assert end["golden"]["points"] == end["kept"]["points"] == 0.0
    assert (tmp_path / "report.md").is_file()
