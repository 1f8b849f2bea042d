"""The library of example rules (`rule_examples.toml`): rules that people often want, each with its check."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from metaclaw.errors import SkillError
from metaclaw.skills.rule import ALWAYS
from metaclaw.skills.rules import RuleFields

_FILE: Final = "rule_examples.toml"


@dataclass(frozen=True, slots=True)
class RuleExample:
    """A rule of the library. `breaks` and `follows` are samples that its check is tried on; a program has none."""

    name: str
    text: str
    when: str
    check: str
    breaks: tuple[str, ...]
    follows: tuple[str, ...]

    @property
    def fields(self) -> RuleFields:
        """What is put in force when it is installed."""
        return {"text": self.text, "when": self.when, "check": self.check}


@cache
def rule_examples() -> dict[str, RuleExample]:
    """The library by name."""
    read = tomllib.loads((files("metaclaw.skills") / _FILE).read_text(encoding="utf-8"))
    return {
        name: RuleExample(
            name,
            one["text"],
            one.get("when", ALWAYS),
            one["check"].strip(),
            tuple(one.get("breaks", ())),
            tuple(one.get("follows", ())),
        )
        for name, one in read.items()
    }


def rule_example(name: str) -> RuleExample:
    """The example of this name. Raises SkillError."""
    found = rule_examples().get(name)
    if found is None:
        raise SkillError(f"there is no example {name}; metaclaw rules examples lists those there are")
    return found
