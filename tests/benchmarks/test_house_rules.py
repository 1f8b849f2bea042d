"""The house rules: nothing of the exam is taught, answers follow from questions, and prompts are those that serving makes."""

import calendar
import re
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.house_rules.kept import questions
from benchmarks.house_rules.loop import validation
from benchmarks.house_rules.pools import CODES, COMPONENTS, DATES, EXTENSIONS, FAULTS, PEOPLE, TOPICS, Pool, Split
from benchmarks.house_rules.prompts import BUDGET_TOKENS, SYSTEM, encode, turns
from benchmarks.house_rules.rehearsal import conversations
from benchmarks.house_rules.rewards import is_exact, reward, similarity
from benchmarks.house_rules.rules import SKILLS, Rule
from benchmarks.house_rules.settings import LARGE
from benchmarks.house_rules.tasks import Task, make_tasks
from metaclaw.config.tree import SkillsConfig
from metaclaw.domain.chat import ChatRequest, Message, Role, Text, Wire
from metaclaw.engine.prompt import build_prompt
from metaclaw.engine.text import Vocabulary
from metaclaw.skills import ShelfView, remove_blocks, render_block
from metaclaw.skills.gate.lint import lint
from metaclaw.skills.index import SkillIndex
from metaclaw.train.golden import golden_items
from tests.support.tiny import make_tiny_model

POOLS = {"topics": TOPICS, "people": PEOPLE, "components": COMPONENTS, "faults": FAULTS, "codes": CODES, "dates": DATES}
MONTHS = list(calendar.month_name)[1:]


def some(split: Split, count: int = 500, seed: int = 0, rules: tuple[Rule, ...] = tuple(Rule)) -> list[Task]:
    return list(islice(make_tasks(rules, split, seed), count))


@pytest.mark.parametrize("name", POOLS)
def test_no_entity_is_on_both_sides_of_the_cut(name: str) -> None:
    pool: Pool[object] = POOLS[name]  # type: ignore[assignment]
    assert not set(pool.train) & set(pool.held_out)
    assert len(pool.held_out) >= 9
    assert len(pool.train) > 2 * len(pool.held_out)


def test_no_word_taught_in_one_role_is_asked_in_another() -> None:
    pools = (TOPICS, PEOPLE, COMPONENTS)
    assert not {word for pool in pools for word in pool.train} & {word for pool in pools for word in pool.held_out}


def test_what_an_exam_asks_was_never_taught_whatever_the_seeds() -> None:
    taught = {task.question for seed in range(3) for task in some(Split.TRAIN, 1000, seed)}
    asked = {task.question for seed in range(3) for task in some(Split.HELD_OUT, 400, seed)}
    assert not taught & asked
    answers = {task.answer for seed in range(3) for task in some(Split.TRAIN, 1000, seed)}
    assert not answers & {task.answer for seed in range(3) for task in some(Split.HELD_OUT, 400, seed)}


def test_every_rule_has_thousands_of_questions_and_none_comes_twice() -> None:
    for rule in Rule:
        questions = [task.question for task in some(Split.TRAIN, 2000, rules=(rule,))]
        assert len(set(questions)) == 2000


def test_the_same_seed_asks_the_same_and_another_seed_something_else() -> None:
    assert some(Split.TRAIN, 50, seed=3) == some(Split.TRAIN, 50, seed=3)
    assert {task.question for task in some(Split.TRAIN, 50, seed=3)} != {task.question for task in some(Split.TRAIN, 50, seed=4)}


@pytest.mark.parametrize("split", list(Split))
def test_an_answer_follows_from_its_question_and_the_rule_alone(split: Split) -> None:
    for task in some(split, 400):
        assert _derived(task.rule, task.question) == task.answer, task.question


def _derived(rule: Rule, question: str) -> str:
    """The rules once more, read from the question's words rather than from what it was made of."""
    match rule:
        case Rule.DATES:
            month = next(number for number, name in enumerate(MONTHS, 1) if name in question)
            day, year = sorted(map(int, re.findall(r"\d+", question)))
            return f"{year}-{month:02}-{day:02}/nb"
        case Rule.NAMES:
            one, two = re.search(r"about (\w+) and (\w+)", question).groups()  # type: ignore[union-attr]
            kind = next(word for word in re.findall(r"[a-z]+", question) if word in EXTENSIONS)
            return f"[{one}_{two}].v{re.findall('[0-9]', question)[0]}.{kind}"
        case Rule.METADATA:
            topic = re.search(r"about (\w+)", question)[1]  # type: ignore[index]
            person = next(name for name in re.findall(r"[A-Z][a-z]+", question) if name in PEOPLE.train + PEOPLE.held_out)
            return f"{{about: {topic}, by: {person}, rev: {re.findall('[0-9]', question)[0]}}}"
        case Rule.BACKUPS:
            return f".vault/{re.findall(r'[a-z]+[.][a-z]+', question)[0]}~{re.findall('[0-9]+', question)[0]}"
        case Rule.LOG_LINES:
            level = next(word for word in ("error", "warning", "notice") if re.search(rf"\b{word}\b", question))
            component = re.search(r"[Tt]he (?!log\b|code\b)(\w+)", question)[1]  # type: ignore[index]
            fault = next(words for words in FAULTS.train + FAULTS.held_out if words in question)
            return f"[{level.upper()}] {component} | {fault} | {re.findall('[0-9]+', question)[0]}"


def test_skills_are_such_as_the_gate_has_nothing_against() -> None:
    told = {rule: replace(skill, extra={}) for rule, skill in SKILLS.items()}  # as a person's own words, which need no steps
    assert {rule: lint(skill) for rule, skill in told.items()} == dict.fromkeys(Rule, ())


def test_examples_in_skills_give_no_answer_away() -> None:
    bodies = " ".join(skill.body for skill in SKILLS.values()).lower()
    words = set(re.findall(r"[a-z]+", bodies))
    entities = {*TOPICS.train, *TOPICS.held_out, *(name.lower() for name in PEOPLE.train + PEOPLE.held_out)}
    assert not words & entities
    assert not any(f"{day:%Y-%m-%d}" in bodies for day in DATES.train + DATES.held_out)


def test_the_product_finds_the_skill_that_a_question_needs() -> None:
    view = ShelfView(1, "", SkillIndex().changed(list(SKILLS.values()), []))
    for task in some(Split.TRAIN, 200) + some(Split.HELD_OUT, 200):
        found = view.retrieve(task.question, 1)
        assert found == (SKILLS[task.rule],), task.question


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary(make_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("with_skill", [True, False])
def test_prompts_are_token_for_token_what_serving_makes_of_the_request(vocabulary: Vocabulary, with_skill: bool) -> None:
    for task in some(Split.TRAIN, 10):
        block = render_block([SKILLS[task.rule]], SkillsConfig().budget_tokens).text if with_skill else ""
        said = (Message(Role.SYSTEM, (Text(SYSTEM + block),)), Message(Role.USER, (Text(task.question),)))
        prompt = build_prompt(ChatRequest(Wire.CHAT, "m", said))
        assert encode(vocabulary, [task], with_skill=with_skill) == [tuple(vocabulary.render(prompt.turns, prompt.beginning))]


def test_the_skill_is_all_that_differs_between_the_two_prompts() -> None:
    assert SkillsConfig().budget_tokens == BUDGET_TOKENS
    for task in some(Split.TRAIN, 10):
        (role, system), *rest = turns(task, with_skill=True)
        assert SKILLS[task.rule].body in system
        assert [(role, remove_blocks(system)), *rest] == turns(task, with_skill=False)


TASKS = some(Split.TRAIN, 40)


@given(st.sampled_from(TASKS), st.text(max_size=60), st.booleans())
def test_a_reward_lies_between_nothing_and_all_and_only_an_exact_answer_gets_all(task: Task, text: str, is_whole: bool) -> None:
    worth = reward(task, text, is_whole=is_whole)
    assert 0.0 <= worth <= 1.0
    assert (worth == 1.0) == is_exact(task, text, is_whole=is_whole)


@given(st.sampled_from(TASKS))
def test_an_exact_answer_may_stand_in_white_space_but_must_end(task: Task) -> None:
    assert reward(task, f" {task.answer}\n", is_whole=True) == 1.0
    assert not is_exact(task, task.answer, is_whole=False)
    assert 0.3 < reward(task, task.answer, is_whole=False) < 0.5


@given(st.sampled_from(TASKS))
def test_content_is_worth_more_than_form(task: Task) -> None:
    wrong = "".join("#" * len(piece.text) if piece.is_content else piece.text for piece in task.pieces)
    bare = " ".join(task.contents)
    assert reward(task, wrong, is_whole=True) < reward(task, bare, is_whole=True) < 1.0


@given(st.sampled_from(TASKS))
def test_saying_everything_there_is_pays_next_to_nothing(task: Task) -> None:
    everything = " ".join((*map(str, range(100)), *TOPICS.train, *PEOPLE.train, *COMPONENTS.train, *FAULTS.train))
    assert reward(task, everything, is_whole=True) < 0.02
    assert reward(task, f"{task.answer} {everything}", is_whole=True) < 0.05


@given(st.sampled_from(TASKS))
def test_a_right_first_line_is_worth_something_and_silence_is_not(task: Task) -> None:
    followed = reward(task, f"{task.answer}\nAnd here is more about it, as nobody asked. {'x' * 80}", is_whole=True)
    assert 0.4 < followed < reward(task, task.answer[:-1], is_whole=True)
    assert reward(task, " \n ", is_whole=True) == 0.0


@given(st.sampled_from(TASKS), st.integers(0, 5))
def test_each_piece_of_content_that_is_right_counts_even_behind_a_wrong_one(task: Task, number: int) -> None:
    spoilt = number % len(task.contents)
    contents = ["§" if place == spoilt else text for place, text in enumerate(task.contents)]
    none = reward(task, "§" * len(" ".join(contents)), is_whole=True)
    assert reward(task, " ".join(contents), is_whole=True) >= none + 0.5 * (len(contents) - 1) / len(contents) * 0.9


def _naive(one: str, two: str) -> int:
    row = list(range(len(two) + 1))
    for number, char in enumerate(one, 1):
        above, row[0] = row[0], number
        for place, other in enumerate(two, 1):
            above, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, above + (char != other))
    return row[-1]


@settings(max_examples=300)
@given(st.text("abc|", max_size=80), st.text("abc|", max_size=80))
def test_the_edit_distance_by_columns_is_the_one_by_cells(one: str, two: str) -> None:
    longer = max(len(one), len(two))
    assert similarity(one, two) == (1.0 - _naive(one, two) / longer if longer else 1.0)


def test_nothing_that_is_rehearsed_is_in_the_golden_set_or_carries_a_rule() -> None:
    rehearsed = [turn for talk in conversations(200, seed=0) for turn in talk]
    golden = _golden_texts()
    assert len({text for role, text in rehearsed if role == "user"}) == 200
    assert not {text for role, text in rehearsed if role == "user"} & golden
    assert not any("house_rules" in text for _, text in rehearsed)
    assert conversations(200, seed=0) != conversations(200, seed=1)


def test_what_chooses_weights_is_neither_taught_nor_asked_at_the_end() -> None:
    rehearsed, asked = questions()
    golden = {text.lower() for text in _golden_texts()}
    mine = [question.ask.lower() for question in (*rehearsed, *asked)]
    assert len(set(mine)) == len(mine) > 250
    assert not set(mine) & golden
    for seed in range(3):
        chosen_by = {task.question for task in validation(LARGE, seed)}
        assert len(chosen_by) == LARGE.settle_on
        assert not chosen_by & {task.question for rule in Rule for task in some(Split.TRAIN, 4000, seed, (rule,))}
        assert not chosen_by & {task.question for task in some(Split.HELD_OUT, 400, seed)}


def _golden_texts() -> set[str]:
    messages = [message for item in golden_items() for message in item.request.messages]
    return {part.text for message in messages for part in message.parts if isinstance(part, Text)}


@pytest.mark.parametrize(
    ("ask", "right", "wrong"),
    [
        ("What is the capital of Norway?", "The capital of Norway is Oslo.", "It is Bergen."),
        ("Write the word apple in capital letters, and nothing else.", "APPLE", "apple"),
        ("Repeat the word ladder in double quotes, and nothing else.", '"ladder"', "ladder"),
        ("Is ice cold? Answer with one word: yes or no.", "Yes.", "Ice is cold, yes."),
    ],
)
def test_a_kept_question_knows_a_right_answer_from_a_wrong_one(ask: str, right: str, wrong: str) -> None:
    [question] = [one for half in questions() for one in half if one.ask == ask]
    assert question.is_right(right)
    assert not question.is_right(wrong)
