"""`metaclaw bench`: the public benchmark, generated workdays, ablations, the research pipeline, and
what came of them.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from metaclaw.plugin import ConfigError, print_json, print_table
from metaclaw_bench.run_options import (
    CHECKERS,
    execute,
    go,
    numbers,
    options_of,
    results_in,
    run_options,
    shape_of,
    show_scores,
    words,
)

_FOLDER = click.Path(file_okay=False, exists=True, path_type=Path)


@click.group()
def bench() -> None:
    """Measure whether it learns: run benchmarks through a proxy of their own, under conditions, and
    compare.
    """


@bench.command()
@click.option(
    "--data",
    type=_FOLDER,
    required=True,
    help="The benchmark's folder, which holds all_tests.json.",
)
@click.option("--days", help="Only these, by their ids: day01,day05 or day01-day05.")
@click.option(
    "--held-out",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="The last days that only measure.",
)
@click.option(
    "--hide-checkers/--show-checkers",
    default=True,
    help="Whether the agent may see the checkers, as it may upstream.",
)
@click.option(
    "--scripted",
    metavar="NAME",
    help="With --simulated: the script that answers, such as oracle, honest, all, mute.",
)
@run_options
def metaclaw(
    data: Path,
    days: str | None,
    held_out: int,
    hide_checkers: bool,
    scripted: str | None,
    **given: Any,
) -> None:
    """Run the public MetaClaw-Bench, unchanged."""
    from metaclaw_bench.data import read_benchmark
    from metaclaw_bench.running.plan import Plan
    from metaclaw_bench.running.runs import Runs
    from metaclaw_bench.simulated.scripted import scripted as script
    from metaclaw_bench.simulated.scripted_model import Acting

    options = options_of(given)
    if options.judge == CHECKERS:
        raise ConfigError(
            "--judge checkers: only workdays can be judged so; name the address of a model that"
            " judges"
        )
    if options.simulated != (scripted is not None):
        raise ConfigError(
            "--simulated and --scripted NAME belong together: on these days a script answers, and"
            " no model"
        )
    script(scripted or "mute")  # said at once if there is none of this name
    whole = read_benchmark(data)
    benchmark = (
        whole if days is None else read_benchmark(data, _days(days, [day.id for day in whole.days]))
    )
    agents = options.agents(benchmark, data)
    plans = [
        plan
        for seed in options.chosen_seeds()
        for plan in options.plans(
            benchmark, seed, held_out=held_out, show_checkers=not hide_checkers
        )
    ]

    def mind(plan: Plan) -> Acting:
        return Acting(benchmark, script(scripted or ""), options.out / "shadow" / plan.name)

    named = (
        plans
        if scripted is None
        else [replace(plan, agent=f"{plan.agent}, scripted {scripted}") for plan in plans]
    )
    go(Runs(options.out, agents, make_model=mind), named, options)


@bench.command()
@click.option(
    "--part",
    type=click.Choice(["1", "2", "tiny"]),
    default="1",
    show_default=True,
    help="Part I, part II, or a tiny one.",
)
@click.option(
    "--write",
    "target",
    type=click.Path(file_okay=False, path_type=Path),
    help="Only write it there, and run nothing.",
)
@click.option(
    "--rules",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="A rule of your own, a Python file, or a folder of them; may be repeated.",
)
@click.option(
    "--users",
    metavar="WHO,…",
    default="",
    help=(
        "Who gives the tasks, in turn: NAME, NAME:LANGUAGE or NAME:LANGUAGE:RULE=VARIANT;…;"
        " `contradicting` are two who do."
    ),
)
@click.option(
    "--languages", default="", help="A user for each, in turn: of en, de, fr, es, by commas [en]."
)
@click.option(
    "--domains",
    default="",
    help="Of office, kitchen, laboratory, library, workshop, by commas [all of them].",
)
@click.option(
    "--drift",
    metavar="DAY:RULE=VARIANT",
    help="From this day on a rule is meant in another way [as the part has it].",
)
@click.option(
    "--evolver",
    type=click.Choice(["strong", "weak", "noisy", "garbage"]),
    default="strong",
    show_default=True,
    help="With --simulated: how it writes.",
)
@run_options
def workdays(
    part: str,
    target: Path | None,
    rules: tuple[Path, ...],
    users: str,
    languages: str,
    domains: str,
    drift: str | None,
    evolver: str,
    **given: Any,
) -> None:
    """Generate working days with unstated house rules; run them, or only write them."""
    from metaclaw_bench.running.generated import Generated, written
    from metaclaw_bench.running.plan import Plan
    from metaclaw_bench.running.runs import Runs
    from metaclaw_bench.simulated.rule_follower import Follower, Habits
    from metaclaw_bench.simulated.rule_judge import RuleJudge
    from metaclaw_bench.simulated.skills import Writing
    from metaclaw_bench.workdays import generate, held_out
    from metaclaw_bench.workdays.plugins import load_rules
    from metaclaw_bench.workdays.tailoring import tailored

    options = options_of(given)
    extra = tuple(rule for path in rules for rule in load_rules(path))
    shape = tailored(
        shape_of(part),
        users=words(users),
        languages=words(languages),
        domains=words(domains),
        drift=drift,
        rules=extra,
    )
    made: dict[int, Generated] = {}
    for seed in options.chosen_seeds():
        folder = (target or options.out / "data") / f"seed-{seed}"
        made[seed] = written(folder, generate(seed, shape, extra), held_out(seed, shape, extra))
        if target is not None:
            click.echo(
                f"{folder}: {made[seed].benchmark.rounds} questions on"
                f" {len(made[seed].benchmark.days)} days"
            )
    if target is not None:
        return

    def mind(plan: Plan) -> Follower:
        return made[plan.seed].mind(plan.seed, Habits(), Writing(evolver))

    def judge(plan: Plan) -> RuleJudge:
        return made[plan.seed].marker()

    plans = [
        replace(one.plan(plan), evolver=evolver if plan.provider.is_simulated else None)
        for seed, one in made.items()
        for plan in options.plans(one.benchmark, seed)
    ]
    first = next(iter(made.values())).benchmark
    agents = options.agents(first, options.out / "data")
    go(Runs(options.out, agents, make_model=mind, make_judge=judge), plans, options)


@bench.command()
@click.option("--seeds", default="0,1", show_default=True, help="By commas or as a range.")
@click.option(
    "--part",
    type=click.Choice(["1", "2", "tiny"]),
    default="tiny",
    show_default=True,
    help="Which generated benchmark.",
)
@click.option(
    "--only",
    "labels",
    multiple=True,
    metavar="NAME=VALUE,…",
    help="Only this ablation, such as gate=off; may be repeated.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="bench-ablations",
    show_default=True,
)
@click.option(
    "--parallel", type=click.IntRange(1), default=1, show_default=True, help="Runs side by side."
)
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def ablations(
    seeds: str, part: str, labels: tuple[str, ...], out: Path, parallel: int, as_json: bool
) -> None:
    """Measure what each mechanism is worth: workdays through the real program, answered by the
    simulated model.

    Runs without skills, with skills, and with skills and one thing changed. Finished runs are not
    run again, interrupted ones are continued."""
    from metaclaw_bench.ablations import HEADERS, USUAL, Ablation, ablated, rows, writing_of
    from metaclaw_bench.conditions import CONDITIONS
    from metaclaw_bench.records import read_all
    from metaclaw_bench.report.figures import Study
    from metaclaw_bench.running.agents import AgentKind, make_agents
    from metaclaw_bench.running.generated import written
    from metaclaw_bench.running.plan import Endpoint, Patience, Plan
    from metaclaw_bench.running.runs import Runs
    from metaclaw_bench.simulated.model import MODEL, SimulatedModel
    from metaclaw_bench.simulated.rule_follower import Habits
    from metaclaw_bench.workdays import generate, held_out

    chosen = [Ablation.parse(label) for label in labels or USUAL]
    made = {
        seed: written(
            out / "data" / f"seed-{seed}",
            generate(seed, shape_of(part)),
            held_out(seed, shape_of(part)),
        )
        for seed in numbers(seeds, "--seeds")
    }
    model = Endpoint("http://127.0.0.1:9/v1", MODEL, is_simulated=True)
    patience = Patience(each_round=True)
    plans = [
        plan
        for seed, one in made.items()
        for plan in ablated(
            one.plan(
                Plan(one.benchmark, CONDITIONS["skills"], seed, model, "direct", patience=patience)
            ),
            chosen,
        )
    ]

    def simulate(plan: Plan) -> SimulatedModel:
        return made[plan.seed].mind(plan.seed, Habits(), writing_of(plan.condition))

    agents = make_agents(AgentKind.DIRECT, next(iter(made.values())).benchmark.shared)
    execute(Runs(out, agents, make_model=simulate), plans, parallel=parallel, resume=True)
    study = Study(read_all([out / plan.name / "rounds.jsonl" for plan in plans]))
    found = list(rows(study))
    if as_json:
        print_json({"simulated": True, "rows": [asdict(row) for row in found]})
        return
    click.echo("SIMULATED: no model answered; these numbers say nothing about any.")
    print_table(HEADERS, [row.words() for row in found])
    click.echo(f"The same with every figure: metaclaw bench report {out}")


@bench.command()
@click.option(
    "--runs",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Runs one after the other in front of one proxy.",
)
@click.option(
    "--autoresearchclaw",
    type=click.Path(exists=True, path_type=Path),
    help="Drive this program, not our own pipeline.",
)
@click.option(
    "--template",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Its configuration to begin with.",
)
@click.option(
    "--mistakes",
    is_flag=True,
    help="With --simulated: mistakes of craft that nobody states a rule about.",
)
@run_options
def research(
    runs: int,
    autoresearchclaw: Path | None,
    template: Path | None,
    mistakes: bool,
    **given: Any,
) -> None:
    """Run the staged research pipeline under conditions, and compare them with the first."""
    import anyio
    from msgspec import structs

    from metaclaw_bench.research.mistakes import SlipChances
    from metaclaw_bench.research.report import COMPARISON_HEADS, comparison_rows
    from metaclaw_bench.research.running import run_research
    from metaclaw_bench.research.settings import ResearchResult, ResearchSettings

    options = options_of(given)
    if options.judge is not None:
        raise ConfigError(
            "--judge: a stage is judged by its contract; leave it out, or say it with --set"
            " judge.provider=…"
        )
    settings = ResearchSettings(
        out=options.out,
        provider=None if options.simulated else options.provider(),
        conditions=tuple(options.chosen_conditions()),
        seeds=tuple(options.chosen_seeds()),
        runs=runs,
        mistakes=SlipChances() if mistakes else None,
        patience=options.patience(),
        autoresearchclaw=autoresearchclaw,
        template=template,
        sets=options.sets,
        prices=options.prices(),
    )

    async def compare() -> ResearchResult:
        return await run_research(
            settings,
            lambda line: click.echo(line, err=True),
            parallel=options.parallel,
            resume=options.resume,
        )

    result = anyio.run(compare)
    if options.as_json:
        print_json(
            {
                "records": str(result.records),
                "comparisons": [structs.asdict(one) for one in result.comparisons],
            }
        )
        return
    print_table([head.upper() for head in COMPARISON_HEADS], comparison_rows(result.comparisons))
    click.echo(
        f"{'SIMULATED records' if options.simulated else 'Records'} lie in {result.records}."
    )


@bench.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def score(folders: tuple[Path, ...], as_json: bool) -> None:
    """Say what the runs in these FOLDERS came to, over all rounds that were planned."""
    show_scores(folders, as_json=as_json)


@bench.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to put report.html and report.md [the first folder].",
)
def report(folders: tuple[Path, ...], out: Path | None) -> None:
    """Make one page and one Markdown file of the runs in these FOLDERS."""
    from metaclaw_bench.report import write_pages, write_report
    from metaclaw_bench.research import report as research_report

    first = folders[0] if folders[0].is_dir() else folders[0].parent
    results = results_in(folders)
    if results.rounds and results.research:
        raise ConfigError("these folders hold rounds and research runs; make one report of each")
    if results.research:
        research = research_report.read(results.research)
        made = write_pages(
            out or first,
            research_report.render_page(research),
            research_report.render_markdown(research),
        )
    else:
        made = write_report(results.rounds, out or first)
    click.echo(f"{made.page}\n{made.markdown}")


def _days(text: str, known: list[str]) -> list[str]:
    """Days by their ids, ranges by the order of the index."""
    chosen: list[str] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        first, _, last = word.partition("-")
        if first not in known or (last or first) not in known:
            raise ConfigError(f"--days {text}: there is no {word}; the days are {', '.join(known)}")
        chosen += known[known.index(first) : known.index(last or first) + 1]
    return chosen
