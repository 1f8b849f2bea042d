"""A right answer to every stage, and one that breaks its house rule and nothing else: what the
simulated researcher writes.
"""

import json
import re
from collections.abc import Callable
from statistics import fmean
from typing import Final, TypeAlias

from metaclaw_bench.json_types import Json
from metaclaw_bench.research.contracts import Files
from metaclaw_bench.research.contracts.experiments import ENOUGH_VALUES, design_in, results_in
from metaclaw_bench.research.contracts.scoping import catalogue_of, kept_in
from metaclaw_bench.research.contracts.writing import SECTIONS, weaknesses_in
from metaclaw_bench.research.forms import entries_of, objects_of, text_at
from metaclaw_bench.research.stages import Stage

Write: TypeAlias = Callable[[str, Files, bool], str]
"""Writes a stage's file from the topic and the files so far; by its house rule, or not."""

_BIB: Final = (
    "@article{{{key},\n  author = {{{author}}},\n  title = {{{title}}},\n  year = {{{year}}}\n}}\n"
)
_MEAN: Final = re.compile(r"^\| ([\w .-]+?) \| (-?\d+\.\d+) \| \d+ \|$", re.MULTILINE)
_ABSTRACT: Final = "We measured two ways to go downhill and report which comes closer."
_PROGRAM: Final = '''"""Gradient descent on a parabola with noisy slopes, with and without momentum: where it ends."""

import json
import random
import statistics

MOMENTUM = {momentum}
means = {{}}
{prelude}for condition, momentum in MOMENTUM.items():
    ends = []
    for seed in {seeds}:
        chance = {generator}
        place, speed = 5.0, 0.0
        for _ in range(40):
            slope = 2 * place + chance.gauss(0, 0.1)
            speed = momentum * speed - 0.02 * slope
            place += speed
        ends.append(abs(place))
        print(json.dumps({{"condition": condition, "seed": seed, "value": round(abs(place), 6)}}))
    means[condition] = statistics.fmean(ends)
{ending}'''


def write(stage: Stage, topic: str, files: Files, *, by_rule: bool) -> str:
    """A stage's file, by its house rule or against it."""
    return _WRITERS[stage](topic, files, by_rule)


def _json(value: Json) -> str:
    return json.dumps(value, indent=1) + "\n"


def _goal(topic: str, files: Files, by_rule: bool) -> str:
    success = (
        "The better way ends at a mean error of <= 0.5."
        if by_rule
        else "The better way ends clearly closer."
    )
    return (
        f"# Goal\nFind out what matters for {topic}.\n\n## Scope\nOne small experiment.\n\n##"
        f" Success\n{success}\n"
    )


def _questions(topic: str, files: Files, by_rule: bool) -> str:
    asked = (
        "What is known?",
        "What is measured?",
        "What is compared?",
        "What would change our mind?",
    )
    priorities = (1, 2, 3, 4) if by_rule else (1, 2, 2, 3)
    return _json(
        [
            {"id": f"Q{p}{q[5]}", "question": q, "priority": p}
            for p, q in zip(priorities, asked, strict=True)
        ]
    )


def _search(topic: str, files: Files, by_rule: bool) -> str:
    first = (
        "gradient descent" if by_rule else "Gradient Descent with Momentum and What Is Known of It"
    )
    return _json({"queries": [first, "momentum methods", "noisy slopes"], "sources": ["catalogue"]})


def _bibliography(topic: str, files: Files, by_rule: bool) -> str:
    entries = []
    for number, work in enumerate(catalogue_of(files)[:4], 1):
        author, year = text_at(work, "author"), work["year"]
        key = f"{author.partition(',')[0].lower()}{year}" if by_rule else f"ref{1000 + number}"
        entries.append(_BIB.format(key=key, author=author, title=work["title"], year=year))
    return "\n".join(entries)


def _shortlist(topic: str, files: Files, by_rule: bool) -> str:
    reason = "It treats the same question directly." if by_rule else "It fits."
    keys = list(entries_of(files["references.bib"]))
    return _json([{"key": key, "keep": at < 3, "reason": reason} for at, key in enumerate(keys)])


def _cards(topic: str, files: Files, by_rule: bool) -> str:
    return _json(
        [
            {
                "key": key,
                "claim": (
                    f"Speed helps on smooth ground [{key}]"
                    if by_rule
                    else "Speed helps on smooth ground."
                ),
                "method": "a small measurement",
                "limitation": "one kind of ground",
            }
            for key in kept_in(files)
        ]
    )


def _synthesis(topic: str, files: Files, by_rule: bool) -> str:
    key = text_at(objects_of(files["cards.json"])[0], "key")
    gap = f"- G1: Nobody measured noise [{key}]" if by_rule else "- G1: Nobody measured noise"
    return f"## Clusters\nAll works measure smooth ground.\n\n## Gaps\n{gap}\n"


def _hypotheses(topic: str, files: Files, by_rule: bool) -> str:
    rejected = (
        "the mean error differs by less than 0.01" if by_rule else "the mean error hardly differs"
    )
    claims = ("Momentum ends closer.", "Momentum is less steady.")
    return _json(
        [
            {"id": f"H{n}", "claim": claim, "rejected_if": rejected}
            for n, claim in enumerate(claims, 1)
        ]
    )


def _design(topic: str, files: Files, by_rule: bool) -> str:
    conditions: list[Json] = ["plain", "momentum"] if by_rule else ["momentum", "plain"]
    return _json(
        {
            "conditions": conditions,
            "seeds": [1, 2, 3],
            "metric": "distance to the minimum",
            "baseline": "plain",
        }
    )


def _program(
    files: Files, *, seeds: tuple[int, ...], own_generator: bool = True, ending: str = ""
) -> str:
    momenta = {name: 0.0 if name == "plain" else 0.8 for name in design_in(files).conditions}
    return _PROGRAM.format(
        momentum=momenta,
        prelude="" if own_generator else "random.seed(0)\n",
        seeds=seeds,
        generator="random.Random(seed)" if own_generator else "random",
        ending=ending,
    )


def _code(topic: str, files: Files, by_rule: bool) -> str:
    return _program(files, seeds=design_in(files).seeds, own_generator=by_rule)


def _resources(topic: str, files: Files, by_rule: bool) -> str:
    design = design_in(files)
    runs = len(design.conditions) * len(design.seeds)
    return _json({"runs": runs if by_rule else runs + 1, "seconds": 5, "memory_mb": 64})


def refined(files: Files, *, by_rule: bool, is_thorough: bool) -> str:
    """The improved program; a thorough one measures often enough to decide something."""
    seeds = design_in(files).seeds
    more = tuple(range(max(seeds) + 1, max(seeds) + 1 + ENOUGH_VALUES - len(seeds)))
    ending = 'print(json.dumps({"summary": means}))\n' if by_rule else ""
    return _program(files, seeds=(*seeds, *more) if is_thorough else seeds, ending=ending)


def _refine(topic: str, files: Files, by_rule: bool) -> str:
    return refined(files, by_rule=by_rule, is_thorough=True)


def _table(files: Files, decimals: int) -> str:
    rows = [
        f"| {name} | {fmean(found.values()):.{decimals}f} | {len(found)} |"
        for name, found in results_in(files).items()
    ]
    return "\n".join(("| condition | mean | n |", "|---|---|---|", *rows))


def _analysis(topic: str, files: Files, by_rule: bool) -> str:
    return f"# Analysis\n\n## Results\n{_table(files, 3 if by_rule else 2)}\n"


def _means(analysis: str) -> dict[str, str]:
    return {name: mean for name, mean in _MEAN.findall(analysis) if name != "condition"}


def _best(analysis: str) -> tuple[str, str]:
    return min(_means(analysis).items(), key=lambda pair: float(pair[1]))


def _decision(topic: str, files: Files, by_rule: bool) -> str:
    name, mean = _best(files["analysis.md"])
    is_enough = all(
        int(count) >= ENOUGH_VALUES
        for count in re.findall(r"\| (\d+) \|$", files["analysis.md"], re.MULTILINE)
    )
    because = f"{name} is best with {mean}" if by_rule else "one of them is best"
    told = because if is_enough else f"{because}, but every condition was measured too seldom"
    return _json({"decision": "PROCEED" if is_enough else "REFINE", "because": told})


def _outline(topic: str, files: Files, by_rule: bool) -> str:
    sections = (*SECTIONS, "Limitations") if by_rule else SECTIONS
    return "\n".join(f"## {name}\nSay what belongs here.\n" for name in sections)


def _paper(files: Files, abstract: str) -> str:
    keys = [text_at(one, "key") for one in objects_of(files["cards.json"])][:2]
    name, mean = _best(files["analysis.md"])
    return (
        f"# Going downhill\n\n## Abstract\n{abstract}\n\n## Introduction\nOthers measured smooth"
        f" ground [@{keys[0]}] [@{keys[1]}].\n\n## Method\nGradient descent with noisy"
        f" slopes.\n\n## Results\nThe best is {name} with a mean of {mean}.\n\n## Limitations\nOne"
        " kind of ground.\n\n## Conclusion\nIt is worth a longer study.\n"
    )


def _draft(topic: str, files: Files, by_rule: bool) -> str:
    return _paper(files, _ABSTRACT if by_rule else " ".join([_ABSTRACT] * 6))


def _review(topic: str, files: Files, by_rule: bool) -> str:
    weaknesses = ["Method: the step size is not given", "Results: no spread is shown"]
    told: list[Json] = (
        list(weaknesses) if by_rule else ["the step size is not given", "no spread is shown"]
    )
    return _json({"strengths": ["It is short."], "weaknesses": told, "score": 7})


def _revision(topic: str, files: Files, by_rule: bool) -> str:
    marks = [
        f"{number}. " if by_rule else "- " for number in range(1, len(weaknesses_in(files)) + 1)
    ]
    changes = "\n".join(f"{mark}The step size is 0.02 and the table shows all." for mark in marks)
    return f"{files['draft.md']}\n## Changes\n{changes}\n"


def _quality(topic: str, files: Files, by_rule: bool) -> str:
    evidence = "Results reports the best mean." if by_rule else "It reports the best mean."
    return _json({"score": 7, "verdict": "accept", "evidence": evidence})


def _archive(topic: str, files: Files, by_rule: bool) -> str:
    seeds = ", ".join(map(str, design_in(files).seeds))
    told = f"seeds: {seeds}" if by_rule else "Use the seeds of the design."
    return f"## Lessons\nMeasure often enough.\n\n## Reproduce\nRun the program.\n{told}\n"


def _export(topic: str, files: Files, by_rule: bool) -> str:
    keywords = "keywords: descent, momentum, noise\n" if by_rule else ""
    return f"---\ntitle: Going downhill\n{keywords}---\n{files['revised.md']}"


_WRITERS: Final[dict[Stage, Write]] = {
    Stage.TOPIC_INIT: _goal,
    Stage.PROBLEM_DECOMPOSE: _questions,
    Stage.SEARCH_STRATEGY: _search,
    Stage.LITERATURE_COLLECT: _bibliography,
    Stage.LITERATURE_SCREEN: _shortlist,
    Stage.KNOWLEDGE_EXTRACT: _cards,
    Stage.SYNTHESIS: _synthesis,
    Stage.HYPOTHESIS_GEN: _hypotheses,
    Stage.EXPERIMENT_DESIGN: _design,
    Stage.CODE_GENERATION: _code,
    Stage.RESOURCE_PLANNING: _resources,
    Stage.ITERATIVE_REFINE: _refine,
    Stage.RESULT_ANALYSIS: _analysis,
    Stage.RESEARCH_DECISION: _decision,
    Stage.PAPER_OUTLINE: _outline,
    Stage.PAPER_DRAFT: _draft,
    Stage.PEER_REVIEW: _review,
    Stage.PAPER_REVISION: _revision,
    Stage.QUALITY_GATE: _quality,
    Stage.KNOWLEDGE_ARCHIVE: _archive,
    Stage.EXPORT_PUBLISH: _export,
}
