"""Steps from the ledger: a recorded turn with what came before and after it, as it is known now."""

from dataclasses import dataclass, replace
from typing import Final

from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import TurnId
from metaclaw.domain.step import Step
from metaclaw.learn.steps import StepBuilder
from metaclaw.store import LedgerReader, RecordedTurn

_LOOK_AHEAD: Final = 6
_LOOK_BACK: Final = 12


@dataclass(frozen=True, slots=True)
class Followed:
    """A step, and the turn that went on from it, where there is one."""

    step: Step
    followed_by: TurnId | None


class RecordedSteps:
    """Reads turns. Blocks."""

    def __init__(self, reader: LedgerReader, builder: StepBuilder) -> None:
        self._reader = reader
        self._builder = builder

    def step(self, turn: TurnId) -> Step | None:
        """The step of a main turn; None where there is none, or its request cannot be read."""
        found = self.with_following(turn)
        return None if found is None else found.step

    def with_following(self, turn: TurnId) -> Followed | None:
        """The same, with the turn that went on from it."""
        recorded = self._reader.turn(turn)
        if recorded is None:
            return None
        following = self._following(recorded)
        session = self._reader.session(recorded.turn.session)
        is_ended = session is not None and session.ended_at is not None
        step = self.build(recorded, following, is_last=is_ended and following is None)
        return None if step is None else Followed(step, None if following is None else following.turn.id)

    def alone(self, turn: TurnId) -> Step | None:
        """A turn without what came after it."""
        recorded = self._reader.turn(turn)
        return None if recorded is None else self.build(recorded, None)

    def build(self, recorded: RecordedTurn, following: RecordedTurn | None, *, is_last: bool = False) -> Step | None:
        """The step of a turn whose following turn is known. Where its request does not say what it is about, because the client
        left the conversation with the provider, the turns before it are read too."""
        step = self._builder.build(recorded, following, is_last)
        if step is None or step.task or recorded.turn.wire is not Wire.RESPONSES:
            return step
        before = self._before(recorded)
        return step if before is None else self._builder.build(recorded, following, is_last, before)

    def _following(self, recorded: RecordedTurn) -> RecordedTurn | None:
        """The turn that goes on where this one ended; one of another thread, or the same request sent again, is passed over."""
        later: list[RecordedTurn] = []
        row = self._reader.next_main_turn(recorded.turn.session, recorded.seq)
        while row is not None and len(later) < _LOOK_AHEAD:
            found = self._reader.turn(row.id)
            if found is not None:
                later.append(found)
                if (following := self._builder.following(recorded, later)) is not None:
                    return following
            row = self._reader.next_main_turn(recorded.turn.session, row.seq)
        return None

    def _before(self, recorded: RecordedTurn) -> Step | None:
        rows = self._reader.main_turns_before(recorded.turn.session, recorded.seq, _LOOK_BACK)
        earlier = [found for row in reversed(rows) if (found := self._reader.turn(row.id)) is not None]
        for at in range(len(earlier)):
            chain = self._builder.chain([*earlier[at:], recorded])
            if chain and chain[-1].turn == recorded.turn.id:
                return chain[-1].previous
        return None


def without_bodies(step: Step) -> Step:
    """The step without what takes much room: enough to compare it with others by."""
    return replace(step, history=(), tools=(), after=(), answer=(), previous=None)
