"""The report as Markdown tables, for documents and pull requests."""

from collections.abc import Iterable, Sequence

from metaclaw_bench.report.figures import Cell, Study, mean_of, placements_of_learned, tokens_of
from metaclaw_bench.report.markup import number, spread
from metaclaw_bench.sandbox import told as words_of


def render_markdown(study: Study) -> str:
    """Conditions, then ablations if there are any."""
    kind = (
        "**Simulated policy: no model has answered any of this.**"
        if study.is_simulated
        else "Answers of a real model."
    )
    seeds = sorted({seed for cell in study.cells for seed in cell.seeds})
    counted = "one seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    told = (
        f"{kind} Value [95 % interval over {counted} and the days]; differences in points of a"
        " hundred."
    )
    parts = [f"# {', '.join(study.benchmarks)}", told, *_sandboxes(study), _conditions(study)]
    if study.ablations:
        parts += ["## What each mechanism is worth", _ablations(study)]
    return "\n\n".join(parts) + "\n"


def _sandboxes(study: Study) -> list[str]:
    found = sorted({plan.sandbox for cell in study.cells for plan in cell.plans})
    return [f"Sandbox: {words_of(name)}." for name in found if name]


def _conditions(study: Study) -> str:
    heads = [
        "condition",
        "accuracy",
        "better than baseline",
        "exact",
        "completion",
        "held-out",
        "better held-out",
    ]
    heads += ["forgetting", "forward transfer", "without defects", "tokens a round"]
    return markdown_table(
        heads, ([cell.label, *_numbers(study, cell)] for cell in study.conditions)
    )


def _numbers(study: Study, cell: Cell) -> list[str]:
    return [
        spread(study.accuracy(cell)),
        spread(study.gain(cell), "points"),
        spread(study.exact(cell)),
        spread(study.completion(cell)),
        spread(study.accuracy(cell, "held_out")),
        spread(study.gain(cell, "held_out"), "points"),
        spread(study.forgetting(cell), "points"),
        spread(study.transfer(cell), "points"),
        spread(study.without_defects(cell)),
        number(mean_of(cell.of("stream"), tokens_of), 0),
    ]


def _ablations(study: Study) -> str:
    heads = [
        "changed",
        "accuracy",
        "difference",
        "held-out",
        "held-out difference",
        "skills born",
        "weights served",
    ]
    heads += ["learned skills placed"]
    rows = (
        [
            one.label,
            spread(study.accuracy(one.cell)),
            spread(study.contrast(one), "points"),
            spread(study.accuracy(one.cell, "held_out")),
            spread(study.contrast(one, "held_out"), "points"),
            number(one.cell.count("skill_born")),
            number(one.cell.count("version")),
            number(placements_of_learned(one.cell)),
        ]
        for one in study.contrasts()
    )
    return markdown_table(heads, rows)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, text in its first column and numbers in the others."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(_cell(one) for one in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
