"""Identifiers: distinct types for distinct things, sortable by birth where we make them."""

import random
import time
from typing import NewType

TurnId = NewType("TurnId", str)
SessionId = NewType("SessionId", str)
SkillName = NewType("SkillName", str)

# Unique, not secret. The system's own source is a call into the kernel that lets other threads in, several times a request.
_random = random.Random(random.SystemRandom().getrandbits(256))


def new_id(prefix: str) -> str:
    """A unique identifier that sorts by time of birth: prefix, 48 bits of milliseconds, 80 random bits, in hexadecimal."""
    return f"{prefix}{time.time_ns() // 1_000_000:012x}{_random.getrandbits(80):020x}"


def new_turn_id() -> TurnId:
    """A fresh turn id."""
    return TurnId(new_id("t_"))


def new_session_id() -> SessionId:
    """A fresh session id."""
    return SessionId(new_id("s_"))
