"""What runs around a command in the sandbox: a supervisor outside the walls, and the way in for the
command itself.

This file is a script for the child alone and imports nothing of ours, so that it starts quickly. It
reads one JSON object, runs the command in it, and says on standard error how that ended: `end
<status>`, or `end out_of_time`. Any other words there mean that the command was never started. When
it is gone, so is every process the command began.

- *namespaces*: mount, process, network, IPC and host name namespaces of its own (and a user
  namespace, unless we are root); the root folder is a new one with read-only system folders in it
  and the workspace as `/workspace`.
- *landlock*: the kernel lets the command open what lies in the workspace and in system folders, and
  seccomp refuses every socket.
- *limits*: what all three have: resource limits, no environment, an end it cannot put off; and no
  sockets, where seccomp works.

Where we are root, the command runs as a user that nobody else is, and the workspace is given to
that user."""

import contextlib
import ctypes
import json
import os
import platform
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store")
_SETTINGS = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_MIB = 1024 * 1024
# Some limits cannot be set on other systems; on Linux all can, or nothing is run.
_NOT_THERE: tuple[type[Exception], ...] = () if sys.platform == "linux" else (OSError, ValueError)
_FIRST_USER, _USERS = 61184, 4336  # the range systemd keeps for users that exist for a while only

_NEW_USER, _NEW_NS, _NEW_PID, _NEW_NET, _NEW_IPC, _NEW_UTS = (
    0x10000000,
    0x20000,
    0x20000000,
    0x40000000,
    0x08000000,
    0x04000000,
)
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
_DETACH = 2
_DEATH_SIGNAL, _SUBREAPER, _NO_NEW_PRIVS, _SECCOMP, _FILTER = 1, 36, 38, 22, 2
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
# Audit architecture, and the numbers of socket, io_uring_setup and pivot_root.
_MACHINES = {"x86_64": (0xC000003E, 41, 425, 155), "aarch64": (0xC00000B7, 198, 425, 41)}

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Do what standard input says."""
    task = json.loads(sys.stdin.buffer.read())
    report = os.dup(2)  # not inherited by the command
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    _be_supervisor()
    user = _FIRST_USER + os.getpid() % _USERS if os.getuid() == 0 else None
    others = 0 if user is not None else _processes_beside(task["walls"])
    if user is not None:
        _give(task["workspace"], user)
        _give(task["room"], user)
    if task["walls"] == "namespaces":
        _unshare()
    child = os.fork()
    if child == 0:
        _enter(task, user, others)
    end = _wait(child, time.monotonic() + task["seconds"])
    _end_all(child)
    os.write(report, f"end {end}\n".encode())
    return 0


def _enter(task: dict[str, Any], user: int | None, others: int) -> NoReturn:
    """The child's life: raise the walls and become the command."""
    try:
        if task["walls"] == "namespaces":
            _build_root(Path(task["room"]), task["workspace"], task["hidden"], user)
            _become_first()
        else:
            os.setpgid(0, 0)
            os.chdir(task["workspace"])
        _limit(task, others)
        if task["walls"] == "landlock":
            _raise_landlock(task["workspace"], task["room"])
            _refuse_sockets()
        elif task["walls"] == "limits":
            with contextlib.suppress(OSError, KeyError):  # better than nothing, where it can be had
                _refuse_sockets()
        if user is not None:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        if sys.platform == "linux":
            _give_up_privileges()
        _become(task)
    except (OSError, ValueError) as error:
        os.write(2, f"{error}\n".encode())
    os._exit(126)


def _become(task: dict[str, Any]) -> None:
    if task["command"] is None:
        os._exit(_probe(task["canary"]))
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(1, 2)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, signal.SIGTERM})
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    is_walled = task["walls"] == "namespaces"
    home = "/tmp" if is_walled else task["room"]
    tools = "/tools" if is_walled else str(Path(sys.executable).parent)
    path = f"{tools}:{_PATH}" if os.access(tools, os.X_OK) else _PATH
    environment = {
        "PATH": path,
        "HOME": home,
        "TMPDIR": home,
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    os.execve("/bin/sh", ["sh", "-c", task["command"]], environment)


def _probe(canary: str) -> int:
    """Try to get out: by a file, and by the network."""
    with contextlib.suppress(OSError):
        next(Path(canary).iterdir(), None)
        return 1
    try:
        with socket.socket() as line:
            line.settimeout(0.5)
            line.connect(("127.0.0.1", 9))
    except ConnectionRefusedError:
        return 1
    except OSError:
        return 0
    return 1


# The supervisor


def _be_supervisor() -> None:
    """Orphans become our children, and our parent's death is our end."""
    if sys.platform == "linux":
        _libc.prctl(_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGTERM))
        _libc.prctl(_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))


def _wait(child: int, deadline: float) -> str:
    """How the child ended; a request to stop counts as the end of its time."""
    while (left_s := deadline - time.monotonic()) > 0:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return str(_status(status))
        if _is_told_to_stop(left_s):
            break
    return "out_of_time"


def _is_told_to_stop(most_s: float) -> bool:
    """Wait until there is news, at most so long; whether it is that we shall stop."""
    if sys.platform != "linux":
        time.sleep(min(most_s, 0.02))
        return signal.SIGTERM in signal.sigpending()
    caught = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM}, most_s)
    return caught is not None and caught.si_signo == signal.SIGTERM


def _status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _end_all(child: int) -> None:
    """Kill until no child is left. What a killed process leaves behind becomes a child of ours, so
    nothing gets away.
    """
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            for process in _children():
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.002)


def _children() -> Iterator[int]:
    me = os.getpid()
    return (process for process, parent, _ in _processes() if parent == me)


def _processes() -> Iterator[tuple[int, int, int]]:
    """Process, parent and user of everything that runs."""
    for entry in Path("/proc").glob("[0-9]*/stat") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
            yield int(entry.parent.name), int(fields[1]), entry.stat().st_uid


def _processes_beside(walls: str) -> int:
    """How many of our user's processes count against the command's limit: in a user namespace of a
    newer kernel, none.
    """
    release = tuple(int(word) for word in platform.release().split("-")[0].split(".")[:2])
    if walls == "namespaces" and release >= (5, 14):
        return 0
    return sum(user == os.getuid() for _, _, user in _processes())


def _give(folder: str, user: int) -> None:
    """Make everything in a folder this user's, but for files with a second name: that may lie
    anywhere.
    """
    for parent, folders, files in os.walk(folder):
        for path in map(Path(parent).joinpath, (".", *folders, *files)):
            if path.is_symlink() or path.is_dir() or path.lstat().st_nlink == 1:
                os.chown(path, user, user, follow_symlinks=False)


def _limit(task: dict[str, Any], others: int) -> None:
    limits = [
        (resource.RLIMIT_CPU, int(task["seconds"]) + 2),
        (resource.RLIMIT_AS, task["memory_mib"] * _MIB),
        (resource.RLIMIT_FSIZE, task["file_mib"] * _MIB),
        (resource.RLIMIT_NPROC, task["processes"] + others),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ]
    for what, wanted in limits:
        most = resource.getrlimit(what)[1]
        most = wanted if most == resource.RLIM_INFINITY else min(most, wanted)
        with contextlib.suppress(*_NOT_THERE):
            resource.setrlimit(what, (most, most))


# Namespaces


def _unshare() -> None:
    user, group = os.getuid(), os.getgid()
    flags = _NEW_PID | _NEW_NET | _NEW_IPC | _NEW_UTS
    _checked(_libc.unshare(flags if user == 0 else flags | _NEW_USER), "unshare")
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _become_first() -> None:
    """Stay as the first process of the namespace and let a child go on: with the first one, all
    others end.
    """
    _checked(_libc.prctl(_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL)), "death signal")
    command = os.fork()
    while command:
        ended, status = os.waitpid(-1, 0)
        if ended == command:
            os._exit(_status(status))


def _build_root(room: Path, workspace: str, hidden: list[str], user: int | None) -> None:
    """A new root folder on `room`: system folders, a few devices, processes, an empty /tmp, the
    workspace, and nothing else.
    """
    _checked(_libc.unshare(_NEW_NS), "unshare")  # not before: the supervisor keeps its own view
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    _mount("tmpfs", str(room), "tmpfs", _NO_SUID | _NO_DEV, "mode=755,size=1m")
    for folder in ("tmp", "proc", "dev", "etc", "tools", "workspace"):
        (room / folder).mkdir()
    for path in _SYSTEM:
        if Path(path).is_symlink():
            (room / path[1:]).symlink_to(Path(path).readlink())
        else:
            _show(path, room)
    for path in (*_SETTINGS, *_DEVICES, sys.base_prefix):
        _show(path, room)
    _write_settings(room, os.getuid() if user is None else user)
    _mount(workspace, str(room / "workspace"), None, _BIND)
    _mount("tmpfs", str(room / "tmp"), "tmpfs", _NO_SUID | _NO_DEV, "mode=1777,size=64m")
    for path in hidden:
        if (room / path[1:]).is_dir():
            _mount("tmpfs", str(room / path[1:]), "tmpfs", _READ_ONLY, "mode=555,size=4k")
    with contextlib.suppress(
        OSError
    ):  # inside containers it may be forbidden; most programs do without
        _mount("proc", str(room / "proc"), "proc", _READ_ONLY | _NO_SUID | _NO_DEV | _NO_EXEC)
    os.chdir(room)
    _checked(_libc.syscall(_MACHINES[platform.machine()][3], b".", b"."), "pivot_root")
    _checked(_libc.umount2(b".", _DETACH), "umount")
    _mount("none", "/", None, _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | _NO_DEV)
    os.chdir("/workspace")


def _show(path: str, room: Path) -> None:
    """The same file or folder at the same place in the new root, read-only; nothing where there is
    none, or it is there already.
    """
    source, target = Path(path), room / path[1:]
    if not source.exists() or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        target.mkdir()
    else:
        target.touch()
    _mount(path, str(target), None, _BIND | _RECURSIVE)
    flags = os.statvfs(target).f_flag & (_NO_SUID | _NO_EXEC) | (
        0 if path in _DEVICES else _NO_DEV | _NO_SUID
    )
    _mount("none", str(target), None, _REMOUNT | _BIND | _READ_ONLY | flags)


def _write_settings(room: Path, user: int) -> None:
    (room / "etc" / "passwd").write_text(f"agent:x:{user}:{user}::/tmp:/bin/sh\n")
    (room / "etc" / "group").write_text(f"agent:x:{user}:\n")
    (room / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    (room / "dev" / "shm").symlink_to("/tmp")
    (room / "dev" / "fd").symlink_to("/proc/self/fd")
    for name in ("python", "python3"):
        (room / "tools" / name).symlink_to(Path(sys.executable).resolve())


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    words = (
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _checked(_libc.mount(*words), f"mount {target}")


# Landlock and seccomp


def _raise_landlock(workspace: str, room: str) -> None:
    version = _checked(
        _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1)), "landlock"
    )
    everything = (1 << 13) - 1 | (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
    reading, of_files = 0b1101, everything & 0b1100_0000_0000_0111
    rules = struct.pack("=QQQ", everything, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 8 * (1 + (version >= 4) + (version >= 6))
    ruleset = _checked(
        _libc.syscall(_LANDLOCK_CREATE, rules[:size], ctypes.c_size_t(size), ctypes.c_uint(0)),
        "landlock",
    )
    allowed = [
        (workspace, everything),
        (room, everything),
        *((path, of_files) for path in _DEVICES),
    ]
    allowed += [(path, reading) for path in (*_SYSTEM, *_SETTINGS, sys.base_prefix)]
    for path, rights in allowed:
        if Path(path).exists():
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("=Qi", rights if Path(path).is_dir() else rights & of_files, beneath)
            _checked(
                _libc.syscall(_LANDLOCK_ADD, ctypes.c_int(ruleset), 1, rule, ctypes.c_uint(0)),
                f"landlock {path}",
            )
    _give_up_privileges()
    _checked(_libc.syscall(_LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0)), "landlock")


def _refuse_sockets() -> None:
    """No socket of any kind, and no io_uring, which could open one."""
    architecture, socket_call, ring_call, _ = _MACHINES[platform.machine()]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    allow, refuse, kill = 0x7FFF0000, 0x00050000 | 1, 0x80000000
    lines = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, kill), (load, 0, 0, 0)]
    lines += [(at_least, 0, 1, 0x40000000), (give, 0, 0, kill)]
    lines += [
        (equal, 2, 0, socket_call),
        (equal, 1, 0, ring_call),
        (give, 0, 0, allow),
        (give, 0, 0, refuse),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    program = struct.pack("@HP", len(lines), ctypes.addressof(code))
    _give_up_privileges()
    _checked(
        _libc.prctl(
            _SECCOMP, ctypes.c_ulong(_FILTER), program, ctypes.c_ulong(0), ctypes.c_ulong(0)
        ),
        "seccomp",
    )


def _give_up_privileges() -> None:
    """From here on no program gains rights by being started."""
    _checked(_libc.prctl(_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))), "no_new_privs")


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    sys.exit(main())
