"""What a generated file-check demands: rules, the facts they are about, and the files they are
looked for in.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from metaclaw_bench.workdays.draw import Draw

Fact = Mapping[str, str]
"""What a question tells that a rule has a say about. `told` is how the question tells it, the rest
is the rule's own.
"""

Place = Literal["inline", "list", "top", "bottom", "name", "beside", "log"]
"""Where a rule's piece of text goes: into a line, on lines of its own, before or behind the rest,
into a name or a file beside.
"""

Assertion = tuple[str, bool]


class Context(TypedDict):
    """What a rule's `check` is told: which files to look at, how the rule is meant now, and the
    facts of the question.
    """

    targets: list[str]
    variant: str
    facts: Sequence[Fact]


class Target(TypedDict, total=False):
    """Which file is meant: `path`, or, where the name was left to the agent, its `folder`; `known`
    files are not it.
    """

    path: str
    folder: str
    known: Sequence[str]


class Part(TypedDict):
    """One file that a question asks for: what it must hold, and each rule with how it is meant and
    its facts.
    """

    target: Target
    holds: Sequence[str]
    rules: Sequence[tuple[str, str, Sequence[Fact]]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A house rule, as its file defines it. `variants` are the ways it can be meant; the first is
    the usual one. `begins` is the day from which on a plug-in rule is in force; for the built-in
    ones the plan says it."""

    id: str
    place: Place
    variants: tuple[str, ...]
    source: Path
    says: Callable[[str, str], str]
    example: Callable[[str], str]
    topic: Callable[[str], str]
    fact: "Callable[[Draw], Fact]"
    comply: Callable[[Fact, str], str]
    violate: Callable[[Fact, str], tuple[str, ...]]
    choices: Callable[[Fact, str], tuple[str, tuple[str, ...]]]
    check: Callable[[Mapping[str, str], Context], list[Assertion]]
    begins: int = 1
