"""What people and programs may know about windows: facts as JSON, and the same in words."""

import math
from collections.abc import Sequence
from datetime import datetime

from metaclaw.schedule.reading import Named, Presence
from metaclaw.schedule.windows import Windows


def facts_of(windows: Windows) -> dict[str, object]:
    """The window, each signal's word, the forecast, and when the next window is expected."""
    readings = windows.readings()
    window = windows.window
    room_s = windows.room_s()
    expected = windows.expected(readings)
    next_at, because = (None, None) if window is not None else _next(readings)
    return {
        "open": window is not None,
        "reason": windows.shut_because if window is None else window.reason,
        "opened_at": None if window is None else window.opened.isoformat(),
        "by_hand": windows.is_by_hand,
        "signals": [_shown(one) for one in readings],
        "objections": list(windows.objections),
        "forecast": {
            "silence_s": round(windows.habits.silence_s, 1),
            "away_after_s": round(windows.habits.patience().away_s, 1),
            "expected_s": None if expected is None else round(expected.total_seconds(), 1),
            "room_s": round(room_s, 1) if window is not None and math.isfinite(room_s) else None,
            "from_history": windows.habits.are_known,
        },
        "next": {"at": None if next_at is None else next_at.isoformat(), "because": because},
    }


def _shown(one: Named) -> dict[str, object]:
    reading = one.reading
    until = None if reading.until is None else reading.until.isoformat()
    return {"name": one.signal, "says": reading.presence.value, "why": reading.why, "until": until, "trouble": reading.is_trouble}


def _next(readings: Sequence[Named]) -> tuple[datetime | None, str | None]:
    """The first moment at which something that does not say away now may do so."""
    vetoes = [one.reading.until for one in readings if one.reading.presence is Presence.PRESENT]
    if None in vetoes:
        return None, None
    earliest = max((until for until in vetoes if until is not None), default=None)
    if earliest is not None and any(one.reading.presence is Presence.AWAY for one in readings):
        return earliest, "if nothing happens until then"
    coming = [(one.reading.until, one.signal) for one in readings if one.reading.presence is Presence.UNKNOWN]
    known = sorted((until if earliest is None else max(until, earliest), signal) for until, signal in coming if until is not None)
    if known:
        return known[0]
    return earliest, None if earliest is None else "at the earliest"
