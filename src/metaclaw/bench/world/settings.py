"""What is known in advance: the simulated policy's traits, the evolvers, the conditions and the ablations."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

Condition = Literal["baseline", "skills", "rl", "full"]
Gate = Literal["off", "lint", "full"]
Flush = Literal["none", "full", "selective"]
Scheduler = Literal["immediate", "fixed", "forecast"]
EvolverName = Literal["perfect", "strong", "weak", "noisy"]
Switch = Literal["on", "off"]


@dataclass(frozen=True, slots=True)
class Traits:
    """The simulated policy and its judge.

    It follows a rule with `p_base` unaided, `p_skill` with the right skill in its prompt, `p_harm` with a wrong one and no right
    one; together their effects add up in log-odds. A round without rules passes with `p_plain`.

    A step moves the log-odds of a rule by `rate` times the mean over its data of advantage times behaviour (+1 followed, -1 broken;
    0 in data without the rule), until training alone has brought it to `p_weights`; and in the same way, by `heed_rate`, how much
    skills count. A stale failure counts `stale` times. What a step does not touch falls back by a share of `forgets` towards the
    untrained. A verdict is unknown or wrong with the last two.
    """

    p_base: float = 0.3
    p_skill: float = 0.9
    p_harm: float = 0.05
    p_weights: float = 0.6
    p_plain: float = 0.8
    rate: float = 3.0
    heed_rate: float = 0.5
    stale: float = 2.0
    forgets: float = 0.02
    unknown: float = 0.1
    wrong: float = 0.03

    def __post_init__(self) -> None:
        for name in ("p_base", "p_skill", "p_harm", "p_weights", "p_plain"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"{name} of {getattr(self, name)} is not between 0 and 1")


@dataclass(frozen=True, slots=True)
class Evolver:
    """How good a simulated evolver is: how often a draft is right or harmful (the rest is useless), how often one that is not right
    has a fault that the draft check sees, and how often it says nothing where a right skill is there already."""

    right: float
    harmful: float
    sloppy: float
    declines: float

    @property
    def useless(self) -> float:
        """The share of drafts that do nothing."""
        return 1.0 - self.right - self.harmful


EVOLVERS: Final[Mapping[EvolverName, Evolver]] = {
    "perfect": Evolver(right=1.0, harmful=0.0, sloppy=0.0, declines=1.0),
    "strong": Evolver(right=0.9, harmful=0.02, sloppy=0.5, declines=0.9),
    "weak": Evolver(right=0.5, harmful=0.15, sloppy=0.5, declines=0.5),
    "noisy": Evolver(right=0.3, harmful=0.6, sloppy=0.3, declines=0.0),
}


@dataclass(frozen=True, slots=True)
class Ablation:
    """What is changed. The values given here are what the product does by default.

    `separation` off ignores roles and the clock of skills: what taught a skill trains the weights, too. `weights` off serves
    whatever comes out of training.
    """

    gate: Gate = "full"
    flush: Flush = "full"
    scheduler: Scheduler = "forecast"
    evolver: EvolverName = "strong"
    separation: Switch = "on"
    weights: Switch = "on"

    @property
    def labels(self) -> tuple[str, ...]:
        """What differs from the product, as `name=value`, sorted."""
        usual = Ablation()
        names = sorted(one.name for one in fields(self))
        return tuple(f"{name}={getattr(self, name)}" for name in names if getattr(self, name) != getattr(usual, name))

    @staticmethod
    def of(labels: Mapping[str, str]) -> "Ablation":
        """From names and values. Raises ValueError naming what there is."""
        known = {name: get_args(kind) for name, kind in _KINDS.items()}
        for name, value in labels.items():
            if value not in known.get(name, ()):
                offered = "; ".join(f"{one}: {', '.join(values)}" for one, values in known.items())
                raise ValueError(f"there is no ablation {name}={value}; there are {offered}")
        return Ablation(**labels)  # type: ignore[arg-type]  # every value was just looked up in its own type


_KINDS: Final = {
    "gate": Gate,
    "flush": Flush,
    "scheduler": Scheduler,
    "evolver": EvolverName,
    "separation": Switch,
    "weights": Switch,
}


@dataclass(frozen=True, slots=True)
class Practice:
    """How the product is set, and the simulated cost of things. Its own defaults, but for two: a round stands for about three turns
    of an agent, so 12 rounds make a batch (32 turns by default) and a held-out round is drawn 12 times (a turn 4 times)."""

    min_failures: int = 3
    max_placed: int = 3
    canary_share: float = 0.8
    holdout_share: float = 0.05
    batch_turns: int = 12
    rollouts: int = 8
    steps: int = 4
    max_lag: int = 3
    held_out_share: float = 0.2
    draws_a_prompt: int = 12
    step_s: float = 900.0
    piece_s: float = 30.0
    prompt_tokens: int = 900
    skill_tokens: int = 120
    answer_tokens: int = 250
    draft_tokens: int = 2_500
    answer_s: float = 6.0
