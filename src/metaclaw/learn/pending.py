"""What learning has still to do, in numbers: whoever wants everything learned before going on waits until all of them are zero."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from metaclaw.config import Config
from metaclaw.domain.candidate import Standing
from metaclaw.learn.progress import ENDS_CURSOR, TURNS_CURSOR
from metaclaw.store import LedgerReader, SqlCandidates, SqlCursors

PENDING: Final = ("turns", "sessions", "lessons", "evolutions", "candidates")
_COUNTED: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def senses(config: Config) -> bool:
    """Whether turns get verdicts: skills are made of them, or weights trained with them."""
    policy = config.policy
    return config.skills.learn or (policy is not None and policy.mode != "skills_only")


class Learner(Protocol):
    """The fast loop, as far as only it knows what it is about."""

    @property
    def lessons(self) -> int:
        """Failures and words it has yet to look at, as far as it was told of them."""

    @property
    def writing(self) -> int:
        """Kinds of failure that somebody is making a skill of."""


class Pending:
    """Counts what is under way. A judge that is to be asked again in a minute is not waited for."""

    def __init__(self, reader: LedgerReader, cursors: SqlCursors, candidates: SqlCandidates, learner: Learner) -> None:
        self._reader = reader
        self._cursors = cursors
        self._candidates = candidates
        self._learner = learner
        self._has_looked_back = False

    def is_anything(self) -> bool:
        """Whether there is something to be learned from, or, when first asked, something left from before. Blocks."""
        if self._reader.turns_after(self._cursors.cursor(TURNS_CURSOR), 1) or self._sessions(1):
            return True
        if self._has_looked_back:
            return False
        self._has_looked_back = True
        unfinished = (Standing.DRAFT, Standing.SHADOW)
        return bool(self._candidates.interrupted()) or any(self._candidates.candidates(one, 1) for one in unfinished)

    def _sessions(self, limit: int) -> int:
        ends = _EPOCH + timedelta(microseconds=self._cursors.cursor(ENDS_CURSOR) + 1)
        return len(self._reader.sessions_ended(ends, None, limit))

    def count(self) -> Mapping[str, int]:
        """Turns that are not sensed yet, sessions whose end nobody has looked at, lessons, evolutions and candidates under way; of
        each at most a thousand. Blocks.

        Counted in the order in which one becomes the other, so that nothing slips by between two counts.
        """
        turns = len(self._reader.turns_after(self._cursors.cursor(TURNS_CURSOR), _COUNTED))
        sessions = self._sessions(_COUNTED)
        lessons, writing = self._learner.lessons, self._learner.writing
        evolutions = max(writing, len(self._candidates.interrupted()))
        drafts = len(self._candidates.candidates(Standing.DRAFT, _COUNTED))
        return dict(zip(PENDING, (turns, sessions, lessons, evolutions, drafts), strict=True))
