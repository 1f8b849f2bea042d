"""Conditions of a run, and the proxy's settings each stands for: what is placed, what is learned,
whether weights are trained.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

from metaclaw.plugin import ConfigError
from metaclaw_bench.json_types import Json

Tree: TypeAlias = dict[str, dict[str, Json]]
"""Sections of a configuration file, each with its keys."""


class Gate(StrEnum):
    """What a learned skill must pass."""

    OFF = "off"
    LINT = "lint"
    SHADOW = "shadow"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Condition:
    """One way to run: `skills` are learned and placed, `weights` are trained. `changed` labels what
    differs from its usual form.
    """

    name: str
    skills: bool
    weights: bool
    gate: Gate = Gate.LINT
    changed: tuple[str, ...] = ()

    @property
    def learns(self) -> bool:
        """Whether anything carries over from day to day."""
        return self.skills or self.weights

    def with_gate(self, gate: Gate) -> "Condition":
        """The same with another gate, and labelled so; a condition without skills has none to
        change.
        """
        if gate is self.gate or not self.skills:
            return self
        return replace(
            self, gate=gate, changed=tuple(sorted({*self.changed, f"gate={gate.value}"}))
        )

    def settings(self, *, frozen: bool = False) -> Tree:
        """The proxy's configuration. `frozen` keeps what was learned and learns nothing more, for
        days that only measure.
        """
        learns = not frozen
        tree: Tree = {
            "skills": {
                "enabled": self.skills,
                "learn": self.skills and learns,
                "gate": self.gate.value,
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


def named(names: Iterable[str], gate: Gate | None = None) -> list[Condition]:
    """Conditions by name, each once, in the order given. Raises ConfigError for a name that is
    none.
    """
    found: dict[str, Condition] = {}
    for name in names:
        if name not in CONDITIONS:
            raise ConfigError(f"{name} is no condition; choose among {', '.join(CONDITIONS)}")
        found[name] = CONDITIONS[name] if gate is None else CONDITIONS[name].with_gate(gate)
    return list(found.values())


def as_toml(tree: Mapping[str, Mapping[str, Json]]) -> str:
    """Sections as TOML. Strings, numbers, booleans and lists are written in TOML as in JSON."""
    return "\n".join(
        "\n".join(
            [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items()), ""]
        )
        for section, keys in tree.items()
    )
