"""Identifiers: distinct types for distinct things, sortable by birth where we make them."""

import os
import time
from typing import NewType

TurnId = NewType("TurnId", str)
SessionId = NewType("SessionId", str)
SkillName = NewType("SkillName", str)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: str) -> str:
    """A unique identifier that sorts by time of birth: prefix, 48 bits of milliseconds, 80 random bits, base 32."""
    value = (time.time_ns() // 1_000_000 << 80) | int.from_bytes(os.urandom(10))
    digits = [_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5)]
    return prefix + "".join(digits)


def new_turn_id() -> TurnId:
    """A fresh turn id."""
    return TurnId(new_id("t_"))


def new_session_id() -> SessionId:
    """A fresh session id."""
    return SessionId(new_id("s_"))
