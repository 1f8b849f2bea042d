"""Every stage's contract accepts a right file and refuses files that are nearly right, each for its
own reason.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest

from metaclaw_bench.research.contracts import CONTRACTS, Broken
from metaclaw_bench.research.contracts.experiments import MORE_VALUES_RULE
from metaclaw_bench.research.laboratory import SandboxLaboratory
from metaclaw_bench.research.pipeline import Pipeline, RunPlan
from metaclaw_bench.research.prompts import (
    correction,
    is_told,
    opening,
    reconsideration,
    stage_of,
    standing,
)
from metaclaw_bench.research.references import write
from metaclaw_bench.research.simulated import DirectResearcher, Habits, Researcher
from metaclaw_bench.research.stages import ASKING_STAGES, AUTHOR_OF, STAGES, Stage
from metaclaw_bench.simulated.listener import laid_down
from tests.support.cases import each

TOPIC = "step sizes"
RIGHT = Habits(told=1.0, untold=1.0)
Change = Callable[[str], str]


@pytest.fixture(scope="module")
def files() -> Mapping[str, str]:
    """All files of a run in which nothing went wrong."""
    pipeline = Pipeline(
        DirectResearcher(Researcher(0, RIGHT)),
        SandboxLaboratory(),
        RunPlan("baseline", 0, 1, True, TOPIC),
    )
    assert anyio.run(pipeline.run).run.ending == "completed"
    return pipeline.files


def changed(change: Callable[[Any], object]) -> Change:
    """Change a JSON file; what `change` gives back takes its place, unless it is None."""

    def apply(text: str) -> str:
        value = json.loads(text)
        result = change(value)
        return json.dumps(value if result is None else result)

    return apply


def without(name: str) -> Change:
    return changed(
        lambda value: (value[0] if isinstance(value, list) else value).pop(name) and None
    )


def put(name: str, new: object) -> Change:
    return changed(
        lambda value: (value[0] if isinstance(value, list) else value).update({name: new})
    )


def swap(old: str, new: str) -> Change:
    def apply(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return apply


NEAR_MISSES: dict[Stage, list[Change]] = {
    Stage.TOPIC_INIT: [swap("## Scope", "## Range"), swap("One small experiment.", "")],
    Stage.PROBLEM_DECOMPOSE: [
        changed(lambda listed: listed[:3]),
        without("question"),
        put("priority", "1"),
        put("priority", True),
    ],
    Stage.SEARCH_STRATEGY: [
        without("sources"),
        changed(lambda plan: {**plan, "queries": plan["queries"][:2]}),
        put("queries", "one"),
    ],
    Stage.LITERATURE_COLLECT: [
        swap("year = {2015}", "year = {2016}"),
        swap("  author = {Arden, M.},\n", ""),
        swap("@article{brook2017,", "@article{arden2015,"),
        swap("\n}", " }"),
    ],
    Stage.LITERATURE_SCREEN: [
        changed(lambda listed: listed[1:]),
        changed(lambda listed: listed[::-1]),
        put("keep", "yes"),
        without("reason"),
    ],
    Stage.KNOWLEDGE_EXTRACT: [without("limitation"), changed(lambda listed: listed[:-1])],
    Stage.SYNTHESIS: [swap("## Gaps", "## Holes"), swap("- G1:", "* G1:")],
    Stage.HYPOTHESIS_GEN: [
        changed(lambda listed: listed[:1]),
        put("id", "h1"),
        without("rejected_if"),
    ],
    Stage.EXPERIMENT_DESIGN: [
        put("conditions", ["plain"]),
        put("seeds", [1, 1, 1]),
        put("baseline", "nothing"),
        without("metric"),
    ],
    Stage.CODE_GENERATION: [
        swap("import json", "import os"),
        swap("import json", "from pathlib import Path"),
        swap("means = {}", "means = {"),
    ],
    Stage.RESOURCE_PLANNING: [put("seconds", 0), put("memory_mb", "64"), without("runs")],
    Stage.EXPERIMENT_RUN: [
        swap('"seed": 1,', '"seed": 9,'),
        swap('"value": ', '"value": "x", "v": '),
        lambda text: text[:-20],
    ],
    Stage.ITERATIVE_REFINE: [
        swap("import json", "import socket"),
        swap("random.Random(seed)", "random"),
        swap("import random", "import random as r\nfrom random import Random"),
    ],
    Stage.RESULT_ANALYSIS: [
        swap("| 5 |", "| 4 |"),
        swap("| plain |", "| simple |"),
        swap("## Results", "## Numbers"),
        swap(".", ".1"),
    ],
    Stage.RESEARCH_DECISION: [
        put("decision", "GO"),
        put("decision", "proceed"),
        without("because"),
    ],
    Stage.PAPER_OUTLINE: [
        swap("## Method\nSay what belongs here.", "## Method"),
        swap("## Results", "## Outcome"),
    ],
    Stage.PAPER_DRAFT: [
        swap("[@brook2017]", ""),
        lambda text: text.replace("a mean of 0.", "a mean of 1."),
    ],
    Stage.PEER_REVIEW: [
        put("score", 11),
        put("score", 7.5),
        put("weaknesses", []),
        without("strengths"),
    ],
    Stage.PAPER_REVISION: [
        swap("## Changes", "## Notes"),
        swap("Gradient descent with noisy slopes.", "It."),
        swap("## Method", "## Way"),
    ],
    Stage.QUALITY_GATE: [put("score", 0), put("verdict", "maybe"), without("evidence")],
    Stage.KNOWLEDGE_ARCHIVE: [swap("## Lessons", "## Learned"), swap("## Reproduce", "## Again")],
    Stage.EXPORT_PUBLISH: [
        swap("title: Going downhill\n", ""),
        lambda text: text.removeprefix("---\n"),
        swap("## Results", "## Outcome"),
    ],
    Stage.CITATION_VERIFY: [put("known", False), put("known", "yes"), without("key")],
}


def test_every_stage_has_a_contract_that_makes_a_file_of_its_own() -> None:
    assert list(CONTRACTS) == list(STAGES)
    assert len({contract.makes for contract in CONTRACTS.values()}) == len(STAGES) == 23
    made = {"catalogue.json"}
    for contract in CONTRACTS.values():
        assert made.issuperset(contract.needs), contract.stage
        made.add(contract.makes)


@each("stage", STAGES, ids=lambda stage: stage.name)
def test_a_right_file_fulfils_its_contract(stage: Stage, files: Mapping[str, str]) -> None:
    contract = CONTRACTS[stage]
    assert contract.broken_by(files[contract.makes], files) is None


@each("stage", ASKING_STAGES, ids=lambda stage: stage.name)
def test_a_file_that_breaks_the_house_rule_alone_is_refused_for_it(
    stage: Stage, files: Mapping[str, str]
) -> None:
    contract = CONTRACTS[stage]
    broken = contract.broken_by(write(stage, TOPIC, files, by_rule=False), files)
    assert broken is not None
    assert broken.rule == contract.rule


@each(
    ("stage", "number"),
    [(stage, n) for stage, found in NEAR_MISSES.items() for n in range(len(found))],
)
def test_a_file_that_is_nearly_of_the_form_is_refused_for_its_form(
    stage: Stage, number: int, files: Mapping[str, str]
) -> None:
    contract = CONTRACTS[stage]
    miss = NEAR_MISSES[stage][number](files[contract.makes])
    assert miss != files[contract.makes]
    broken = contract.broken_by(miss, files)
    assert broken is not None
    assert broken.rule == contract.form_rule


@each("stage", ASKING_STAGES, ids=lambda stage: stage.name)
@each("text", ["", "\n", "I cannot do that.", "{}", "[]", "null", "\x00", "# \n"])
def test_what_is_no_such_file_at_all_is_refused_and_breaks_nothing(
    stage: Stage, text: str, files: Mapping[str, str]
) -> None:
    assert CONTRACTS[stage].broken_by(text, files) is not None


@each("stage", STAGES, ids=lambda stage: stage.name)
def test_a_correction_lays_down_exactly_one_standing_instruction(stage: Stage) -> None:
    contract = CONTRACTS[stage]
    for rule in filter(None, (contract.form_rule, contract.rule)):
        assert laid_down(correction(Broken("the field 'id' is missing", rule)).text) == [
            standing(rule)
        ]


def test_a_decision_that_leads_back_lays_one_down_only_where_a_rule_would_have_prevented_it() -> (
    None
):
    assert len(laid_down(reconsideration("too few values", MORE_VALUES_RULE).text)) == 1
    assert laid_down(reconsideration("nothing is different", None).text) == []


@each("stage", ASKING_STAGES, ids=lambda stage: stage.name)
def test_a_task_tells_its_form_and_not_its_rule_and_lays_nothing_down(
    stage: Stage, files: Mapping[str, str]
) -> None:
    contract = CONTRACTS[stage]
    system, asked = opening(contract, TOPIC, files)
    assert stage_of(system.text) is stage
    assert contract.form in asked.text
    assert not is_told(contract.rule, (system.text, asked.text))


def test_stages_that_ask_no_model_are_the_run_and_the_citations() -> None:
    assert set(AUTHOR_OF) == {Stage.EXPERIMENT_RUN, Stage.CITATION_VERIFY}
    assert len(ASKING_STAGES) == 21
