"""What a run sets out to do: which days in which order, under which condition, with which model
behind the proxy.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from metaclaw.plugin import ConfigError
from metaclaw_bench.conditions import Condition, as_toml
from metaclaw_bench.json_types import Json
from metaclaw_bench.questions import Benchmark, Check, ChoiceCheck, Day, FileCheck
from metaclaw_bench.records import Made, Phase
from metaclaw_bench.simulated.model import MODEL

_EMBEDDED: Final = "embedded"
JUDGE: Final = "judge"
"""The name of the provider that judges, where it is not the model itself."""


class Provider(Protocol):
    """Who answers behind the proxy."""

    @property
    def model(self) -> str:
        """The model agents ask for."""

    @property
    def is_simulated(self) -> bool:
        """Whether no model answers at all."""

    def toml(self) -> str:
        """Its entry in the configuration."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A provider at an address, in OpenAI's chat wire. `key` is a reference such as `env:NAME`,
    never the key itself.
    """

    url: str
    model: str
    key: str | None = None
    is_simulated: bool = False

    def toml(self, name: str | None = None) -> str:
        """Its entry in the configuration."""
        called = name or (MODEL if self.is_simulated else "model")
        keys: dict[str, Json] = {"name": called, "kind": "openai", "base_url": self.url}
        keys |= {"wires": ["chat"], "models": [self.model]}
        if self.key is not None:
            keys["api_key"] = self.key
        return as_toml({"[providers]": keys})


@dataclass(frozen=True, slots=True)
class Embedded:
    """The model inside the program, by its name there."""

    name: str = "smollm2-135m-instruct"
    is_simulated: bool = False

    @staticmethod
    def of(sets: Sequence[str]) -> "Embedded":
        """The one that answers with these settings: another model is known by the name of its
        folder.
        """
        folder = next(
            (
                value
                for key, _, value in (one.partition("=") for one in sets)
                if key == "policy.base_model"
            ),
            None,
        )
        return Embedded() if folder is None else Embedded(Path(folder).name)

    @property
    def model(self) -> str:
        """The model agents ask for. With its provider in front nobody else can be meant, a judge
        for instance.
        """
        return f"{_EMBEDDED}/{self.name}"

    def toml(self) -> str:
        """Its entry in the configuration."""
        return as_toml({"[providers]": {"name": _EMBEDDED, "kind": "embedded"}})


@dataclass(frozen=True, slots=True)
class Patience:
    """How the end of learning is waited for: `calm_s` without a change, for at most `most_s`;
    training for `train_s`.

    With `each_round` it is waited for after every round, not only between days: then what was
    learned from one round is there for the next but one, however fast the agent is, and a run can
    be repeated to the letter."""

    calm_s: float = 1.0
    most_s: float = 600.0
    train_s: float = 7200.0
    each_round: bool = False


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for a million tokens, as the provider's list has them."""

    tokens_in: float
    tokens_out: float

    def cost(self, tokens_in: int | None, tokens_out: int | None) -> float | None:
        """What so many tokens cost; None where they were not counted."""
        if tokens_in is None or tokens_out is None:
            return None
        return (tokens_in * self.tokens_in + tokens_out * self.tokens_out) / 1e6


def duration(seconds: float) -> str:
    """A length of time as a person says it."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


# For an estimate before a run: completions for a choice and for files, tokens of persona and tools,
# tokens of an answer.
_STEPS: Final = {"choice": 1, "files": 4}
_PROMPT_TOKENS: Final = 1_200
_ANSWER_TOKENS: Final = 250
_CHARS_A_TOKEN: Final = 4


def estimated_tokens(day: Day, agent: str) -> tuple[int, int]:
    """About how many tokens a day takes, in and out: each completion is sent all that was said
    before it.
    """
    said = _PROMPT_TOKENS + sum(len(one.text) for one in day.opening) // _CHARS_A_TOKEN
    total_in = total_out = 0
    for one in day.rounds:
        said += len(one.question) // _CHARS_A_TOKEN
        steps = (
            _STEPS["files"]
            if isinstance(one.check, FileCheck) and not agent.startswith("direct")
            else _STEPS["choice"]
        )
        for _ in range(steps):
            total_in, total_out = total_in + said, total_out + _ANSWER_TOKENS
            said += _ANSWER_TOKENS
        said += len(one.feedback.incorrect or one.feedback.correct) // _CHARS_A_TOKEN
    return total_in + said, total_out + _ANSWER_TOKENS


@dataclass(frozen=True, slots=True)
class Stage:
    """One day of a run, and its place in it. Days of other phases than `stream` only measure:
    nothing is learned from them.
    """

    day: Day
    number: int
    phase: Phase
    user: str | None = None
    rules: tuple[tuple[str, ...], ...] = ()

    @property
    def is_frozen(self) -> bool:
        return self.phase != "stream"

    @property
    def name(self) -> str:
        """The day's folder in the output; an early day that comes again has one of its own."""
        return self.day.id if self.phase != "again" else f"{self.day.id}-again"


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `again` early days come once more at the end; the last `held_out` days are kept
    apart. `users` says who speaks on which day, `rules` which house rules its rounds ask for, both
    by day id. `sets` are settings of the proxy on top of the condition's, as `section.key=value`.
    `judge` is who judges, rewards and writes skills, where it is not the model itself; a simulated
    one are the benchmark's own checkers. `evolver` says how a simulated model writes skills."""

    benchmark: Benchmark
    condition: Condition
    seed: int
    provider: Provider
    agent: str
    sets: tuple[str, ...] = ()
    again: int = 0
    held_out: int = 0
    train_every: int = 1
    strict_hooks: bool = False
    show_checkers: bool = False
    patience: Patience = Patience()
    prices: Prices | None = None
    judge: Endpoint | None = None
    evolver: str | None = None
    users: dict[str, str] = field(default_factory=dict)
    rules: dict[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (
            self.condition.weights
            and not isinstance(self.provider, Embedded)
            and not any(one.startswith("policy.") for one in self.sets)
        ):
            raise ConfigError(
                f"condition {self.condition.name} trains weights, and those of"
                f" {self.provider.model} cannot be trained from here; use --embedded, or say who"
                " trains them (--set policy.backend=… and what it needs)"
            )
        is_judged = (
            not isinstance(self.provider, Embedded)
            or self.judge is not None
            or any(one.startswith("judge.provider=") for one in self.sets)
        )
        if self.condition.weights and not is_judged:
            raise ConfigError(
                f"condition {self.condition.name} trains weights, and nobody would say how good an"
                " answer is: name somebody with --judge (on workdays it may be their checkers)"
            )
        days = len(self.benchmark.days)
        if not 0 <= self.held_out < days or not 0 <= self.again <= days - self.held_out:
            raise ConfigError(
                f"{self.held_out} days held out and {self.again} once more do not fit into {days}"
                " days; choose fewer"
            )

    @property
    def name(self) -> str:
        """Condition, changes and seed, as a path below the output folder."""
        return "/".join(
            ("_".join((self.condition.name, *self.condition.changed)), f"seed-{self.seed}")
        )

    @property
    def made(self) -> Made:
        """What every record of the run begins with."""
        return Made(
            run=self.name,
            benchmark=self.benchmark.name,
            condition=self.condition.name,
            ablation=self.condition.changed,
            seed=self.seed,
            simulated=self.provider.is_simulated,
        )

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All days in order."""
        return tuple(self._stages())

    def _stages(self) -> Iterator[Stage]:
        days = self.benchmark.days
        stream = len(days) - self.held_out
        for number, day in enumerate(days[:stream], 1):
            yield self._stage(day, number, "stream")
        for number, day in enumerate(days[: self.again], 1):
            yield self._stage(replace(day, session=f"{day.session}-again"), number, "again")
        for number, day in enumerate(days[stream:], stream + 1):
            yield self._stage(day, number, "held_out")

    def _stage(self, day: Day, number: int, phase: Phase) -> Stage:
        return Stage(day, number, phase, self.users.get(day.id), self.rules.get(day.id, ()))

    @property
    def judged_by(self) -> str | None:
        """Who judges, in words; None for the model itself, or nobody."""
        if self.judge is None:
            return None
        return "the benchmark's checkers" if self.judge.is_simulated else self.judge.model

    def config(self, stage: Stage) -> str:
        """The proxy's configuration on this day, without its address and key."""
        tree = self.condition.settings(frozen=stage.is_frozen)
        providers = [self.provider.toml()]
        if self.judge is not None:
            providers.append(self.judge.toml(JUDGE))
            for section in ("judge", "evolver"):
                tree[section] = {
                    **tree.get(section, {}),
                    "provider": JUDGE,
                    "model": self.judge.model,
                }
        return "\n".join([*providers, as_toml(tree)])

    def facts(self) -> dict[str, Json]:
        """The plan in words a later run can be compared with: what differs is another run."""
        return {
            "benchmark": self.benchmark.name,
            "days": [[stage.name, stage.phase, len(stage.day.rounds)] for stage in self.stages],
            "questions": _fingerprint(self.benchmark),
            "condition": self.condition.name,
            "changed": list(self.condition.changed),
            "seed": self.seed,
            "simulated": self.provider.is_simulated,
            "model": self.provider.model,
            "agent": self.agent,
            "judge": self.judged_by,
            "evolver": self.evolver,
            "settings": list(self.sets),
            "train_every": self.train_every if self.condition.weights else None,
            "show_checkers": self.show_checkers,
            "settled_each_round": self.patience.each_round,
        }


def _fingerprint(benchmark: Benchmark) -> str:
    """One hash over all questions and checks, the same in every process."""
    told = [
        [day.id, one.id, one.question, *_check(one.check)]
        for day in benchmark.days
        for one in day.rounds
    ]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _check(check: Check) -> list[Json]:
    """Everything a check says. A set is sorted: its own order differs from process to process."""
    match check:
        case ChoiceCheck(options, answer):
            return [*options, "".join(sorted(answer))]
        case FileCheck():
            return [
                check.command,
                check.expect_exit,
                check.timeout_s,
                check.expect_stdout,
                check.is_regex,
            ]
