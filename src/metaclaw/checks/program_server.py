"""Runs programs that check answers: one process that has loaded everything a program may import,
and a fork of it for each run.

This file is the script of that process and imports nothing else of MetaClaw. Each request comes
over a socket with three open files: the task (JSON), and files for the output and the errors. The
server never reads them, so that no data of one run is in the memory of the next; it answers with
the exit status, or with `TIMED_OUT`. Each fork enters a sandbox of three layers:

- *seccomp*: every system call is refused except those for memory, time, and files already open. So
  everything that a check may import is loaded before.
- *namespaces*: separate user, network, mount, IPC and UTS namespaces, a deleted and therefore empty
  root folder, no capabilities.
- *Landlock*: no access to any file, nor, if the kernel supports that, to the network.

The program is run only if seccomp and one of the others are in force, and a test shows that files,
sockets and forks are refused."""

import ctypes
import functools
import gc
import importlib
import io
import json
import os
import platform
import select
import signal
import socket
import struct
import sys
import traceback
from pathlib import Path
from typing import Any

PASSED, FAILED, NOT_CONCERNED, CRASHED, NO_SANDBOX, TIMED_OUT = 0, 1, 2, 70, 71, 1_000
REQUEST = struct.Struct("=ddI")
"""Processor seconds and seconds that a run may take, MiB of memory it may use."""
REPLY = struct.Struct("=id")
"""Exit status, negative for a signal; `TIMED_OUT` if the run was ended after its time. The
processor seconds it took.
"""

_MIB = 1024 * 1024
_PRELOADED = (
    "abc ast base64 binascii bisect calendar codecs collections collections.abc contextlib copy csv"
    " dataclasses datetime decimal difflib enum fractions functools hashlib heapq html html.parser"
    " io itertools json keyword locale math numbers operator pprint random re shlex statistics"
    " string struct sys textwrap threading time tokenize types typing unicodedata urllib.parse uuid"
    " xml.etree.ElementTree zlib _strptime encodings.ascii encodings.cp1252 encodings.idna"
    " encodings.latin_1 encodings.utf_16 encodings.utf_8 encodings.utf_8_sig"
)

# Audit architecture and the numbers of the allowed calls: read write close fstat lseek mmap
# mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn readv writev sched_yield mremap
# madvise nanosleep getpid exit gettimeofday getuid getgid geteuid getegid sigaltstack gettid futex
# restart_syscall clock_gettime clock_nanosleep exit_group getrandom
_CALLS = {
    "x86_64": (
        0xC000003E,
        (
            "0 1 3 5 8 9 10 11 12 13 14 15 19 20 24 25 28 35 39 60 96 102 104 107 108 131 186 202"
            " 219 228 230 231 318"
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (
            "63 64 57 80 62 222 226 215 214 134 135 139 65 66 124 216 233 101 172 93 169 174 176"
            " 175 177 132 178 98 128 113 115 94 278"
        ),
    ),
}
_X32_CALLS = 0x40000000
_LOAD_WORD, _JUMP_EQUAL, _JUMP_GREATER_OR_EQUAL, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000
_SET_DEATH_SIGNAL, _SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 1, 38, 22, 2
_NAMESPACES = 0x10000000 | 0x40000000 | 0x00020000 | 0x08000000 | 0x04000000
_CAPABILITY_VERSION = 0x20080522
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446


def main() -> int:
    """Serve the socket that is standard input until its other end is closed."""
    for name in ("resource", *_PRELOADED.split()):
        importlib.import_module(name)
    libc = ctypes.CDLL(None, use_errno=True)
    _filter_code()
    Path.cwd().rmdir()
    gc.freeze()
    with socket.socket(fileno=os.dup(0)) as control:
        while True:
            request, files, _, _ = socket.recv_fds(control, REQUEST.size, 3)
            if len(request) < REQUEST.size or len(files) < 3:
                return 0
            work_s, wall_s, memory_mib = REQUEST.unpack(request)
            child = os.fork()
            if child == 0:
                control.close()
                os._exit(_run(libc, files, work_s, memory_mib))
            for file in files:
                os.close(file)
            reply = _wait(child, wall_s, control)
            if reply is None:
                return 0
            control.sendall(reply)


def _wait(child: int, wall_s: float, control: socket.socket) -> bytes | None:
    """The reply about a run, which is killed after `wall_s`; None if the client is gone."""
    ended = os.pidfd_open(child)
    try:
        ready, _, _ = select.select([ended, control.fileno()], [], [], wall_s)
        if ended not in ready:
            os.kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
        if ready and ended not in ready:
            return None
        code = os.waitstatus_to_exitcode(status) if ready else TIMED_OUT
        is_late = code in (-signal.SIGPROF, -signal.SIGXCPU)
        return REPLY.pack(TIMED_OUT if is_late else code, usage.ru_utime + usage.ru_stime)
    finally:
        os.close(ended)


def _run(libc: ctypes.CDLL, files: list[int], work_s: float, memory_mib: int) -> int:
    """Run the task in the first file, in a fork, and return its exit status."""
    libc.prctl(_SET_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL))
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, 64)
    # The timer ends the run after its processor time. RLIMIT_CPU counts whole seconds; it is for a
    # program that ignores the signal.
    signal.setitimer(signal.ITIMER_PROF, work_s)
    _limit(int(work_s) + 2, memory_mib)
    with open(0, "rb") as given:
        task = json.loads(given.read())
    try:
        status = _run_program(libc, task["source"], task["answer"])
    except SystemExit as end:
        status = _status(end.code)
    except BaseException as error:  # noqa: BLE001
        sys.stderr.write("".join(traceback.format_exception_only(error))[-2_000:])
        # A failed assertion is a verdict on the answer; any other error is not.
        status = FAILED if isinstance(error, AssertionError) else CRASHED
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return CRASHED
    return status


def _status(code: object) -> int:
    if code is None:
        return PASSED
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return FAILED


def _limit(seconds: int, memory_mib: int) -> None:
    import resource  # missing on some systems, which import this file for its constants

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


def _run_program(libc: ctypes.CDLL, source: str, answer: dict[str, object]) -> int:
    layers = _enter_sandbox(libc)
    sys.stdout.write(f"sandbox: {' '.join(layers)}\n")
    sys.stdout.flush()
    if "seccomp" not in layers or len(layers) < 2 or not _is_sandboxed():
        return NO_SANDBOX
    sys.stdin = io.TextIOWrapper(io.BytesIO(json.dumps(answer).encode()), "utf-8")
    sys.argv = ["check"]
    exec(compile(source, "<check>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    return PASSED


def _enter_sandbox(libc: ctypes.CDLL) -> list[str]:
    """Enter the layers that this kernel has; return their names."""
    layers = ["namespaces"] if _enter_namespaces(libc) else []
    libc.prctl(_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0)))
    if _restrict_with_landlock(libc):
        layers.append("landlock")
    if _filter_calls(libc):
        layers.append("seccomp")
    return layers


def _enter_namespaces(libc: ctypes.CDLL) -> bool:
    if libc.unshare(_NAMESPACES) != 0:
        return False
    try:
        os.chroot(".")  # an empty folder that was deleted
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
    return bool(
        ruleset >= 0
        and libc.syscall(_LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0)) == 0
    )


def _filter_calls(libc: ctypes.CDLL) -> bool:
    built = _filter_code()
    if built is None:
        return False
    length, code = built
    program = struct.pack("@HP", length, ctypes.addressof(code))
    return bool(
        libc.prctl(
            _SET_SECCOMP, ctypes.c_ulong(_FILTER), program, ctypes.c_ulong(0), ctypes.c_ulong(0)
        )
        == 0
    )


@functools.cache
def _filter_code() -> tuple[int, Any] | None:
    """The filter for this machine, as the number of its lines and its code; None for an unknown
    architecture.
    """
    known = _CALLS.get(platform.machine()) if sys.maxsize > 2**32 else None
    if known is None:
        return None
    architecture, calls = known[0], [int(number) for number in known[1].split()]
    lines = [
        (_LOAD_WORD, 0, 0, 4),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD_WORD, 0, 0, 0),
    ]
    lines += [(_JUMP_GREATER_OR_EQUAL, 0, 1, _X32_CALLS), (_RETURN, 0, 0, _KILL)]
    lines += [(_JUMP_EQUAL, len(calls) - at, 0, number) for at, number in enumerate(calls)]
    lines += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    return len(lines), ctypes.create_string_buffer(
        b"".join(struct.pack("=HBBI", *line) for line in lines)
    )


def _is_sandboxed() -> bool:
    """Whether a file, a socket and a process are refused."""
    return all(
        _is_refused(attempt)
        for attempt in (lambda: os.open("/", os.O_RDONLY), socket.socket, os.fork)
    )


def _is_refused(attempt: Any) -> bool:
    try:
        attempt()
    except OSError:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
