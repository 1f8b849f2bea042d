"""The procedure loop: commands that three sessions of one project ran in the same order become a
question to the person: a skill with a script in its folder.

No model is asked and nothing is run: the script has the commands' own words, and arguments where
they differed. It is written once the person has approved it (`learn.owner`). A procedure is asked
about once, whatever the answer was."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.candidate import Change, Proposal
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.turn import Scope
from metaclaw.learn.admission import CandidateAdmission, claimed, free_turns
from metaclaw.learn.lessons import LESSON_ATTEMPT
from metaclaw.learn.steps import RecordedSteps
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.learn.supervision import AttemptLog, LoopWakeup, RetryGuard
from metaclaw.outcome import Command, Procedure, procedure_in, runs_of
from metaclaw.skills import free_name, scope_of_lesson, script_path, slug
from metaclaw.store import LedgerReader, SqlCandidates, SqlCursors

log = logging.getLogger(__name__)

PROCEDURES_CURSOR: Final = "procedures"
_SESSIONS: Final = 3
_REMEMBERED: Final = 200
_SESSIONS_AT_ONCE: Final = 64
_MOST_ASKED: Final = 1_000
_POLL_S: Final = 1.0
_NAME_CHARS: Final = 40
_KIND: Final = "procedure: "
_BETWEEN: Final = " · "


@dataclass(frozen=True, slots=True)
class _Read:
    """What a session ran, for one person in one project, and its last turn."""

    scope: Scope
    turn: TurnId
    runs: list[tuple[Command, ...]]


@dataclass(eq=False, kw_only=True)
class ProcedureLoop:
    """Reads each session once it has ended, and compares it with the last 200."""

    reader: LedgerReader
    cursors: SqlCursors
    recorded: RecordedSteps
    candidates: SqlCandidates
    library: AnyLibrary
    admission: CandidateAdmission
    redact: Callable[[str], str]
    attempt_log: AttemptLog

    def __post_init__(self) -> None:
        self.wakeup = LoopWakeup()
        self._guard = RetryGuard("procedures", self.attempt_log)
        self._known: OrderedDict[SessionId, _Read] = OrderedDict()
        self._after = self._reached = -1

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self.look()
            await self.wakeup.wait(_POLL_S)

    async def look(self) -> None:
        """Read the sessions that ended since the last look."""
        if self._after < 0:  # what was remembered before the start is read again
            self._reached = await run_sync(self.cursors.cursor, PROCEDURES_CURSOR)
            self._after = max(0, self._reached - _REMEMBERED)
        for ended in await run_sync(self.reader.sessions_ended, self._after, _SESSIONS_AT_ONCE):
            async with self._guard.attempt(ended.id) as may:
                if may and not ended.is_open:
                    await self._read(ended.id)
            self._after = ended.seq
            if ended.seq > self._reached:
                self._reached = ended.seq
                await run_sync(self.cursors.move_cursor, PROCEDURES_CURSOR, ended.seq)

    def forget(self, session: SessionId) -> None:
        """Drop a session that is to be forgotten."""
        self._known.pop(session, None)

    async def _read(self, session: SessionId) -> None:
        read = await run_sync(self._session, session)
        self._known.pop(session, None)
        if read is None:
            return
        others = {name: one for name, one in self._known.items() if one.scope == read.scope}
        runs = [one.runs for one in others.values()]
        found = await run_sync(procedure_in, read.runs, runs, _SESSIONS)
        self._known[session] = read
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        if found is None or await run_sync(self._was_asked, found[0], read.scope):
            return
        same = [list(others)[place] for place in found[1]]
        await self._ask(found[0], read.scope, [session, *same])

    def _session(self, session: SessionId) -> _Read | None:
        read = self.recorded.conversation(session)
        if read is None:
            return None
        scope, runs = read[0].scope, runs_of(read[1])
        if scope.workspace is None or not runs:
            return None
        return _Read(Scope(scope.user, scope.workspace), read[0].turn, runs)

    async def _ask(self, procedure: Procedure, scope: Scope, sessions: list[SessionId]) -> None:
        """Ask the person about a procedure, unless it holds a secret or has trained weights."""
        script = procedure.script("script")
        if await run_sync(self.redact, script) != script:
            return
        taught = await run_sync(free_turns, self.reader, sessions)
        if taught is None:
            return
        support = tuple(self._known[name].turn for name in sessions)
        generation = self.library.view.generation
        async with claimed(self.candidates, LESSON_ATTEMPT, generation, taught) as may:
            if may:
                proposal = self._proposal(procedure, scope, support)
                await self.admission.ask(proposal, _reason(procedure))

    def _proposal(
        self, procedure: Procedure, scope: Scope, support: tuple[TurnId, ...]
    ) -> Proposal:
        wanted = slug(dict.fromkeys(" ".join(procedure.heads).split()), _NAME_CHARS)
        name = free_name(wanted, lambda name: self.library.view.get(name) is not None)
        script = procedure.script(f"{name}.sh")
        call = [f"sh {script_path(self.library.folder, name)}"]
        call += [f"ARGUMENT{number}" for number in range(1, len(procedure.arguments) + 1)]
        body = (
            "Earlier sessions ran these commands in this order, in the project's folder. One script"
            f" does it:\n\n    {' '.join(call)}\n\nIt runs:\n\n```sh\n{script}```"
        )
        skill = Skill(
            name,
            f"When this is to be done in this project, in this order: {', '.join(procedure.heads)}",
            body,
            category="procedure",
            scope=scope_of_lesson(scope),
            state=SkillState.DRAFT,
            author=Authorship.EVOLVER,
            workspace=scope.workspace,
        )
        kind = _KIND + _BETWEEN.join(procedure.heads)
        return Proposal(skill, Change.NEW, (), support, kind, "metaclaw", script=script)

    def _was_asked(self, procedure: Procedure, scope: Scope) -> bool:
        """Whether the person was asked about most of it before."""
        mine = set(procedure.heads)
        for candidate in self.candidates.candidates(None, _MOST_ASKED):
            proposal = candidate.proposal
            skill = proposal.skill
            is_theirs = (skill.scope, skill.workspace) == (scope_of_lesson(scope), scope.workspace)
            if is_theirs and proposal.kind.startswith(_KIND):
                asked = set(proposal.kind.removeprefix(_KIND).split(_BETWEEN))
                if 2 * len(mine & asked) >= min(len(mine), len(asked)):
                    return True
        return False


def _reason(procedure: Procedure) -> str:
    return (
        f"{_SESSIONS} sessions of this project ran these {len(procedure.lines)} commands in the same"
        " order; the script is written when you approve it, and MetaClaw never runs it"
    )
