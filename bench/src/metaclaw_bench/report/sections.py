"""What stands in each section of the page, as pieces of HTML; an empty list where there is nothing
to tell.
"""

import statistics
from html import escape
from typing import Final

from metaclaw_bench.records import EventKind, EventRecord, RoundRecord
from metaclaw_bench.report.chart import Line, draw_curve, swatch
from metaclaw_bench.report.figures import (
    Cell,
    Study,
    failures_by_rule,
    marks,
    mean_of,
    per_day,
    per_day_reward,
    placements_of_learned,
    tokens_of,
    worst_rounds,
)
from metaclaw_bench.report.markup import (
    DASH,
    Html,
    Piece,
    heat,
    interval_cell,
    number,
    percent,
    table,
    text,
    whisker,
)
from metaclaw_bench.sandbox import told
from metaclaw_bench.stats import Interval

_WORST: Final = 12
_MOST_EVENTS: Final = 60
_LEARNED: Final = ("skill_born", "skill_retired", "version")


def conditions(study: Study) -> list[Piece]:
    """Every condition with every number and its interval."""
    has_defects = any(study.without_defects(cell) is not None for cell in study.conditions)
    heads: list[Piece] = [
        "condition",
        "accuracy",
        "better than baseline",
        "exact",
        "completion",
        "held-out",
        "better held-out",
    ]
    heads += [
        "forgetting",
        "forward transfer",
        *(["without defects"] if has_defects else []),
        "rounds",
    ]
    rows = []
    for cell in study.conditions:
        row: list[Piece] = [
            cell.label,
            interval_cell(study.accuracy(cell)),
            interval_cell(study.gain(cell), "points"),
        ]
        row += [interval_cell(study.exact(cell)), interval_cell(study.completion(cell))]
        row += [
            interval_cell(study.accuracy(cell, "held_out")),
            interval_cell(study.gain(cell, "held_out"), "points"),
        ]
        row += [
            interval_cell(study.forgetting(cell), "points"),
            interval_cell(study.transfer(cell), "points"),
        ]
        row += [interval_cell(study.without_defects(cell))] if has_defects else []
        rows.append([*row, _rounds(cell)])
    parts: list[Piece] = [
        table(
            "Conditions: value and 95 % interval; differences in points of a hundred", heads, rows
        )
    ]
    if not any(study.reference(cell) for cell in study.conditions):
        parts.append("There is no baseline among these records, so nothing is compared with it.")
    return parts


def curve(study: Study) -> list[Piece]:
    """Accuracy by day, three days rolled into one, with new skills and weights beneath."""
    cells = [cell for cell in study.conditions if per_day(cell)]
    lines = [
        Line(
            cell.label,
            [(one.number, one.rolling) for one in per_day(cell)],
            marks(cell, "generation"),
            marks(cell, "version"),
        )
        for cell in cells
    ]
    if not lines:
        return []
    ends = ", ".join(
        f"{line.name} from {percent(line.points[0][1])} to {percent(line.points[-1][1])}"
        for line in lines
    )
    drawing = draw_curve(lines, f"Accuracy by day, mean of three days: {ends}.")
    legend = "".join(
        f"<li>{swatch(at).markup}<span>{escape(line.name)}</span></li>"
        for at, line in enumerate(lines)
    )
    caption = (
        "Each point is the mean of a day and the two before it, over all seeds. Beneath: ▲ a new"
        " generation of skills, ■ new weights; the larger the mark, the more seeds had one on that"
        " day."
    )
    figure = (
        "<figure><ul"
        f' class="legend">{legend}</ul>{drawing.markup}<figcaption>{escape(caption)}</figcaption></figure>'
    )
    days = sorted({one.number for cell in cells for one in per_day(cell)})
    means = {cell.label: {one.number: one.mean for one in per_day(cell)} for cell in cells}
    rows = [[str(day), *(percent(means[cell.label].get(day)) for cell in cells)] for day in days]
    told = table("Mean score of each day", ["day", *(cell.label for cell in cells)], rows)
    return [Html(figure), _folded("The same in numbers", told)]


def ablations(study: Study) -> list[Piece]:
    """Every ablation beside its own condition."""
    if not study.ablations:
        return []
    contrasts = study.contrasts()
    gains = [one for contrast in contrasts if (one := study.contrast(contrast)) is not None]
    reach = max((max(abs(one.low), abs(one.high)) for one in gains), default=0.1)
    heads: list[Piece] = [
        "changed",
        "accuracy",
        "difference",
        "difference, drawn",
        "held-out",
        "held-out difference",
    ]
    heads += ["skills born", "learned skills placed", "weights served", "seconds a round"]
    changed = {contrast.cell.condition for contrast in contrasts}
    rows = [
        [f"{cell.label}, nothing changed", *_ablation(study, cell, None, None, reach)]
        for cell in study.conditions
        if cell.condition in changed
    ]
    for each in contrasts:
        rows.append(
            [
                each.label,
                *_ablation(
                    study, each.cell, study.contrast(each), study.contrast(each, "held_out"), reach
                ),
            ]
        )
    caption = (
        "One change at a time, compared on the same questions with what differs from it in nothing"
        " else; points of a hundred"
    )
    return [table(caption, heads, rows)]


def _ablation(
    study: Study, cell: Cell, gain: Interval | None, held: Interval | None, reach: float
) -> list[Piece]:
    return [
        interval_cell(study.accuracy(cell)),
        interval_cell(gain, "points"),
        whisker(gain, -reach, reach, zero=True),
        interval_cell(study.accuracy(cell, "held_out")),
        interval_cell(held, "points"),
        number(cell.count("skill_born")),
        number(placements_of_learned(cell)),
        number(cell.count("version")),
        number(mean_of(cell.of("stream"), lambda one: one.seconds)),
    ]


def learned(study: Study) -> list[Piece]:
    """Skills and weights that came and went, a seed."""
    cells = [cell for cell in study.cells if cell.events]
    if not cells:
        return []
    heads: list[Piece] = [
        "condition",
        "skills born",
        "refused",
        "retired",
        "generations",
        "weights served",
        "weights refused",
    ]
    kinds: tuple[EventKind, ...] = (
        "skill_born",
        "skill_refused",
        "skill_retired",
        "generation",
        "version",
        "version_refused",
    )
    rows = [[cell.label, *(number(cell.count(kind)) for kind in kinds)] for cell in cells]
    parts: list[Piece] = [table("What came and went, mean of a seed", heads, rows)]
    for cell in (one for one in study.conditions if one.events):
        seed = cell.seeds[0]
        told = [one for one in cell.events if one.seed == seed and one.kind in _LEARNED]
        if told:
            listed = table(
                f"{cell.label}, seed {seed}",
                ["day", "what", "which", "why"],
                map(_event, told[:_MOST_EVENTS]),
                name="words",
            )
            parts.append(_folded(f"{cell.label}: what happened with seed {seed}", listed))
    return parts


def _event(one: EventRecord) -> list[Piece]:
    what = {"skill_born": "skill born", "skill_retired": "skill retired", "version": "new weights"}[
        one.kind
    ]
    which = one.name or (DASH if one.number is None else f"version {one.number}")
    return [str(one.day_number), what, which, one.why]


def rewards(study: Study) -> list[Piece]:
    """What the judge gave, over all and at the beginning and end."""
    cells = [cell for cell in study.conditions if study.reward(cell) is not None]
    if not cells:
        return []
    heads: list[Piece] = [
        "condition",
        "mean reward",
        "judged",
        "first third of the days",
        "last third of the days",
    ]
    rows: list[list[Piece]] = []
    for cell in cells:
        days = list(per_day_reward(cell).values())
        third = max(1, len(days) // 3)
        rounds = cell.of("stream")
        judged = sum(one.reward is not None for one in rounds)
        row: list[Piece] = [
            cell.label,
            interval_cell(study.reward(cell)),
            f"{percent(judged / len(rounds))}",
        ]
        rows.append(
            [
                *row,
                percent(statistics.fmean(days[:third])),
                percent(statistics.fmean(days[-third:])),
            ]
        )
    return [table("Rewards of the rounds that somebody could judge", heads, rows)]


def cost(study: Study) -> list[Piece]:
    """Tokens, money and seconds of a round, and what learning took."""
    heads: list[Piece] = [
        "condition",
        "tokens a round",
        "skills placed a round",
        "tokens for learning",
        "dollars a round",
        "seconds a round",
    ]
    rows: list[list[Piece]] = []
    for cell in study.conditions:
        rounds = cell.of("stream")
        dollars = mean_of(rounds, lambda one: one.cost)
        row: list[Piece] = [cell.label, number(mean_of(rounds, tokens_of), 0)]
        row += [
            number(mean_of(rounds, lambda one: float(len(one.skills))), 2),
            number(cell.mean("tokens"), 0),
        ]
        rows.append(
            [
                *row,
                DASH if dollars is None else f"{dollars:.5f}",
                number(mean_of(rounds, lambda one: one.seconds)),
            ]
        )
    return [
        table(
            "Cost; tokens for learning are those of drafting and proving skills, mean of a seed",
            heads,
            rows,
        )
    ]


def failures(study: Study) -> list[Piece]:
    """Rules against conditions, and the rounds that went worst in the last condition."""
    counts = {cell.label: failures_by_rule(cell) for cell in study.conditions}
    rules = sorted({rule for found in counts.values() for rule in found})
    heads: list[Piece] = ["rule", *(cell.label for cell in study.conditions)]
    rows: list[list[Piece]] = []
    for rule in rules:
        rows.append(
            [rule, *(heat(*counts[cell.label].get(rule, (0, 0))) for cell in study.conditions)]
        )
    parts: list[Piece] = [
        table(
            "Share of rounds that did not pass, by the rule they ask for, in all phases",
            heads,
            rows,
            name="heatmap",
        )
    ]
    last = study.conditions[-1]
    worst = worst_rounds(last, _WORST)
    if worst:
        told = f"The rounds that went worst under {last.label}, and the end of one answer to each"
        parts.append(
            table(
                told,
                ["round", "score", "kind", "rules", "answer"],
                map(_worst, worst),
                name="words",
            )
        )
    broken = [one for cell in study.cells for one in cell.rounds if one.failure is not None]
    if broken:
        reasons: dict[str, int] = {}
        for one in broken:
            reasons[one.failure or ""] = reasons.get(one.failure or "", 0) + 1
        listed = sorted(reasons.items(), key=lambda pair: -pair[1])
        told = (
            "Rounds without an answer that could be scored: not the same as wrong ones, though they"
            " score 0"
        )
        parts.append(table(told, ["why", "rounds"], [[why, str(times)] for why, times in listed]))
    return parts


def _worst(group: list[RoundRecord]) -> list[Piece]:
    shown = min(group, key=lambda one: (one.score, one.seed))
    mean = statistics.fmean(one.score for one in group)
    place = f"{shown.day}/{shown.round}" + (
        "" if shown.phase == "stream" else f" ({shown.phase.replace('_', '-')})"
    )
    answer = shown.tail or shown.failure or "(no answer)"
    defect = f" (defect: {shown.defect})" if shown.defect else ""
    tail = Html(f'<td class="tail">{escape(answer)}</td>')
    return [
        place,
        percent(mean),
        shown.kind.replace("_", " "),
        f"{', '.join(shown.rules) or DASH}{defect}",
        tail,
    ]


def runs(study: Study) -> Piece:
    """Which runs these are, and what they were set to."""
    rows: list[list[Piece]] = []
    for cell in study.cells:
        names = sorted({one.run for one in cell.rounds})
        words = next((plan.words for plan in cell.plans if plan.words), DASH)
        ran = Html(f"<td><code>{escape(', '.join(names))}</code></td>")
        rows.append([cell.label, ", ".join(map(str, cell.seeds)), ran, words])
    return _folded(
        "The runs behind these numbers",
        table("Runs", ["cell", "seeds", "runs", "settings"], rows, name="words"),
    )


def sandboxes(study: Study) -> list[Piece]:
    """What kept agents from the answers: a line for each kind there was."""
    found = sorted({plan.sandbox for cell in study.cells for plan in cell.plans})
    return [f"Sandbox: {told(name)}." for name in found if name]


def _rounds(cell: Cell) -> str:
    ran, planned = len(cell.of("stream")), cell.planned("stream")
    return f"{ran}" if ran == planned else f"{ran} of {planned}"


def _folded(summary: str, body: Piece) -> Html:
    return Html(f"<details><summary>{escape(summary)}</summary>{text(body)}</details>")
