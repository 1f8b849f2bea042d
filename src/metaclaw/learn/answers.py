"""Answers of the models that judge and write which cannot be used: how many in a row, so that `status` tells people about them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from metaclaw.domain.chat import Json
from metaclaw.text import shorten

JUDGE: Final = "judge"
EVOLVER: Final = "evolver"
# One vote in a few may be unreadable; an evolver is asked seldom, and its answer is all that becomes of the failures.
_LEAST_IN_A_ROW: Final = {JUDGE: 3, EVOLVER: 1}
_REASON_CHARS: Final = 200

Answered = Callable[[str, str | None], None]
"""Is told the name of a model that answered, and why the answer cannot be used; None where it can."""


@dataclass(slots=True)
class _Unusable:
    answers: int = 0
    reason: str = ""
    at: str = ""


@dataclass(eq=False)
class UnusableAnswers:
    """Counts them for each role (judge, evolver) and model, from the last answer that could be used."""

    _found: dict[tuple[str, str], _Unusable] = field(default_factory=dict)

    def of(self, role: str) -> Answered:
        """The function to tell of the answers in this role."""

        def answered(model: str, fault: str | None) -> None:
            if fault is None:
                self._found.pop((role, model), None)
                return
            one = self._found.setdefault((role, model), _Unusable())
            one.answers += 1
            one.reason, one.at = shorten(fault, _REASON_CHARS), datetime.now(UTC).isoformat(timespec="seconds")

        return answered

    @property
    def facts(self) -> list[Json]:
        """For `status`: the models whose last answers could not be used, with how many, why, and when."""
        return [
            {"role": role, "model": model, "answers": one.answers, "reason": one.reason, "at": one.at}
            for (role, model), one in self._found.items()
            if one.answers >= _LEAST_IN_A_ROW[role]
        ]
