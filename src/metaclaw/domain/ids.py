"""Types of identifiers, and new identifiers that sort by time."""

import os
import random
import time
from typing import NewType

TurnId = NewType("TurnId", str)
SessionId = NewType("SessionId", str)
SkillName = NewType("SkillName", str)

# Unique, not secret. `os.urandom` is a system call that releases the interpreter lock, several
# times a request.
_random = random.Random(random.SystemRandom().getrandbits(256))
if hasattr(os, "register_at_fork"):
    # Otherwise a forked process would draw the same numbers as its parent.
    os.register_at_fork(after_in_child=lambda: _random.seed(random.SystemRandom().getrandbits(256)))


def new_id(prefix: str) -> str:
    """A unique identifier that sorts by time: prefix, 48 bits of milliseconds, 80 random bits, in
    hexadecimal.
    """
    return f"{prefix}{time.time_ns() // 1_000_000:012x}{_random.getrandbits(80):020x}"


def new_turn_id() -> TurnId:
    return TurnId(new_id("t_"))


def new_session_id() -> SessionId:
    return SessionId(new_id("s_"))
