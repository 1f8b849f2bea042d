"""Conditions of a run, and the proxy's settings each stands for: what is placed, what is learned,
whether weights are trained.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from metaclaw.plugin import ConfigError
from metaclaw_bench.json_types import Json

Tree: TypeAlias = dict[str, dict[str, Json]]
"""Sections of a configuration file, each with its keys."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One way to run: `skills` are learned and placed, `weights` are trained. `changed` labels what
    differs from its usual form.
    """

    name: str
    skills: bool
    weights: bool
    changed: tuple[str, ...] = ()

    @property
    def learns(self) -> bool:
        """Whether anything carries over from day to day."""
        return self.skills or self.weights

    def settings(self, *, frozen: bool = False) -> Tree:
        """The proxy's configuration. `frozen` keeps what was learned and learns nothing more, for
        days that only measure.
        """
        learns = not frozen
        tree: Tree = {
            "skills": {
                "enabled": self.skills,
                "learn": self.skills and learns,
                "gate": "lint",
            },
            # A benchmark is short: every turn that nobody else can decide is judged.
            "judge": {"max_share": 1.0 if self.learns and learns else 0.0},
        }
        if self.weights:
            # Weights are trained between days and at no other time: no window opens by itself.
            tree["policy"] = {"mode": "auto" if learns else "skills_only"}
            tree["schedule"] = {"sleep": [], "idle_minutes": 1440.0}
        return tree


CONDITIONS: Final[Mapping[str, Condition]] = {
    one.name: one
    for one in (
        Condition("baseline", skills=False, weights=False),
        Condition("skills", skills=True, weights=False),
        Condition("rl", skills=False, weights=True),
        Condition("full", skills=True, weights=True),
    )
}


def named(names: Iterable[str]) -> list[Condition]:
    """Conditions by name, each once, in the order given. Raises ConfigError for a name that is
    none.
    """
    chosen = dict.fromkeys(names)
    if unknown := [name for name in chosen if name not in CONDITIONS]:
        raise ConfigError(f"{unknown[0]} is no condition; choose among {', '.join(CONDITIONS)}")
    return [CONDITIONS[name] for name in chosen]


def as_toml(tree: Mapping[str, Mapping[str, Json]]) -> str:
    """Sections as TOML. Strings, numbers, booleans and lists are written in TOML as in JSON."""
    return "\n".join(
        "\n".join(
            [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items()), ""]
        )
        for section, keys in tree.items()
    )
