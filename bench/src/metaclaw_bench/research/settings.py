"""What is to be compared, what came of it, and one run of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaclaw.plugin import ConfigError
from metaclaw_bench.conditions import CONDITIONS, Condition
from metaclaw_bench.json_types import Json
from metaclaw_bench.research.mistakes import SlipChances
from metaclaw_bench.research.records import ComparisonRecord, RunRecord
from metaclaw_bench.research.simulated import Habits
from metaclaw_bench.running.plan import Patience, Prices, Provider
from metaclaw_bench.running.proxy import Front
from metaclaw_bench.running.turns import Ledger

TOPICS: Final = (
    "step sizes in gradient descent",
    "momentum on noisy slopes",
    "restarts in hill climbing",
    "averaging the last iterates",
    "step sizes that shrink",
    "momentum that shrinks",
    "starting far from the minimum",
    "noise that grows",
    "stopping early",
    "clipping steep slopes",
)
# About what a run takes, in and out: forty short requests of our own pipeline, sixty long ones of
# the real program.
_TOKENS_A_RUN: Final = {"own": (60_000, 20_000), "autoresearchclaw": (400_000, 150_000)}
BASELINE, SKILLS = CONDITIONS["baseline"], CONDITIONS["skills"]


@dataclass(frozen=True, slots=True)
class ResearchSettings:
    """What is to be compared. Without a provider a simulated researcher answers, with `habits`, and
    every record says so; with `mistakes` one that makes mistakes of craft and is told no rules.

    With `autoresearchclaw`, the program at that path is driven instead of our own pipeline, with
    `template` as the beginning of its configuration. `sets` are settings of the proxy, as
    `section.key=value`."""

    out: Path
    provider: Provider | None = None
    conditions: tuple[Condition, ...] = (BASELINE, SKILLS)
    seeds: tuple[int, ...] = (1, 2, 3)
    runs: int = 2
    topics: tuple[str, ...] = TOPICS
    max_retries: int = 2
    habits: Habits = Habits()  # noqa: RUF009 (frozen)
    mistakes: SlipChances | None = None
    patience: Patience = Patience()  # noqa: RUF009 (frozen)
    autoresearchclaw: Path | None = None
    template: Path | None = None
    sets: tuple[str, ...] = ()
    longest_s: float = 8 * 3600.0
    prices: Prices | None = None

    def __post_init__(self) -> None:
        if not (self.conditions and self.seeds and self.topics and self.runs >= 1):
            raise ConfigError(
                "a comparison needs one condition, one seed, one topic and one run at least"
            )
        if trained := [one.name for one in self.conditions if one.weights]:
            raise ConfigError(
                f"{', '.join(trained)}: the research pipeline trains no weights; choose among"
                " baseline and skills"
            )
        if self.autoresearchclaw is not None and self.provider is None:
            raise ConfigError(
                "AutoResearchClaw needs a real model: name a provider; the simulated researcher"
                " does not know its stages"
            )

    def facts(self) -> dict[str, Json]:
        """What is compared, in words a resumed comparison must repeat."""
        return {
            "pipeline": "own" if self.autoresearchclaw is None else "autoresearchclaw",
            "simulated": self.provider is None or self.provider.is_simulated,
            "model": None if self.provider is None else self.provider.model,
            "conditions": ["_".join((one.name, *one.changed)) for one in self.conditions],
            "seeds": list(self.seeds),
            "runs": self.runs,
            "topics": list(self.topics),
            "max_retries": self.max_retries,
            "mistakes": self.mistakes is not None,
            "settings": list(self.sets),
        }

    def estimate(self, runs: int) -> str:
        """What so many runs will cost, in words; empty where prices are not known."""
        if self.prices is None:
            return ""
        tokens_in, tokens_out = _TOKENS_A_RUN[
            "own" if self.autoresearchclaw is None else "autoresearchclaw"
        ]
        cost = self.prices.cost(runs * tokens_in, runs * tokens_out) or 0.0
        return f", about {cost:.2f} US dollars (a rough estimate without judge and evolver)"

    def topic(self, seed: int, number: int) -> str:
        """What a run is about: another topic each time, the same for all conditions."""
        return self.topics[(seed + number - 1) % len(self.topics)]


@dataclass(frozen=True, slots=True)
class ResearchResult:
    """What came of it; all of it stands in `records`, as JSON lines."""

    records: Path
    runs: tuple[RunRecord, ...]
    comparisons: tuple[ComparisonRecord, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """One run in front of one proxy. `ledger` has read the turns of the runs before it."""

    settings: ResearchSettings
    condition: Condition
    seed: int
    number: int
    front: Front
    ledger: Ledger
    home: Path
    folder: Path

    @property
    def is_simulated(self) -> bool:
        """Whether no model answers at all."""
        return self.settings.provider is None or self.settings.provider.is_simulated
