"""A benchmark of a few rounds with one house rule, who answers it, and agents for it: for the
runner's tests.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import anyio

from metaclaw_bench.agent import BuiltinAgent, DirectAgent, Endpoint
from metaclaw_bench.conditions import CONDITIONS, Condition
from metaclaw_bench.questions import Benchmark, Day, Feedback, FileCheck, Round, Said
from metaclaw_bench.records import RoundRecord
from metaclaw_bench.running.plan import Endpoint as Provider
from metaclaw_bench.running.plan import Patience, Plan, Stage
from metaclaw_bench.running.proxy import Front
from metaclaw_bench.running.runs import Runs
from metaclaw_bench.simulated.model import MODEL, Broken, Prompt, Thought
from metaclaw_bench.simulated.rule_follower import Follower, Habits
from metaclaw_bench.simulated.skills import RuleText, Writing
from metaclaw_bench.workdays.model import Answer, Item

WANTED = "Write delivery dates in the harbour report as YYYY-MM-DD, never with the month in words."
LORE = RuleText("dates", "delivery dates in the harbour report", {"iso": (WANTED,)})
HABITS = Habits(told=1.0, untold=0.0)


def item(day: int, number: int) -> Item:
    """Ask for a line with a date; the reference has it in the house's form, the near miss in
    words.
    """
    path = f"day{day:02d}/report{number}.txt"
    question = (
        f"Day {day}: write the harbour report number {number} to {path}, with its delivery date,"
        f" the {number}th of March 2026."
    )
    right, wrong = f"delivered 2026-03-{number:02d}\n", f"delivered {number} March 2026\n"
    check = FileCheck(f"grep -qx 'delivered 2026-03-{number:02d}' {path}")
    feedback = Feedback("Thanks, that is right.", f"No, that is wrong. {WANTED}")
    round_ = Round(f"r{number}", question, check, feedback)
    return Item(
        round_, ("dates",), Answer("Done.", {path: right}), (Answer("Done.", {path: wrong}),)
    )


ITEMS = {(day, number): item(day, number) for day in range(1, 5) for number in range(1, 4)}


def benchmark(root: Path, days: int = 3, rounds: int = 2) -> Benchmark:
    """So many days with a folder each below `root`."""
    made = []
    for day in range(1, days + 1):
        folder = root / f"day{day:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "README.md").write_text(f"Materials of day {day}.\n")
        asked = tuple(ITEMS[day, number].round for number in range(1, rounds + 1))
        opening = (
            Said("user", f"Good morning, this is day {day}."),
            Said("assistant", "Good morning."),
        )
        made.append(
            Day(f"day{day:02d}", f"Day {day}", f"mini-day{day:02d}", opening, asked, folder)
        )
    (root / "USER.md").write_text("A harbour office.\n")
    return Benchmark("miniature", root, tuple(made), {"USER.md": root / "USER.md"}, None)


def plan(
    root: Path,
    condition: str | Condition = "skills",
    *,
    days: int = 3,
    rounds: int = 2,
    again: int = 0,
    held_out: int = 0,
    each_round: bool = False,
) -> Plan:
    """A run of it with a simulated model."""
    return Plan(
        benchmark(root, days, rounds),
        CONDITIONS[condition] if isinstance(condition, str) else condition,
        seed=1,
        provider=Provider("http://127.0.0.1:9/v1", MODEL, is_simulated=True),
        agent="direct",
        sets=("judge.votes=1", "evolver.min_failures=1", "skills.retrieval=words"),
        again=again,
        held_out=held_out,
        patience=Patience(calm_s=0.5, most_s=60.0, each_round=each_round),
    )


def follower(plan: Plan) -> Follower:
    """Who answers it."""
    return Follower(ITEMS.values(), [LORE], seed=plan.seed, habits=HABITS, writing=Writing.STRONG)


@dataclass
class Failing:
    """A mind whose provider fails on some questions."""

    mind: Follower
    on: tuple[str, ...]

    def answer(self, prompt: Prompt) -> Thought:
        asked = prompt.messages[-1].text
        return (
            Broken(500)
            if prompt.purpose is None and any(words in asked for words in self.on)
            else self.mind.answer(prompt)
        )


def direct_agent(front: Front, stage: Stage) -> DirectAgent:
    """An agent that asks once and does not ask again."""
    return DirectAgent(Endpoint(front.base_url, front.api.key, front.model, tries=1))


def builtin_agent(front: Front, stage: Stage) -> BuiltinAgent:
    """An agent that works with tools."""
    return BuiltinAgent(Endpoint(front.base_url, front.api.key, front.model, tries=1))


def taught(root: Path) -> Plan:
    """The run that is interrupted, and the one that is not: two days of learning, and the first of
    them again.
    """
    return plan(root, days=2, again=1, each_round=True)


def main() -> None:
    """Run it in a process of its own, which can be killed, and say each round as it is done."""
    root, out = map(Path, sys.argv[1:])

    def tell(plan: Plan, stage: Stage, record: RoundRecord) -> None:
        print(stage.name, record.round, flush=True)  # noqa: T201

    anyio.run(Runs(out, direct_agent, tell, follower).run, taught(root))


if __name__ == "__main__":
    main()
