"""What the runs of `metaclaw bench` share: their options, whom they ask, how they show progress,
what they print at the end.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from metaclaw.plugin import ConfigError, plain, print_json, print_table

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar

    from metaclaw_bench.conditions import Condition
    from metaclaw_bench.questions import Benchmark
    from metaclaw_bench.records import RoundRecord
    from metaclaw_bench.running.day import MakeAgent
    from metaclaw_bench.running.plan import Endpoint, Patience, Plan, Prices, Provider, Stage
    from metaclaw_bench.running.runs import Runs
    from metaclaw_bench.workdays import Plan as WorkdaysPlan

Command = TypeVar("Command", bound=Callable[..., object])
CHECKERS = "checkers"
# What the embedded model can read at once is about a quarter more.
_EMBEDDED_HISTORY = 6_000
_DOLLARS = click.FloatRange(0, 1_000_000)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run, as given."""

    conditions: str
    seeds: str
    agent: str
    agent_command: str | None
    history: int | None
    answer_tokens: int | None
    provider_url: str | None
    provider_key_env: str | None
    model: str | None
    embedded: bool
    simulated: bool
    judge: str | None
    judge_model: str | None
    judge_key_env: str | None
    sets: tuple[str, ...]
    again: int
    train_every: int
    strict_hooks: bool
    settle_rounds: bool
    settle_most: float
    price: tuple[float, float] | None
    out: Path
    parallel: int
    resume: bool
    as_json: bool

    def chosen_conditions(self) -> "list[Condition]":
        """Raises ConfigError for one that there is not."""
        from metaclaw_bench.conditions import named

        return named(words(self.conditions))

    def chosen_seeds(self) -> list[int]:
        """Raises ConfigError where they are no numbers."""
        return numbers(self.seeds, "--seeds")

    def provider(self) -> "Provider":
        """Who answers. Raises ConfigError where it is not said, or said twice."""
        from metaclaw_bench.running.plan import Embedded, Endpoint
        from metaclaw_bench.simulated.model import MODEL

        ways = [self.provider_url is not None, self.embedded, self.simulated]
        if sum(ways) != 1:
            raise ConfigError(
                "say who answers, one of: --provider-url with --model, --embedded, --simulated"
            )
        if self.embedded:
            return Embedded.of(self.sets)
        if self.simulated:
            # Where it listens is known once it does.
            return Endpoint("http://127.0.0.1:9/v1", MODEL, is_simulated=True)
        if self.model is None:
            raise ConfigError("--provider-url needs --model: the name the provider knows it by")
        return Endpoint(
            self.provider_url or "", self.model, _key("--provider-key-env", self.provider_key_env)
        )

    def chosen_judge(self) -> "Endpoint | None":
        """Who judges where it is not the model itself. Raises ConfigError where it is not said in
        full.
        """
        from metaclaw_bench.running.plan import Endpoint
        from metaclaw_bench.simulated.model import MODEL

        if self.judge is None or self.judge == CHECKERS:
            if self.judge_model is not None or self.judge_key_env is not None:
                raise ConfigError(
                    "--judge-model and --judge-key-env belong to --judge with an address; give"
                    " that too"
                )
            return (
                None
                if self.judge is None
                else Endpoint("http://127.0.0.1:9/v1", MODEL, is_simulated=True)
            )
        if self.judge_model is None:
            raise ConfigError(
                "--judge with an address needs --judge-model: the name the provider knows it by"
            )
        return Endpoint(self.judge, self.judge_model, _key("--judge-key-env", self.judge_key_env))

    def _agent_in_words(self) -> str:
        limits = {"history": self.history, "answer tokens": self.answer_tokens}
        return ", ".join(
            [self.agent, *(f"{name} {most}" for name, most in limits.items() if most is not None)]
        )

    def agents(self, benchmark: "Benchmark", hidden: Path) -> "MakeAgent":
        """Who works, kept from looking into `hidden`. Raises ConfigError where it is not said in
        full.
        """
        from metaclaw_bench.agent import RoundLimits
        from metaclaw_bench.running.agents import AgentKind, make_agents

        tokens = self.history or (
            _EMBEDDED_HISTORY if self.embedded else RoundLimits().history_tokens
        )
        limits = RoundLimits(history_tokens=tokens)
        return make_agents(
            AgentKind(self.agent),
            benchmark.shared,
            [hidden.resolve()],
            self.agent_command,
            limits=limits,
            answer_tokens=self.answer_tokens,
        )

    def patience(self) -> "Patience":
        """How long learning is waited for."""
        from metaclaw_bench.running.plan import Patience

        return Patience(most_s=self.settle_most, each_round=self.settle_rounds)

    def prices(self) -> "Prices | None":
        """What tokens cost."""
        from metaclaw_bench.running.plan import Prices

        return None if self.price is None else Prices(*self.price)

    def plans(
        self, benchmark: "Benchmark", seed: int, *, held_out: int = 0, show_checkers: bool = False
    ) -> "list[Plan]":
        """A plan for each condition, with this seed."""
        from metaclaw_bench.running.plan import Plan

        return [
            Plan(
                benchmark,
                condition,
                seed,
                self.provider(),
                self._agent_in_words(),
                self.sets,
                again=self.again,
                held_out=held_out,
                train_every=self.train_every,
                strict_hooks=self.strict_hooks,
                show_checkers=show_checkers,
                patience=self.patience(),
                prices=self.prices(),
                judge=self.chosen_judge(),
            )
            for condition in self.chosen_conditions()
        ]


def run_options(command: Command) -> Command:
    """Adds the options of a run, which arrive as the keyword arguments of `RunOptions`."""
    options = (
        click.option(
            "--conditions",
            default="baseline,skills",
            show_default=True,
            help="Of baseline, skills, rl, full, by commas.",
        ),
        click.option(
            "--seeds", default="0", show_default=True, help="By commas or as a range: 0,1,2 or 0-4."
        ),
        click.option(
            "--agent",
            type=click.Choice(["built-in", "direct", "command"]),
            default="built-in",
            show_default=True,
        ),
        click.option(
            "--agent-command",
            metavar="TEMPLATE",
            help=(
                "With --agent command: run once a message, without a shell; {message}, {session},"
                " {workspace}, {state}, {opening}, {user}, {model}, {base_url} and {api_key} are"
                " filled in."
            ),
        ),
        click.option(
            "--history",
            type=click.IntRange(500),
            metavar="TOKENS",
            help=(
                "How much of a day our own agents remember, estimated [50000; 6000 with"
                " --embedded]."
            ),
        ),
        click.option(
            "--answer-tokens",
            type=click.IntRange(1),
            help="The most our own agents let a model say at once [no limit].",
        ),
        click.option(
            "--provider-url",
            metavar="URL",
            help="Ask the OpenAI-compatible server at this address (…/v1).",
        ),
        click.option(
            "--provider-key-env",
            metavar="NAME",
            help="The environment variable that holds its key.",
        ),
        click.option("--model", help="The model to ask it for."),
        click.option("--embedded", is_flag=True, help="Ask the embedded model."),
        click.option(
            "--simulated", is_flag=True, help="No model: a simulated one with known habits."
        ),
        click.option(
            "--judge",
            metavar="WHO",
            help=(
                "Who judges, rewards and writes skills: a server's address (…/v1), or `checkers` on"
                " workdays [the model itself]."
            ),
        ),
        click.option("--judge-model", help="The model to ask there."),
        click.option(
            "--judge-key-env",
            metavar="NAME",
            help="The environment variable that holds the judge's key.",
        ),
        click.option(
            "--set",
            "sets",
            multiple=True,
            metavar="SECTION.KEY=VALUE",
            help="A setting of the proxy; may be repeated.",
        ),
        click.option(
            "--again",
            type=click.IntRange(0),
            default=0,
            help="How many early days come once more at the end [0].",
        ),
        click.option(
            "--train-every",
            type=click.IntRange(0),
            default=5,
            show_default=True,
            help="Days from training to training.",
        ),
        click.option(
            "--strict-hooks", is_flag=True, help="Stop where training or waiting for it fails."
        ),
        click.option(
            "--settle-rounds",
            is_flag=True,
            help="Wait for learning after each round: slower, and the same every time.",
        ),
        click.option(
            "--settle-most",
            type=float,
            default=600.0,
            show_default=True,
            help="Seconds to wait for learning at most.",
        ),
        click.option(
            "--price",
            type=(_DOLLARS, _DOLLARS),
            metavar="IN OUT",
            help="US dollars for a million tokens, in and out.",
        ),
        click.option(
            "--out",
            type=click.Path(file_okay=False, path_type=Path),
            default="bench-results",
            show_default=True,
        ),
        click.option(
            "--parallel",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="Runs side by side.",
        ),
        click.option(
            "--resume",
            is_flag=True,
            help="Go on with runs that were interrupted; pass over those that are done.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _key(option: str, name: str | None) -> str | None:
    """A reference to a key in the environment. Raises ConfigError where it is not there."""
    if name is not None and not os.environ.get(name):
        raise ConfigError(f"{option} {name}: there is no such environment variable; set it")
    return None if name is None else f"env:{name}"


def options_of(given: dict[str, Any]) -> RunOptions:  # click hands its parameters over by name
    """The run's options among a command's parameters."""
    return RunOptions(**given)


def shape_of(part: str) -> "WorkdaysPlan":
    """The plan of a generated benchmark by the name of its part."""
    from metaclaw_bench.workdays import PART_ONE, PART_TWO, TINY

    return {"1": PART_ONE, "2": PART_TWO, "tiny": TINY}[part]


def numbers(text: str, option: str) -> list[int]:
    """Numbers by commas, ranges with a dash. Raises ConfigError."""
    found: list[int] = []
    for word in words(text):
        low, dash, high = word.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise ConfigError(
                f"{option} {text}: {word} is no number and no range; write 0,1,2 or 0-4"
            )
        found += range(int(low), int(high or low) + 1)
    return list(dict.fromkeys(found))


def go(runs: "Runs", plans: "Sequence[Plan]", options: RunOptions) -> None:
    """Run all of them, show how far it is, and print what came of it."""
    execute(runs, plans, parallel=options.parallel, resume=options.resume)
    show_scores([runs.out / plan.name for plan in plans], as_json=options.as_json)


def execute(runs: "Runs", plans: "Sequence[Plan]", *, parallel: int, resume: bool) -> None:
    """Run all plans and show progress. Rounds that an earlier run left done count as done."""
    from dataclasses import replace

    import anyio

    total = sum(len(stage.day.rounds) for plan in plans for stage in plan.stages)
    done = sum(map(runs.rounds_done, plans)) if resume else 0
    click.echo(estimate(plans, total - done), err=True)
    with Progress(total, done) as progress:
        anyio.run(
            lambda: replace(runs, tell=progress.tell).run_all(
                plans, at_once=parallel, resume=resume
            )
        )


def estimate(plans: "Sequence[Plan]", left: int) -> str:
    """What is about to be run, and what the model's tokens will cost where prices are known."""
    from metaclaw_bench.running.plan import estimated_tokens

    told = f"{left} rounds to run in {len(plans)} runs"
    prices = next((plan.prices for plan in plans if plan.prices is not None), None)
    if prices is None:
        return told
    whole = sum(len(stage.day.rounds) for plan in plans for stage in plan.stages)
    share = left / max(1, whole)
    tokens = [estimated_tokens(stage.day, plan.agent) for plan in plans for stage in plan.stages]
    tokens_in, tokens_out = (int(share * sum(one[at] for one in tokens)) for at in (0, 1))
    cost = prices.cost(tokens_in, tokens_out) or 0.0
    return (
        f"{told}; about {tokens_in:,} tokens in and {tokens_out:,} out, {cost:.2f} US dollars"
        " (a rough estimate without judge and evolver; the progress shows what is spent)"
    )


class Progress:
    """A bar on a terminal, a line for each round anywhere else; both on standard error, results go
    elsewhere.

    The time left follows from the rounds done by this process; rounds done by an earlier one count
    as done and took no time."""

    def __init__(self, total: int, done: int = 0) -> None:
        self._total = total
        self._done = self._before = done
        self._began = time.monotonic()
        self._cost = 0.0
        self._bar: ProgressBar[int] | None = (
            click.progressbar(
                length=total,
                label="rounds",
                file=sys.stderr,
                show_eta=False,
                item_show_func=lambda _: self.left(),
            )
            if sys.stderr.isatty()
            else None
        )

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            self._bar.__enter__()
            self._bar.update(self._done)
        return self

    def __exit__(self, *ended: object) -> None:
        if self._bar is not None:
            self._bar.render_finish()

    def tell(self, plan: "Plan", stage: "Stage", record: "RoundRecord") -> None:
        """A round is done."""
        self._done += 1
        self._cost += record.cost or 0.0
        if self._bar is not None:
            self._bar.update(1)
            return
        said = f"failed: {record.failure}" if record.failure else f"{record.score:.2f}"
        place = f"{plan.name} {stage.name}/{record.round}"
        click.echo(
            f"{self._done}/{self._total} {plain(place)} {plain(said)} ({self.left()})", err=True
        )

    def left(self) -> str:
        """How long it will still take, and what was spent so far."""
        from metaclaw_bench.running.plan import duration

        ran = self._done - self._before
        seconds = (time.monotonic() - self._began) / max(1, ran) * (self._total - self._done)
        spent = f", {self._cost:.2f} US dollars so far" if self._cost else ""
        return f"about {duration(seconds)} left{spent}"


@dataclass(frozen=True, slots=True)
class Results:
    """The files of results in and below some folders, by kind."""

    rounds: tuple[Path, ...]
    research: tuple[Path, ...]


def results_in(paths: Sequence[Path]) -> Results:
    """Raises ConfigError where there are none. A file is taken for what its name says."""
    found: dict[str, list[Path]] = {"rounds.jsonl": [], "research.jsonl": []}
    for path in paths:
        for name, files in found.items():
            if path.is_dir():
                files += sorted(path.rglob(name))
            elif (path.name == "research.jsonl") == (name == "research.jsonl"):
                files.append(path)
    if not any(found.values()):
        raise ConfigError(
            f"{', '.join(map(str, paths))}: there are no results here; name the folder that was"
            " given as --out"
        )
    return Results(tuple(found["rounds.jsonl"]), tuple(found["research.jsonl"]))


def show_scores(folders: Sequence[Path], *, as_json: bool) -> None:
    """What the runs in these folders came to."""
    from msgspec import structs

    from metaclaw_bench.records import read_all
    from metaclaw_bench.report.figures import refuse_duplicates
    from metaclaw_bench.research import report as research_report
    from metaclaw_bench.running.summary import summarise

    results = results_in(folders)
    records = read_all(results.rounds)
    lines = summarise(records)
    refuse_duplicates(records)
    research = research_report.read(results.research) if results.research else None
    if as_json:
        facts: dict[str, object] = {"runs": [asdict(line) for line in lines]}
        if research is not None:
            facts["research"] = {
                "runs": [structs.asdict(one) for one in research.runs],
                "comparisons": [structs.asdict(one) for one in research.comparisons],
            }
        print_json(facts)
        return
    if any(line.simulated for line in lines) or (research is not None and research.is_simulated):
        click.echo("SIMULATED: no model answered; these numbers say nothing about any.")
    if research is not None:
        rows = [
            [str(cell).replace("\u202f", " ") for cell in row]
            for row in research_report.run_rows(research)
        ]
        print_table([head.upper() for head in research_report.RUN_HEADS], rows)
        if research.comparisons:
            click.echo()
            heads = [head.upper() for head in research_report.COMPARISON_HEADS]
            print_table(heads, research_report.comparison_rows(research.comparisons))
    if not lines:
        return
    headers = (
        "CONDITION",
        "SEED",
        "PHASE",
        "ROUNDS",
        "FAILED",
        "ACCURACY",
        "EXACT",
        "COMPLETION",
        "TOKENS",
        "DOLLARS",
    )
    print_table(
        headers,
        [
            (
                line.cell,
                line.seed,
                line.phase,
                f"{line.executed}/{line.planned}",
                line.failed,
                _share(line.accuracy),
                _share(line.exact),
                _share(line.completion),
                line.tokens,
                None if line.cost is None else f"{line.cost:.2f}",
            )
            for line in lines
        ],
    )


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"


def words(text: str) -> list[str]:
    """What stands between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]
