"""The calendar reader, a process of its own with limits on time and memory, since a calendar may be huge or hostile.

As a program it reads one query from its input and writes one reply: `python -m metaclaw.schedule.calendars.reader`.
"""

import os
import subprocess
import sys
from datetime import tzinfo
from typing import Final
from zoneinfo import ZoneInfo

import anyio
import msgspec

from metaclaw.schedule.calendars.query import CalendarError, CalendarEvent, CalendarQuery, CalendarReply
from metaclaw.schedule.clock import LocalZone

_MEMORY_BYTES: Final = 1024**3
_STARTING_S: Final = 30.0


async def read(question: CalendarQuery, *, starting_s: float = _STARTING_S) -> list[CalendarEvent]:
    """The events of a calendar; `starting_s` is how long the child may take to start. Raises CalendarError."""
    command = [sys.executable, "-m", "metaclaw.schedule.calendars.reader"]
    try:
        with anyio.fail_after(question.timeout_s + starting_s):
            done = await anyio.run_process(command, input=msgspec.json.encode(question), check=False, stderr=subprocess.PIPE)
    except TimeoutError:
        raise CalendarError(f"reading it takes longer than {question.timeout_s:g} s") from None
    except OSError as error:
        raise CalendarError(f"the process that reads it cannot be started ({error.strerror})") from error
    try:
        answer = msgspec.json.decode(done.stdout, type=CalendarReply)
    except msgspec.DecodeError:
        raise CalendarError(f"reading it failed (exit {done.returncode})") from None
    if answer.trouble is not None:
        raise CalendarError(answer.trouble)
    return answer.events


def answer_to(question: CalendarQuery) -> CalendarReply:
    """The reply to a query: events, or an error."""
    try:
        return CalendarReply(events=_read(question))
    except CalendarError as error:
        return CalendarReply(trouble=str(error))
    except ImportError:
        return CalendarReply(trouble="it needs the calendar extra: pip install 'metaclaw-proxy[calendar]'")
    except (MemoryError, RecursionError):
        return CalendarReply(trouble="it is too large to be read")


def _read(question: CalendarQuery) -> list[CalendarEvent]:
    zone: tzinfo = LocalZone()() if question.zone is None else ZoneInfo(question.zone)
    if question.kind == "google":
        from metaclaw.schedule.calendars.google import read_google

        return read_google(question, zone)
    if question.kind == "caldav":
        from metaclaw.schedule.calendars.ics import read_caldav

        return read_caldav(question, zone)
    from metaclaw.schedule.calendars.ics import read_ics

    return read_ics(question, zone)


def main() -> int:
    """Answer one query."""
    if sys.platform != "win32":
        import resource

        os.nice(10)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    answer = answer_to(msgspec.json.decode(sys.stdin.buffer.read(), type=CalendarQuery))
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
