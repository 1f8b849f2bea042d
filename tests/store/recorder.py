"""A program that records turns until it is killed and prints the id of each one it was told is on
disk.

python recorder.py URL endless             many clients at once, conversations that grow
python recorder.py URL full                a disk that gets full (a limit on file size) and free again
python recorder.py URL once                one turn, then the state of the store
"""

import asyncio
import os
import resource
import sys
from datetime import UTC, datetime

from metaclaw.domain.chat import Finish, SampledTokens, Wire
from metaclaw.domain.ids import SessionId, SkillName, new_session_id, new_turn_id
from metaclaw.domain.status import Health
from metaclaw.domain.turn import (
    Exchange,
    Placement,
    Scope,
    Splice,
    Stamp,
    Times,
    Turn,
    TurnEnd,
    TurnKind,
)
from metaclaw.store import LedgerLimits, SqlLedger, open_database

NOBODY = 65534


def make_turn(session: SessionId, request: bytes) -> Turn:
    turn = new_turn_id()
    return Turn(
        id=turn,
        session=session,
        kind=TurnKind.MAIN,
        kind_reason="recorder",
        scope=Scope(),
        stamp=Stamp(0, 0, "", ()),
        agent="recorder",
        wire=Wire.CHAT,
        path="/v1/chat/completions",
        stream=False,
        model="m",
        provider="p",
        provider_wire=Wire.CHAT,
        status=200,
        end=TurnEnd.COMPLETED,
        error=None,
        exchange=Exchange(request, (Splice(1, b"skill"),), said=turn.encode()),
        finish=Finish.STOP,
        usage=None,
        tokens=SampledTokens((1,), (2,), (-0.5,)),
        times=Times(datetime.now(UTC), None, 0.1),
        placements=(Placement(b"", (SkillName("skill"),), "skill"),),
    )


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


async def endless(ledger: SqlLedger) -> None:
    async def client() -> None:
        while True:
            session, body = new_session_id(), b"{"
            for number in range(40):
                body += b'"%d":"%s",' % (number, b"word " * 40)
                turn = make_turn(session, body)
                if await ledger.record(turn):
                    say(turn.id)

    await asyncio.gather(*(client() for _ in range(8)))


async def full(ledger: SqlLedger) -> None:
    """Prints the ids that are durable, `degraded` with its reason, and at the end how many were
    lost.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
    turns = [make_turn(new_session_id(), bytes([number]) * 20_000) for number in range(60)]
    kept = [await ledger.record(turn) for turn in turns]
    say(f"{ledger.health.health} {ledger.health.reason}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    while ledger.health.health is not Health.HEALTHY or ledger.health.waiting_turns:
        await asyncio.sleep(0.01)
    say(f"at once {sum(kept)} lost {ledger.health.lost_turns}")
    for turn in turns:
        say(turn.id)


async def huge(ledger: SqlLedger) -> None:
    """Prints how many turns were lost at the end, and the ids of those that must not be."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, hard))
    small = [make_turn(new_session_id(), b"small") for _ in range(20)]
    turns = [*small[:10], make_turn(new_session_id(), bytes(6 << 20)), *small[10:]]
    await asyncio.gather(*(ledger.record(turn) for turn in turns))
    while ledger.health.health is not Health.HEALTHY or ledger.health.waiting_turns:
        await ledger.announce("still here", {})
        await asyncio.sleep(0.01)
    say(f"lost {ledger.health.lost_turns}")
    for turn in small:
        say(turn.id)


async def read_only(ledger: SqlLedger) -> None:
    kept = await ledger.record(make_turn(new_session_id(), b"{}"))
    say(f"{kept} {ledger.health.health} {ledger.health.reason}")


async def main(url: str, mode: str) -> None:
    database = open_database(url)
    if mode == "read-only":
        database.close()
        if os.getuid() == 0:  # root may write anything
            os.seteuid(NOBODY)
    ledger = SqlLedger(
        database, LedgerLimits(retry_first_s=0.01, retry_max_s=0.1, close_patience_s=0.1)
    )
    await ledger.start()
    await {"endless": endless, "full": full, "huge": huge, "read-only": read_only}[mode](ledger)
    await ledger.aclose()
    database.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
