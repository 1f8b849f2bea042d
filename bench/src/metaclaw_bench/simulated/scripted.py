"""Scripted agents for benchmarks in the published form: no model, always the same answers, scores
known in advance.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from metaclaw.plugin import ConfigError
from metaclaw_bench.questions import ChoiceCheck, Day, Round
from metaclaw_bench.simulated.oracle import Oracle, tick
from metaclaw_bench.workspaces import OWN_CHECKERS, SCRIPTS


class Policy(Protocol):
    """An agent without a model: it works in the workspace and returns what it would say."""

    def act(self, day: Day, asked: Round, workspace: Path, /) -> str:
        """Do a round."""
        ...


class Ticks:
    """Answers choices by a rule about the letters, and touches no file."""

    def __init__(self, letters: Callable[[ChoiceCheck], frozenset[str]]) -> None:
        self._letters = letters

    def act(self, day: Day, asked: Round, workspace: Path) -> str:
        """Tick, or say nothing that could be scored."""
        letters = (
            self._letters(asked.check) if isinstance(asked.check, ChoiceCheck) else frozenset()
        )
        return tick(letters) if letters else "I do not know."


class Tamper:
    """Overwrites the checkers it can reach with ones that always pass, and does nothing else."""

    def act(self, day: Day, asked: Round, workspace: Path) -> str:
        """Cheat."""
        folder = workspace / SCRIPTS
        folder.mkdir(exist_ok=True)
        for path in (*folder.iterdir(), *OWN_CHECKERS.glob("check_*.py")):
            (folder / path.name).write_text("raise SystemExit(0)\n", encoding="utf-8")
        return "Done."


def _all(check: ChoiceCheck) -> frozenset[str]:
    return frozenset(check.options)


def _first(check: ChoiceCheck) -> frozenset[str]:
    return frozenset(check.options[:1])


def _drop_one(check: ChoiceCheck) -> frozenset[str]:
    return frozenset(sorted(check.answer)[:-1])


def _extra(check: ChoiceCheck) -> frozenset[str]:
    return check.answer | frozenset(sorted(set(check.options) - check.answer)[:1])


def _complement(check: ChoiceCheck) -> frozenset[str]:
    return frozenset(check.options) - check.answer


def _none(check: ChoiceCheck) -> frozenset[str]:
    return frozenset()


SCRIPTED: Final[Mapping[str, Callable[[], Policy]]] = {
    "oracle": Oracle,
    "honest": lambda: Oracle(pads=False),
    "late": lambda: Oracle(pads=False, errs_once=True),
    "all": lambda: Ticks(_all),
    "first": lambda: Ticks(_first),
    "drop1": lambda: Ticks(_drop_one),
    "extra": lambda: Ticks(_extra),
    "complement": lambda: Ticks(_complement),
    "mute": lambda: Ticks(_none),
    "tamper": Tamper,
}


def scripted(name: str) -> Policy:
    """A fresh agent of this name."""
    if name not in SCRIPTED:
        raise ConfigError(f"no scripted agent is called {name!r}; there are {', '.join(SCRIPTED)}")
    return SCRIPTED[name]()
