"""The learner as the house sees it: a process beside serving, started when there is something to learn from, and again if it dies.

What it wants written, published or announced comes as calls (`learn.store_rpc`) and is done here, in a thread: the serving
process alone writes.
The event loop never waits for the learner, and neither does anything that serves.

What a learner had in hand when it died is told to the next one, which leaves alone what several have died of; that is announced.
"""

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.domain.ids import SessionId
from metaclaw.errors import LearnerError, MetaClawError
from metaclaw.learn import (
    SET_ASIDE,
    Attempts,
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
    WorkItem,
)

log = logging.getLogger(__name__)

Deed = Callable[..., object]
Outbox = SimpleQueue[ToLearner | None]
_LOOK_EVERY_S: Final = 0.25
_PATIENCE_S: Final = 2.0
_SLOW: Final = frozenset(("generate",))


class Learner:
    """One learner at a time, and none before `has_work` says that there is something to learn from, or somebody rings.

    `deeds` are the calls it may make, by name, on this event loop or in the thread they are called in.
    """

    def __init__(
        self,
        *,
        begin: Callable[[], LearnerStart],
        deeds: Callable[[asyncio.AbstractEventLoop], Mapping[str, Deed]],
        has_work: Callable[[], bool],
    ) -> None:
        """`has_work` blocks."""
        self._begin = begin
        self._deeds = deeds
        self._has_work = has_work
        self._wanted = anyio.Event()
        self._outbox: Outbox | None = None
        self._told: LearnerReport | None = None
        self._facts: Mapping[str, object] = {}
        self._attempts = Attempts()
        self._set_aside: Mapping[WorkItem, int] = {}
        self.pid: int | None = None
        self.finished = 0
        """Calls done for learners since the program started."""

    @property
    def facts(self) -> Mapping[str, object]:
        """How learning is, as a learner said last, and what learners have set aside since the program started."""
        aside = [{"loop": piece.loop, "item": piece.item, "tries": tries} for piece, tries in self._set_aside.items()]
        return {**self._facts, "set_aside": aside}

    @property
    def waiting(self) -> Mapping[str, int]:
        """How many requests of the learner wait for the budget, by purpose."""
        return {} if self._told is None else self._told.waiting

    @property
    def loops(self) -> Mapping[str, str]:
        """How the learner's loops are."""
        return {} if self._told is None else self._told.loops

    @property
    def reading(self) -> int:
        """Messages of people that are being read."""
        return 0 if self._told is None else self._told.reading

    @property
    def reached(self) -> int:
        """The last row of the ledger that was looked at for messages."""
        return 0 if self._told is None else self._told.reached

    @property
    def lessons(self) -> int:
        """What it has yet to look at; one that has just been started, or is to be, has everything before it."""
        return int(self._wanted.is_set()) if self._told is None else self._told.lessons

    @property
    def writing(self) -> int:
        """Kinds of failure of which somebody is making a skill."""
        return 0 if self._told is None else self._told.writing

    def wake(self) -> None:
        """There is something to learn from."""
        self._wanted.set()
        self._say(WakeLearner())

    def let_go(self, session: SessionId) -> None:
        """Nothing of this session may be remembered."""
        self._say(ForgetSession(session))

    async def run(self) -> None:
        """Until cancelled. Raises LearnerError where the learner dies; run again, there is another one."""
        while not self._wanted.is_set() and not await run_sync(self._has_work):
            with anyio.move_on_after(_LOOK_EVERY_S):
                await self._wanted.wait()
        self._wanted.set()
        with CrashRecord() as crash_record:
            crash_record.write(self._attempts)
            status = await self._live(crash_record)
            died_of = crash_record.read()
        self._attempts = died_of.after_death()
        busy_with = " and ".join(sorted(f"{loop} {item}" for loop, item in died_of.in_hand))
        raise LearnerError(f"the learner ended by itself, with status {status}{busy_with and f', busy with {busy_with}'}")

    async def _live(self, crash_record: CrashRecord) -> int:
        """From a learner's start to its end; its exit status."""
        process = await run_sync(_spawn, crash_record.handle)
        assert process.stdin is not None
        assert process.stdout is not None
        outbox, channel = Outbox(), Channel(process.stdout, process.stdin)
        outbox.put(self._begin())
        self.pid, self._outbox = process.pid, outbox
        log.debug("learner_started pid=%d", process.pid)
        deeds = self._deeds(asyncio.get_running_loop())
        # A thread of its own, which nobody else's work has to wait for.
        talking = asyncio.ensure_future(run_sync(self._converse, channel, outbox, deeds, limiter=anyio.CapacityLimiter(1)))
        try:
            await asyncio.shield(talking)
        finally:
            self._outbox = self._told = self.pid = None
            outbox.put(None)
            with anyio.CancelScope(shield=True):
                status = await run_sync(_end, process)
                with suppress(MetaClawError):
                    await talking
                process.stdout.close()
        return status

    def _say(self, message: ToLearner) -> None:
        """Without waiting for whether it is heard."""
        if self._outbox is not None:
            self._outbox.put(message)

    def _converse(self, channel: Channel, outbox: Outbox, deeds: Mapping[str, Deed]) -> None:
        """Do what the learner asks for, one thing after the other, until it is gone."""
        sender = threading.Thread(target=_send_all, args=(channel, outbox), name="to the learner", daemon=True)
        sender.start()
        try:
            while (message := channel.receive()) is not None:
                match message:
                    case LearnerReport():
                        self._tell_of(message.set_aside, deeds)
                        self._told, self._facts = message, message.facts
                    case StoreCall(name=name) if name in _SLOW:
                        threading.Thread(target=carry_out, args=(message, deeds, outbox), name=name, daemon=True).start()
                    case StoreCall():
                        self.finished += carry_out(message, deeds, outbox)
        finally:
            outbox.put(None)
            sender.join()

    def _tell_of(self, set_aside: Mapping[WorkItem, int], deeds: Mapping[str, Deed]) -> None:
        """Whatever is set aside is an event, once."""
        for piece in set_aside.keys() - self._set_aside.keys():
            self._set_aside = {**self._set_aside, piece: set_aside[piece]}
            said = {"loop": piece.loop, "item": piece.item, "tries": set_aside[piece], "reason": SET_ASIDE}
            try:
                deeds["announce"]("set_aside", said)
            except MetaClawError as error:
                log.warning("not_announced what=%s reason=%s", said, error)


def carry_out(call: StoreCall, deeds: Mapping[str, Deed], outbox: Outbox) -> bool:
    """Do one thing for the learner and tell it the result. Return whether it succeeded."""
    try:
        value = deeds[call.name](*call.arguments)
    except MetaClawError as error:
        outbox.put(CallError(call.number, error))
    except Exception as error:  # the caller waits for an answer
        log.exception("store_call_failed name=%s", call.name)
        outbox.put(CallError(call.number, LearnerError(f"{call.name} could not be done: {error}")))
    else:
        outbox.put(CallResult(call.number, value))
        return True
    return False


def _send_all(channel: Channel, outbox: Outbox) -> None:
    """Only this thread waits where a learner does not listen. At the end it says no more, and that ends the learner."""
    try:
        while (message := outbox.get()) is not None:
            channel.send(message)
    except OSError:
        return  # it has gone, and whoever reads what it says will notice
    finally:
        channel.close()


def _spawn(crash_record: int) -> "subprocess.Popen[bytes]":
    """A session of its own keeps a terminal's Ctrl-C away from it: it ends when its input does."""
    command = [sys.executable, "-P", "-m", "metaclaw.app.learner", str(crash_record)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True, pass_fds=(crash_record,)
    )


def _end(process: "subprocess.Popen[bytes]") -> int:
    try:
        return process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
