"""Contracts of the experiment: its design, its code, what it gave, and the decision about it
(stages 9 to 15).
"""

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from metaclaw_bench.json_types import Json
from metaclaw_bench.research.contracts.contract import Contract, Files, no_rule
from metaclaw_bench.research.forms import (
    ContractError,
    object_of,
    program_of,
    sections_of,
    text_at,
    texts_at,
    whole_at,
    wholes_at,
)
from metaclaw_bench.research.stages import Decision, Stage

ALLOWED_IMPORTS: Final = frozenset(("itertools", "json", "math", "random", "statistics"))
ENOUGH_VALUES: Final = 5
MORE_VALUES_RULE: Final = (
    f"when you improve the experiment program, always measure every condition with {ENOUGH_VALUES}"
    " seeds or more"
)
_ROW: Final = re.compile(
    r"^\|\s*([\w .-]+?)\s*\|\s*(-?\d+(?:\.\d+)?)\s*\|\s*(\d+)\s*\|\s*$", re.MULTILINE
)
_LEAST_CODE_CHARS: Final = 40


@dataclass(frozen=True, slots=True)
class Design:
    """The experiment as it was designed."""

    conditions: tuple[str, ...]
    seeds: tuple[int, ...]
    metric: str


def design_in(files: Files) -> Design:
    """What design.json says."""
    return _design_of(files["design.json"])


def _design_of(text: str) -> Design:
    value = object_of(text)
    conditions, seeds = texts_at(value, "conditions", least=2), wholes_at(value, "seeds", least=3)
    return Design(tuple(conditions), tuple(seeds), text_at(value, "metric"))


def values_of(text: str) -> dict[str, dict[int, float]]:
    """The values in results.jsonl, by condition and seed."""
    values: dict[str, dict[int, float]] = {}
    for line in filter(str.strip, text.splitlines()):
        row = object_of(line)
        if "summary" in row:
            continue
        value = row.get("value")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ContractError("a line of the results has no number as its value")
        values.setdefault(text_at(row, "condition"), {})[whole_at(row, "seed")] = float(value)
    return values


def results_in(files: Files) -> dict[str, dict[int, float]]:
    """What the newest run of the experiment gave."""
    return values_of(files["results.jsonl"])


def best_of(values: Mapping[str, Mapping[int, float]]) -> tuple[str, float]:
    """The condition with the lowest mean, and that mean."""
    return min(
        ((name, fmean(found.values())) for name, found in values.items()), key=lambda pair: pair[1]
    )


def is_thin(values: Mapping[str, Mapping[int, float]]) -> bool:
    """Whether some condition was measured too seldom to decide anything."""
    return any(len(found) < ENOUGH_VALUES for found in values.values())


def _design_form(text: str, files: Files) -> None:
    value, design = object_of(text), _design_of(text)
    if text_at(value, "baseline") not in design.conditions:
        raise ContractError("the baseline is not one of the conditions")


def _design_rule(text: str, files: Files) -> None:
    value = object_of(text)
    if texts_at(value, "conditions", least=2)[0] != value["baseline"]:
        raise ContractError("the baseline is not the first of the conditions")


def _code_form(text: str, files: Files) -> None:
    program = program_of(text)
    if len(text) < _LEAST_CODE_CHARS:
        raise ContractError("it is hardly a program")
    for node in ast.walk(program):
        for name in _imported(node):
            if name not in ALLOWED_IMPORTS:
                raise ContractError(f"it imports {name}, which is not there")


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    return [node.module or "."] if isinstance(node, ast.ImportFrom) else []


def _code_rule(text: str, files: Files) -> None:
    nodes = list(ast.walk(program_of(text)))
    own = {
        node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr == "Random"
    }
    for node in nodes:
        is_shared = isinstance(node, ast.Name) and node.id == "random" and node not in own
        if is_shared or any(name != "Random" for name in _taken_from_random(node)):
            raise ContractError("it draws from the generator that all of the module random shares")


def _taken_from_random(node: ast.AST) -> list[str]:
    """What a program takes out of the module `random` by other names than the module's own."""
    if isinstance(node, ast.ImportFrom) and node.module == "random":
        return [one.name for one in node.names]
    renamed = isinstance(node, ast.Import) and any(
        one.name == "random" and one.asname for one in node.names
    )
    return ["the whole of it"] if renamed else []


def _resources_form(text: str, files: Files) -> None:
    value = object_of(text)
    for name in ("runs", "seconds", "memory_mb"):
        if whole_at(value, name) < 1:
            raise ContractError(f"the field {name!r} is not positive")


def _resources_rule(text: str, files: Files) -> None:
    design = design_in(files)
    wanted = len(design.conditions) * len(design.seeds)
    if whole_at(object_of(text), "runs") != wanted:
        raise ContractError(f"the runs are not conditions times seeds, {wanted}")


def _results_form(text: str, files: Files) -> None:
    design, values = design_in(files), values_of(text)
    for name in design.conditions:
        missing = [seed for seed in design.seeds if seed not in values.get(name, {})]
        if missing:
            raise ContractError(f"there is no value for condition {name!r} and seed {missing[0]}")


def _refined_form(text: str, files: Files) -> None:
    _code_form(text, files)
    _code_rule(text, files)


def _refined_rule(text: str, files: Files) -> None:
    if not any(
        isinstance(node, ast.Constant) and node.value == "summary"
        for node in ast.walk(program_of(text))
    ):
        raise ContractError("it prints no line with a 'summary' of the means")


def _analysis_rows(text: str, files: Files) -> dict[str, str]:
    rows = {
        name: (mean, count)
        for name, mean, count in _ROW.findall(sections_of(text, ("Results",))["Results"])
    }
    for name, found in results_in(files).items():
        if name not in rows:
            raise ContractError(f"the table has no row for the condition {name!r}")
        mean, count = rows[name]
        rounding = 0.51 * 10 ** -len(mean.partition(".")[2])
        if int(count) != len(found) or abs(float(mean) - fmean(found.values())) > rounding:
            raise ContractError(f"the row of {name!r} does not say what the results say")
    return {name: mean for name, (mean, _) in rows.items()}


def _analysis_form(text: str, files: Files) -> None:
    _analysis_rows(text, files)


def _analysis_rule(text: str, files: Files) -> None:
    for name, mean in _analysis_rows(text, files).items():
        if len(mean.partition(".")[2]) != 3:
            raise ContractError(f"the mean of {name!r} is not given with three decimals")


def decision_of(text: str) -> tuple[Decision, str]:
    """What was decided, and why."""
    value = object_of(text)
    said = text_at(value, "decision")
    if said not in Decision.__members__:
        raise ContractError(f"the decision {said!r} is none of PROCEED, REFINE and PIVOT")
    return Decision(said), text_at(value, "because")


def _decision_form(text: str, files: Files) -> None:
    decision_of(text)


def _decision_rule(text: str, files: Files) -> None:
    name, _ = best_of(results_in(files))
    if name not in decision_of(text)[1]:
        raise ContractError(f"the justification does not name the best condition, {name!r}")


EXPERIMENTS: Final = (
    Contract(
        Stage.EXPERIMENT_DESIGN,
        "design.json",
        ("hypotheses.json",),
        "Design the experiment: conditions, seeds, metric and baseline.",
        "A JSON object: 'conditions' (two or more names), 'seeds' (three or more whole numbers),"
        " 'metric' (lower is better) and 'baseline'.",
        _design_form,
        "when you design an experiment, always give conditions, seeds, metric and a baseline among"
        " the conditions",
        _design_rule,
        "when you design an experiment, always put the baseline first among the conditions",
    ),
    Contract(
        Stage.CODE_GENERATION,
        "experiment.py",
        ("design.json",),
        "Write the Python program of the experiment.",
        "One Python file that imports nothing but itertools, json, math, random and statistics,"
        " reads nothing, and prints for every condition and seed of the design one line of JSON:"
        ' {"condition": …, "seed": …, "value": …}.',
        _code_form,
        "when you write a Python program for an experiment, always import only itertools, json,"
        " math, random and statistics",
        _code_rule,
        "when you write a Python program for an experiment, always draw from a random.Random of its"
        " own for every seed",
    ),
    Contract(
        Stage.RESOURCE_PLANNING,
        "resources.json",
        ("design.json",),
        "Plan the resources: how many runs, seconds and megabytes of memory.",
        "A JSON object with the whole numbers 'runs', 'seconds' and 'memory_mb', all positive.",
        _resources_form,
        "when you plan resources, always give runs, seconds and memory_mb as positive whole"
        " numbers",
        _resources_rule,
        "when you plan resources, always count the runs as conditions times seeds",
    ),
    Contract(
        Stage.EXPERIMENT_RUN,
        "results.jsonl",
        ("design.json", "experiment.py"),
        "Run the program in the sandbox.",
        "One line of JSON for every condition and seed.",
        _results_form,
        "when you write a Python program for an experiment, always print one line of JSON for every"
        " condition and seed",
        no_rule,
        "",
    ),
    Contract(
        Stage.ITERATIVE_REFINE,
        "refined.py",
        ("design.json", "experiment.py", "results.jsonl"),
        "Improve the experiment program so that its results are easier to trust.",
        "One Python file under the same terms as before: the same imports, the same lines of JSON,"
        " the same conditions.",
        _refined_form,
        "when you improve the experiment program, always keep its imports, its generators and its"
        " lines of JSON as they were",
        _refined_rule,
        'when you improve the experiment program, always print a last line of JSON with a "summary"'
        " of the means",
    ),
    Contract(
        Stage.RESULT_ANALYSIS,
        "analysis.md",
        ("results.jsonl",),
        "Analyse the results in a table.",
        "Markdown with a section '## Results' that holds a table with the columns condition, mean"
        " and n, and a row for every condition.",
        _analysis_form,
        "when you analyse results in a table, always give every condition a row with its mean"
        " and n",
        _analysis_rule,
        "when you analyse results in a table, always write means with exactly three decimals",
    ),
    Contract(
        Stage.RESEARCH_DECISION,
        "decision.json",
        ("analysis.md",),
        "Decide whether to go on: PROCEED to the paper, REFINE the experiment, or PIVOT to other"
        " hypotheses.",
        "A JSON object with 'decision' (PROCEED, REFINE or PIVOT) and 'because'.",
        _decision_form,
        "when you decide to proceed, refine or pivot, always give decision and because",
        _decision_rule,
        "when you decide to proceed, refine or pivot, always name the best condition in the"
        " justification",
    ),
)


def rows_text(values: Mapping[str, Mapping[int, float]]) -> str:
    """Results as lines of JSON."""
    rows: list[dict[str, Json]] = [
        {"condition": name, "seed": seed, "value": value}
        for name, found in values.items()
        for seed, value in found.items()
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)
