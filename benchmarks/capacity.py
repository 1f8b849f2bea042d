"""What turns, lessons and users take on disk and in memory, at two sizes each.

    python -m benchmarks.capacity [--turns 10000 50000] [--lessons 1000 10000]

Turns go through the store's own writer to SQLite, 20 to a session; each request repeats the one
before with its answer (600 characters of words) and adds a message of 300. Lessons are made-up
skills, held in the index that serves requests. Every row is measured in a process of its own."""

import argparse
import asyncio
import gc
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import uvloop

from benchmarks.ledger import _turn
from benchmarks.retrieval_library import TRADES
from metaclaw.domain.ids import SkillName, new_session_id
from metaclaw.domain.skill import Skill
from metaclaw.skills import SkillIndex
from metaclaw.store import SqlLedger, open_database

_TURNS_OF_SESSION = 20
_AT_ONCE = 64
_WORDS = [word for trade in TRADES for words in trade for word in words]


def _text(dice: random.Random, characters: int) -> str:
    return " ".join(dice.choices(_WORDS, k=characters // 8))[:characters]


def _memory_mb() -> float:
    """What this process has in memory now, without what could be given back."""
    gc.collect()
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096 / 1e6


async def _record(turns: int, folder: Path) -> None:
    """Record so many turns in conversations, 64 of them at a time, and say what that took."""
    database = open_database(f"sqlite:///{folder}/ledger.db")
    ledger = SqlLedger(database)
    await ledger.start()
    dice, before_mb, cpu_s = random.Random(1), _memory_mb(), 0.0
    for _ in range(turns // (_AT_ONCE * _TURNS_OF_SESSION) + 1):
        sessions = [(new_session_id(), list[dict[str, str]]()) for _ in range(_AT_ONCE)]
        for _ in range(_TURNS_OF_SESSION):
            made = []
            for session, messages in sessions:
                messages.append({"role": "user", "content": _text(dice, 300)})
                turn = _turn(session, json.dumps({"model": "m", "messages": messages}).encode())
                answer = {"role": "assistant", "content": _text(dice, 600)}
                said = json.dumps({"choices": [{"message": answer}]}).encode()
                made.append(replace(turn, exchange=replace(turn.exchange, said=said)))
                messages.append(answer)
            began_s = time.process_time()
            recorded = await asyncio.gather(*map(ledger.record, made))
            cpu_s += time.process_time() - began_s
            if not all(recorded):
                raise SystemExit(f"not recorded: {ledger.health}")
    after_mb = _memory_mb()
    await ledger.aclose()
    with database.reading("counting") as connection:
        found = connection.exec_driver_sql("SELECT count(*) FROM turns").scalar_one()
    database.close()
    disk_mb = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    print(
        f"{found:>8,} turns   {disk_mb:9.1f} MB on disk ({disk_mb * 1e3 / found:.2f} kB each)"
        f"   memory +{after_mb - before_mb:.1f} MB   {cpu_s / found * 1e3:.2f} ms of processor each"
    )


def _hold(lessons: int, users: int) -> None:
    """Hold so many lessons of so many users in the index, and say what that takes."""
    dice, before_mb = random.Random(1), _memory_mb()
    index = SkillIndex().changed(
        [
            Skill(
                SkillName(f"lesson-{number}"),
                _text(dice, 80),
                _text(dice, 300),
                scope=f"user:u{number % users}",
            )
            for number in range(lessons)
        ]
    )
    held_mb = _memory_mb() - before_mb
    print(
        f"{lessons:>8,} lessons of {users:>5,} users   memory +{held_mb:.1f} MB"
        f" ({held_mb * 1e3 / lessons:.1f} kB each)",
        flush=True,
    )
    del index


def main() -> None:
    """Measure everything, each row in a process of its own; or the one row that is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, nargs="+", default=[10_000, 50_000])
    parser.add_argument("--lessons", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--row", nargs="+", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    match options.row:
        case [turns]:
            with tempfile.TemporaryDirectory() as folder:
                uvloop.run(_record(turns, Path(folder)))
        case [lessons, users]:
            _hold(lessons, users)
        case _:
            rows = [[turns] for turns in options.turns]
            rows += [[lessons, users] for lessons in options.lessons for users in (1, 1_000)]
            for row in rows:
                command = [sys.executable, "-m", "benchmarks.capacity", "--row", *map(str, row)]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
