"""What `status` shows of learning: the work that is pending, and proposals that were rejected."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final, Protocol

from metaclaw.config import Config
from metaclaw.domain.candidate import Standing
from metaclaw.domain.skill import Skill
from metaclaw.learn.supervision import ENDS_CURSOR, LISTEN_CURSOR, TURNS_CURSOR
from metaclaw.ports import Purpose
from metaclaw.store import LedgerReader, SqlCandidates, SqlCursors
from metaclaw.text import shorten

PENDING: Final = ("turns", "sessions", "listening", "lessons", "evolutions", "candidates")
_COUNTED: Final = 1_000
_SHOWN: Final = 3
_SHOWN_CHARS: Final = 120
_DETAIL: Final = re.compile(r"[;:(]")
_NUMBER: Final = re.compile(r"\b\d[\d.,]*")


def senses(config: Config) -> bool:
    """Whether turns get verdicts: skills are made of them, or weights trained with them."""
    policy = config.policy
    return config.skills.learn or (policy is not None and policy.mode != "skills_only")


class LearnerCounts(Protocol):
    """Counts that only the running loops know."""

    @property
    def reading(self) -> int:
        """Messages of people that are being read."""

    @property
    def reached(self) -> int:
        """The last row of the ledger that was looked at for messages."""

    @property
    def lessons(self) -> int:
        """Failures it has yet to look at, as far as it was told of them."""

    @property
    def writing(self) -> int:
        """Groups of failures for which a skill is being written."""


@dataclass(eq=False)
class PendingWork:
    """Counts what is under way. A judge that is to be asked again in a minute is not waited for, and neither is what waits for the
    learning budget, possibly until midnight: `learning.budget.waiting` in `/api/status` tells of that. `waiting` is how many
    requests wait for the budget, by purpose; `listens` whether messages of people are read; `measured` up to which turn it is
    counted which rules were followed, where that is counted."""

    reader: LedgerReader
    cursors: SqlCursors
    candidates: SqlCandidates
    learner: LearnerCounts
    waiting: Callable[[], Mapping[str, int]] = dict
    _: KW_ONLY
    listens: bool = True
    measured: Callable[[], int | None] | None = None

    def __post_init__(self) -> None:
        self._has_looked_back = False

    def is_anything(self) -> bool:
        """Whether there is something to be learned from, or, when first asked, something left from before. Blocks."""
        if any(self._unread()) or self._unheard(self.waiting()):
            return True
        if self._has_looked_back:
            return False
        self._has_looked_back = True
        unfinished = (Standing.DRAFT, Standing.SHADOW)
        return bool(self.candidates.interrupted()) or any(self.candidates.candidates(one, 1) for one in unfinished)

    def _unread(self) -> tuple[int, int]:
        """Turns and session ends behind the cursors of sensing; of the turns also those in which no rule was looked at yet."""
        sensed = self.cursors.cursor(TURNS_CURSOR)
        measured = sensed if self.measured is None else self.measured()
        turns = self.reader.turns_behind(sensed if measured is None else min(sensed, measured))
        return turns, self.reader.ends_behind(self.cursors.cursor(ENDS_CURSOR))

    def _unheard(self, waiting: Mapping[str, int]) -> int:
        """Rows that were not looked at for messages yet, and messages that are being read."""
        if not self.listens:
            return 0
        reached = max(self.learner.reached, self.cursors.cursor(LISTEN_CURSOR))
        return self.reader.turns_behind(reached) + (0 if waiting.get(Purpose.LISTEN) else self.learner.reading)

    def count(self) -> Mapping[str, int]:
        """Count turns without a verdict, session ends not looked at, messages unread, lessons, evolutions and candidates under way.
        Blocks.

        Counted in the order in which one becomes the other, so that nothing slips by between two counts.
        """
        waiting = self.waiting()
        turns, sessions = self._unread()
        listening = self._unheard(waiting)
        lessons, writing = self.learner.lessons, self.learner.writing
        evolutions = 0 if waiting.get(Purpose.EVOLVE) else max(writing, len(self.candidates.interrupted()))
        drafts = 0 if waiting.get(Purpose.REPLAY) else self.candidates.count(Standing.DRAFT)
        return dict(zip(PENDING, (turns, sessions, listening, lessons, evolutions, drafts), strict=True))


def rejected_proposals(candidates: SqlCandidates) -> dict[str, object]:
    """The rejected proposals: how many for each reason, and the newest with what they say. Blocks."""
    reasons = Counter(map(_kind_of_reason, candidates.reasons(Standing.REJECTED, _COUNTED)))
    last = [
        {"name": one.proposal.skill.name, "text": _shown(one.proposal.skill), "reason": one.reason, "at": one.made_at.isoformat()}
        for one in candidates.candidates(Standing.REJECTED, _SHOWN)
    ]
    return {"reasons": dict(reasons.most_common()), "last": last}


def _kind_of_reason(reason: str) -> str:
    """The first reason without what is special to one proposal: `it holds a secret`, `its trigger has N words`."""
    first = _DETAIL.split(reason, maxsplit=1)[0]
    return _NUMBER.sub("N", first).strip() or "no reason given"


def _shown(skill: Skill) -> str:
    """The words that matter of a skill's text, on one line: a person's own where it quotes them."""
    quoted = [line.removeprefix("> ") for line in skill.body.splitlines() if line.startswith("> ")]
    return shorten(" ".join(quoted or [skill.body]), _SHOWN_CHARS)
