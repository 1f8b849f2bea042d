"""Generated workdays as something to run: on disk, with held-out days at their end, and a follower
that can answer them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from metaclaw_bench.data import read_benchmark
from metaclaw_bench.questions import Benchmark
from metaclaw_bench.running.plan import Plan
from metaclaw_bench.simulated.rule_follower import Follower, Habits
from metaclaw_bench.simulated.rule_judge import RuleJudge
from metaclaw_bench.simulated.skills import RuleText, Writing
from metaclaw_bench.workdays import Files, Item, Workdays
from metaclaw_bench.workdays.corrections import wordings
from metaclaw_bench.workdays.demands import Rule
from metaclaw_bench.workdays.words import LANGUAGES
from metaclaw_bench.workdays.writing import write


@dataclass(frozen=True, slots=True)
class Generated:
    """A benchmark on disk, and what is known of it beyond what an agent sees. The last `held_out`
    days only measure; `before` is the workspace that the day of a question begins with."""

    benchmark: Benchmark
    items: tuple[Item, ...]
    rules: tuple[Rule, ...]
    users: Mapping[str, str]
    held_out: int = 0
    before: Mapping[str, Files] = field(default_factory=dict)

    def plan(self, plan: Plan) -> Plan:
        """A plan with what is known of each day."""
        by_question = {item.round.question: item.rules for item in self.items}
        rules = {
            day.id: tuple(by_question[one.question] for one in day.rounds)
            for day in self.benchmark.days
        }
        return replace(
            plan,
            benchmark=self.benchmark,
            users=dict(self.users),
            rules=rules,
            held_out=self.held_out,
        )

    def mind(self, seed: int, habits: Habits, writing: Writing) -> Follower:
        """The simulated model that knows its items."""
        return Follower(
            self.items, rule_texts(self.rules), seed=seed, habits=habits, writing=writing
        )

    def marker(self) -> RuleJudge:
        """The judge that knows its checkers."""
        return RuleJudge(self.items, self.before)


def rule_texts(rules: Iterable[Rule]) -> list[RuleText]:
    """What somebody who knows the rules would write: each in all its forms, as people say it in
    each language.
    """
    return [
        RuleText(
            rule.id,
            f"{rule.topic('en')} that are noted, written, saved or chosen in a file",
            {
                variant: tuple(
                    text for language in LANGUAGES for text in wordings(rule, variant, language)
                )
                for variant in rule.variants
            },
        )
        for rule in rules
    ]


def written(folder: Path, stream: Workdays, held_out: Workdays) -> Generated:
    """Both on disk below `folder`, the held-out days behind the others. The same again changes
    nothing; over anything else it is refused with a ConfigError."""
    first, later = (
        read_benchmark(write(made, folder / name))
        for made, name in ((stream, "days"), (held_out, "held-out"))
    )
    made = (stream, held_out)
    return Generated(
        benchmark=replace(first, root=folder, days=(*first.days, *later.days)),
        items=tuple(item for one in made for item in one.items),
        rules=tuple({rule.id: rule for one in made for rule in one.rules}.values()),
        users={day.day.id: day.user for one in made for day in one.days},
        held_out=len(later.days),
        before={
            item.round.question: day.begins_with
            for one in made
            for day in one.days
            for item in day.items
        },
    )
