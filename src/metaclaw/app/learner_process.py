"""Supervision of the learner process, and the commands that are carried out for it.

The learner is started when there is something to learn from, and again if it dies. It sends
commands (`learn.store_rpc`) that are carried out here, in a thread, because the serving process
alone writes, publishes and has the embedded model. Neither the event loop nor a request ever waits
for the learner.

The next learner is told which items the last one was working on when it died. It sets an item aside
that several died of, which is announced."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final, TypeAlias

import anyio
from anyio.to_thread import run_sync

from metaclaw.domain.chat import ChatRequest, Delta, Json
from metaclaw.domain.compliance import MeasuredTurn, RuleResult
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import SKILLS_NAMED, LearnedFrom, Rule, Skill
from metaclaw.errors import LearnerError, MetaClawError, StoreError
from metaclaw.learn import (
    SET_ASIDE,
    Budget,
    CallError,
    CallResult,
    Channel,
    CrashRecord,
    ForgetSession,
    LearnerReport,
    LearnerStart,
    StoreCall,
    ToLearner,
    WakeLearner,
    WorkAttempts,
    WorkItem,
)
from metaclaw.ports import ModelProvider
from metaclaw.proxy import Acknowledgements, Reminders
from metaclaw.skills import SkillLibrary
from metaclaw.store import (
    Database,
    SqlCandidates,
    SqlCompliance,
    SqlCursors,
    SqlEpisodes,
    SqlLedger,
    SqlSpending,
    SqlUses,
    SqlVerdicts,
    writes_of,
)

log = logging.getLogger(__name__)

Command: TypeAlias = Callable[..., object]
Outbox = SimpleQueue[ToLearner | None]
_LOOK_EVERY_S: Final = 0.25
_PATIENCE_S: Final = 2.0
_SLOW: Final = frozenset(("generate",))


class LearnerProcess:
    """Runs one learner process at a time, from the moment `has_work` is true or `wake` is called.
    `commands` returns the commands it may send, by name, for an event loop."""

    def __init__(
        self,
        *,
        begin: Callable[[], LearnerStart],
        commands: Callable[[asyncio.AbstractEventLoop], Mapping[str, Command]],
        has_work: Callable[[], bool],
    ) -> None:
        """`has_work` blocks."""
        self._begin = begin
        self._commands = commands
        self._has_work = has_work
        self._wanted = anyio.Event()
        self._outbox: Outbox | None = None
        self._told: LearnerReport | None = None
        self._facts: Mapping[str, object] = {}
        self._attempts = WorkAttempts()
        self._set_aside: Mapping[WorkItem, int] = {}
        self.pid: int | None = None
        self.finished = 0
        """Commands carried out since the program started."""

    @property
    def facts(self) -> Mapping[str, object]:
        """The state of learning that the learner reported last, and the items set aside since the
        program started.
        """
        aside = [
            {"loop": piece.loop, "item": piece.item, "tries": tries}
            for piece, tries in self._set_aside.items()
        ]
        return {**self._facts, "set_aside": aside}

    @property
    def waiting(self) -> Mapping[str, int]:
        """How many of the learner's requests wait for the budget, by purpose."""
        return {} if self._told is None else self._told.waiting

    @property
    def loops(self) -> Mapping[str, str]:
        """The states of the learner's loops, by name."""
        return {} if self._told is None else self._told.loops

    @property
    def reading(self) -> int:
        """How many messages of people are being read."""
        return 0 if self._told is None else self._told.reading

    @property
    def reached(self) -> int:
        """The last row of the ledger that was looked at for messages."""
        return 0 if self._told is None else self._told.reached

    @property
    def lessons(self) -> int:
        """How many items it has yet to look at; 1 while a learner is starting."""
        return int(self._wanted.is_set()) if self._told is None else self._told.lessons

    @property
    def writing(self) -> int:
        """How many skills are being written."""
        return 0 if self._told is None else self._told.writing

    def wake(self) -> None:
        """Start a learner, or tell the running one that there is something to learn from."""
        self._wanted.set()
        self._say(WakeLearner())

    def forget_session(self, session: SessionId) -> None:
        """Have the learner drop everything it remembers of this session."""
        self._say(ForgetSession(session))

    async def run(self) -> None:
        """Run until cancelled. Raises LearnerError when the learner dies; call it again to start
        another one.
        """
        while not self._wanted.is_set() and not await run_sync(self._has_work):
            with anyio.move_on_after(_LOOK_EVERY_S):
                await self._wanted.wait()
        self._wanted.set()
        with CrashRecord() as crash_record:
            crash_record.write(self._attempts)
            status = await self._live(crash_record)
            died_of = crash_record.read()
        self._attempts = died_of.after_crash()
        busy_with = " and ".join(sorted(f"{loop} {item}" for loop, item in died_of.in_hand))
        raise LearnerError(
            "the learner ended by itself, with status"
            f" {status}{busy_with and f', busy with {busy_with}'}"
        )

    async def _live(self, crash_record: CrashRecord) -> int:
        """Start a learner, carry out its commands until it ends, and return its exit status."""
        process = await run_sync(_spawn, crash_record.handle)
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            channel = Channel(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()))
        outbox = Outbox()
        outbox.put(self._begin())
        self.pid, self._outbox = process.pid, outbox
        log.debug("learner_started pid=%d", process.pid)
        commands = self._commands(asyncio.get_running_loop())
        # A thread of its own, so that it takes none from the pool.
        talking = asyncio.ensure_future(
            run_sync(self._converse, channel, outbox, commands, limiter=anyio.CapacityLimiter(1))
        )
        try:
            await asyncio.shield(talking)
        finally:
            self._outbox = self._told = self.pid = None
            outbox.put(None)
            with anyio.CancelScope(shield=True):
                status = await run_sync(_end, process)
                with suppress(MetaClawError):
                    await talking
        return status

    def _say(self, message: ToLearner) -> None:
        """Queue a message without waiting for it to be sent."""
        if self._outbox is not None:
            self._outbox.put(message)

    def _converse(self, channel: Channel, outbox: Outbox, commands: Mapping[str, Command]) -> None:
        """Carry out the learner's commands, one after the other, until it is gone."""
        sender = threading.Thread(
            target=_send_all, args=(channel, outbox), name="to the learner", daemon=True
        )
        sender.start()
        try:
            while (message := channel.receive()) is not None:
                match message:
                    case LearnerReport():
                        self._tell_of(message.set_aside, commands)
                        self._told, self._facts = message, message.facts
                    case StoreCall(name=name) if name in _SLOW:
                        threading.Thread(
                            target=carry_out,
                            args=(message, commands, outbox),
                            name=name,
                            daemon=True,
                        ).start()
                    case StoreCall():
                        self.finished += carry_out(message, commands, outbox)
        finally:
            outbox.put(None)
            sender.join()

    def _tell_of(self, set_aside: Mapping[WorkItem, int], commands: Mapping[str, Command]) -> None:
        """Announce each newly set aside item once."""
        for piece in set_aside.keys() - self._set_aside.keys():
            self._set_aside = {**self._set_aside, piece: set_aside[piece]}
            said = {
                "loop": piece.loop,
                "item": piece.item,
                "tries": set_aside[piece],
                "reason": SET_ASIDE,
            }
            try:
                commands["announce"]("set_aside", said)
            except MetaClawError as error:
                log.warning("not_announced what=%s reason=%s", said, error)


def carry_out(call: StoreCall, commands: Mapping[str, Command], outbox: Outbox) -> bool:
    """Carry out one command and send the learner its result. Return whether it succeeded."""
    try:
        value = commands[call.name](*call.arguments)
    except MetaClawError as error:
        outbox.put(CallError(call.number, error))
    except Exception as error:  # the learner waits for an answer, whatever went wrong
        log.exception("store_call_failed name=%s", call.name)
        outbox.put(CallError(call.number, LearnerError(f"{call.name} could not be done: {error}")))
    else:
        outbox.put(CallResult(call.number, value))
        return True
    return False


def _send_all(channel: Channel, outbox: Outbox) -> None:
    """Send the queued messages; only this thread blocks if the learner does not read. Closing the
    channel ends the learner.
    """
    try:
        while (message := outbox.get()) is not None:
            channel.send(message)
    except OSError:
        return  # the learner has ended, which the reading side notices
    finally:
        channel.close()


def _spawn(crash_record: int) -> "subprocess.Popen[bytes]":
    """Start a learner in a process session of its own, so that Ctrl-C does not reach it: it ends
    when its input does.
    """
    command = [sys.executable, "-P", "-m", "metaclaw.app.learner", str(crash_record)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
        pass_fds=(crash_record,),
    )


def _end(process: "subprocess.Popen[bytes]") -> int:
    try:
        return process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


_ANNOUNCED_WITHIN_S: Final = 10.0


@dataclass(eq=False)
class WorkerCommands:
    """The commands by name, as `learn.store_rpc` sends them. All block; call them in a thread.
    `name_skills` places skills in full in a session; it is called on the event loop."""

    database: Database
    ledger: SqlLedger
    library: SkillLibrary
    models: Mapping[str, ModelProvider]
    budget: Budget
    reminders: Reminders | None = None
    acknowledgements: Acknowledgements | None = None
    name_skills: Command = lambda session, skills: None

    def __post_init__(self) -> None:
        self._compliance = SqlCompliance(self.database)
        self._counting = threading.Lock()

    def by_name(self, loop: asyncio.AbstractEventLoop) -> Mapping[str, Command]:
        """The commands; those that need the event loop run on `loop`."""

        def announce(kind: str, data: dict[str, Json]) -> bool:
            if kind == SKILLS_NAMED:
                loop.call_soon_threadsafe(self.name_skills, data["session"], data["skills"])
            try:
                return asyncio.run_coroutine_threadsafe(
                    self.ledger.announce(kind, data), loop
                ).result(_ANNOUNCED_WITHIN_S)
            except TimeoutError as error:
                raise StoreError(f"announcing {kind}: the ledger does not take it") from error

        def generate(provider: str, request: ChatRequest, version: int) -> tuple[Delta, ...]:
            return asyncio.run_coroutine_threadsafe(
                _whole(self.models[provider], request, version), loop
            ).result()

        stores = (SqlVerdicts, SqlCandidates, SqlCursors, SqlUses, SqlSpending, SqlEpisodes)
        return writes_of([*(store(self.database) for store in stores), self._compliance]) | {
            "SqlCompliance.record": self._record_compliance,
            "add_served": self.budget.count_served,
            "publish": self._publish,
            "announce": announce,
            "generate": generate,
        }

    def compliance_cursor(self) -> int | None:
        """Up to which turn compliance is counted and reminders are up to date. Blocks."""
        with self._counting:
            return self._compliance.cursor()

    def acknowledge_rules(
        self, put: Sequence[Skill], gone: Sequence[Skill], turns: Sequence[TurnId]
    ) -> None:
        """Have the sessions of these turns told in their next answer which rules they have added or
        retracted.
        """
        rules, retracted = (
            [skill for skill in skills if isinstance(skill, Rule)] for skills in (put, gone)
        )
        if self.acknowledgements is not None and (rules or retracted):
            self.acknowledgements.noted(rules, retracted, turns)

    def _record_compliance(self, measured: Sequence[MeasuredTurn], upto: int) -> None:
        """Count how rules are followed; a broken rule is reminded of from the next request on."""
        with self._counting:
            self._compliance.record(measured, upto)
            is_broken = any(
                outcome.result is RuleResult.BROKEN for one in measured for outcome in one.outcomes
            )
            if is_broken and self.reminders is not None:
                self.reminders.refresh()

    def _publish(
        self,
        put: Sequence[Skill],
        gone: Sequence[SkillName],
        reason: str,
        expected: Mapping[SkillName, str | None],
        learned: LearnedFrom | None,
        by_person: bool,
    ) -> int:
        view = self.library.view
        before = [skill for name in gone if (skill := view.get(name)) is not None]
        # A rule that only got another example has the same content.
        new = [
            skill
            for skill in put
            if (known := view.get(skill.name)) is None or known.content_hash != skill.content_hash
        ]
        published = self.library.publish(
            put, gone, reason, expected=expected, learned=learned, by_person=by_person
        )
        if learned is not None:
            self.acknowledge_rules(new, before, learned.turns)
        return published.generation


async def _whole(provider: ModelProvider, request: ChatRequest, version: int) -> tuple[Delta, ...]:
    async with aclosing(provider.generate(request, version)) as deltas:
        return tuple([delta async for delta in deltas])
