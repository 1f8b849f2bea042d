"""What runs in a check's child process: limits first, walls around foreign code, then the check itself.

This file is a script for the child alone and imports nothing of ours, so that it starts quickly. It reads one JSON
object and ends with the outcome as its exit status.

Foreign code (a program check) runs behind three walls, each of which would do by itself:

- *seccomp*: every system call but those for memory, time, and files already open is refused: nothing can be opened, connected,
  started or signalled. Everything a check may import is therefore loaded before.
- *namespaces*: a user, network, mount, IPC and UTS namespace of its own, the root folder an empty one, and no capabilities left.
- *Landlock*: no access to any file, and none to the network where the kernel knows how.

Seccomp must stand, and one of the others with it, and both are tried out before the program is: else it is not run.
"""

import ctypes
import importlib
import io
import json
import os
import platform
import re
import socket
import struct
import sys
import traceback
from types import TracebackType
from typing import Any

PASSED, FAILED, CRASHED, NO_WALLS = 0, 1, 70, 71

_MIB = 1024 * 1024
_PRELOADED = (
    "abc ast base64 binascii bisect calendar codecs collections collections.abc contextlib copy csv dataclasses datetime decimal"
    " difflib enum fractions functools hashlib heapq html html.parser io itertools json keyword locale math numbers operator"
    " pprint random re"
    " shlex statistics string struct sys textwrap threading time tokenize types typing unicodedata urllib.parse uuid"
    " xml.etree.ElementTree"
    " zlib _strptime encodings.ascii encodings.cp1252 encodings.idna encodings.latin_1 encodings.utf_16 encodings.utf_8"
    " encodings.utf_8_sig"
)

# Audit architecture and the numbers of the allowed calls: read write close fstat lseek mmap mprotect munmap brk rt_sigaction
# rt_sigprocmask rt_sigreturn readv writev sched_yield mremap madvise nanosleep getpid exit gettimeofday getuid getgid geteuid
# getegid sigaltstack gettid futex restart_syscall clock_gettime clock_nanosleep exit_group getrandom
_CALLS = {
    "x86_64": (
        0xC000003E,
        "0 1 3 5 8 9 10 11 12 13 14 15 19 20 24 25 28 35 39 60 96 102 104 107 108 131 186 202 219 228 230 231 318",
    ),
    "aarch64": (
        0xC00000B7,
        "63 64 57 80 62 222 226 215 214 134 135 139 65 66 124 216 233 101 172 93 169 174 176 175 177 132 178 98 128 113 115 94 278",
    ),
}
_X32_CALLS = 0x40000000
_LOAD_WORD, _JUMP_EQUAL, _JUMP_GREATER_OR_EQUAL, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_NAMESPACES = 0x10000000 | 0x40000000 | 0x00020000 | 0x08000000 | 0x04000000
_CAPABILITY_VERSION = 0x20080522
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446


def main() -> int:
    """Do what standard input says."""
    task = json.loads(sys.stdin.buffer.read())
    _limit(task["seconds"], task["memory_mib"])
    match task["what"]:
        case "pattern":
            return PASSED if any(re.search(task["pattern"], text) for text in task["texts"]) else FAILED
        case "schema":
            return _validate(task["schema"], task["documents"], every=task["every"])
        case _:
            return _run_program(task["source"], task["answer"])


def _limit(seconds: int, memory_mib: int) -> None:
    import resource  # not everywhere, and the constants above are read everywhere

    limits = (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory_mib * _MIB),
        (resource.RLIMIT_FSIZE, _MIB // 16),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    )
    for what, most in limits:
        resource.setrlimit(what, (most, most))


def _validate(schema: dict[str, object], documents: list[object], *, every: bool) -> int:
    import jsonschema
    import referencing

    # An empty registry: a reference that leads out of the schema is an error, not a download.
    validator = jsonschema.Draft202012Validator(schema, registry=referencing.Registry())
    faults = [next(iter(validator.iter_errors(document)), None) for document in documents]
    if all(fault is None for fault in faults) if every else None in faults:
        return PASSED
    fault = next(fault for fault in faults if fault is not None)
    sys.stdout.write(f"{fault.json_path}: {fault.message}"[:500])
    return FAILED


def _run_program(source: str, answer: dict[str, object]) -> int:
    for name in _PRELOADED.split():
        importlib.import_module(name)
    walls = _raise_walls()
    sys.stdout.write(f"walls: {' '.join(walls)}\n")
    sys.stdout.flush()
    if "seccomp" not in walls or len(walls) < 2 or not _walls_hold():
        return NO_WALLS
    sys.stdin = io.StringIO(json.dumps(answer))
    sys.argv = ["check"]
    sys.excepthook = _crash
    exec(compile(source, "<check>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    return PASSED


def _crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A program that breaks has not judged the answer; a failed assertion has."""
    sys.stderr.write("".join(traceback.format_exception_only(kind, error))[-2_000:])
    sys.stderr.flush()
    os._exit(FAILED if issubclass(kind, AssertionError) else CRASHED)


def _raise_walls() -> list[str]:
    """Put up what this kernel has; give the names of the walls that stand."""
    libc = ctypes.CDLL(None, use_errno=True)
    walls = ["namespaces"] if _enter_namespaces(libc) else []
    libc.prctl(_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0)))
    if _restrict_with_landlock(libc):
        walls.append("landlock")
    if _filter_calls(libc):
        walls.append("seccomp")
    return walls


def _enter_namespaces(libc: ctypes.CDLL) -> bool:
    if libc.unshare(_NAMESPACES) != 0:
        return False
    try:
        os.chroot(".")  # the child was started in an empty folder
        os.chdir("/")
    except OSError:
        return False
    head, nothing = struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24)
    return bool(libc.capset(head, nothing) == 0)


def _restrict_with_landlock(libc: ctypes.CDLL) -> bool:
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if version < 1:
        return False
    file_rights = (1 << 13) - 1 | (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
    rules = struct.pack("=QQ", file_rights, 3 if version >= 4 else 0)[: 16 if version >= 4 else 8]
    ruleset = libc.syscall(_LANDLOCK_CREATE, rules, ctypes.c_size_t(len(rules)), ctypes.c_uint(0))
    return bool(ruleset >= 0 and libc.syscall(_LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0)) == 0)


def _filter_calls(libc: ctypes.CDLL) -> bool:
    known = _CALLS.get(platform.machine()) if sys.maxsize > 2**32 else None
    if known is None:
        return False
    architecture, calls = known[0], [int(number) for number in known[1].split()]
    lines = [(_LOAD_WORD, 0, 0, 4), (_JUMP_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD_WORD, 0, 0, 0)]
    lines += [(_JUMP_GREATER_OR_EQUAL, 0, 1, _X32_CALLS), (_RETURN, 0, 0, _KILL)]
    lines += [(_JUMP_EQUAL, len(calls) - at, 0, number) for at, number in enumerate(calls)]
    lines += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    program = struct.pack("@HP", len(lines), ctypes.addressof(code))
    return bool(libc.prctl(_SET_SECCOMP, ctypes.c_ulong(_FILTER), program, ctypes.c_ulong(0), ctypes.c_ulong(0)) == 0)


def _walls_hold() -> bool:
    """Try to get out: by a file, by a socket, by a process."""
    return all(_is_refused(attempt) for attempt in (lambda: os.open("/", os.O_RDONLY), socket.socket, os.fork))


def _is_refused(attempt: Any) -> bool:
    try:
        attempt()
    except OSError:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
