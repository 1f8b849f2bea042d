"""Commands in the sandbox: they work in their workspace, and see, reach and use nothing beyond what
they are given.
"""

import asyncio
import json
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from metaclaw_bench.sandbox import Limits, Sandbox, Stopped, Strength, holds, inside, strongest
from metaclaw_bench.workspaces import used_bytes

pytestmark = pytest.mark.anyio
QUICK = Limits(seconds=20.0, processes=24, memory_mib=512)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture(params=list(Strength))
def strength(request: pytest.FixtureRequest) -> Strength:
    value = Strength(request.param)
    if value is not Strength.LIMITS and not holds(value):
        pytest.skip(f"this machine gives no {value}")
    return value


def _python(script: str) -> str:
    return f"python3 -c {shlex.quote(script)}"


def _running(marker: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [line for line in [entry.read_text(errors="replace")] if marker in line]
        except OSError:
            continue
    return found


def _zombies() -> int:
    states = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            states.append(entry.read_text(errors="replace").rpartition(")")[2].split()[:2])
        except OSError:
            continue
    return states.count(["Z", str(os.getpid())])


async def test_a_command_works_in_its_workspace_and_leaves_its_files_there(
    workspace: Path, strength: Strength
) -> None:
    (workspace / "in.txt").write_text("given")
    ran = await Sandbox(workspace, QUICK, strength=strength).run(
        "cat in.txt; mkdir -p ä/b; echo made > 'ä/b/文 1.txt'; echo oops >&2; exit 3"
    )
    assert (ran.end, ran.output, ran.left_out_bytes) == (3, "givenoops\n", 0)
    assert (workspace / "ä" / "b" / "文 1.txt").read_text() == "made\n"
    assert _zombies() == 0


async def test_a_file_made_between_two_commands_can_be_changed_by_the_second(
    workspace: Path, strength: Strength
) -> None:
    box = Sandbox(workspace, QUICK, strength=strength)
    await box.run("mkdir new; echo 1 > new/a")
    (workspace / "new" / "b").write_text("mine")
    (workspace / "new" / "b").chmod(0o600)
    ran = await box.run("echo 2 >> new/a; echo more >> new/b; cat new/a new/b")
    assert ran.output == "1\n2\nminemore\n"


async def test_what_lies_outside_the_workspace_is_read_where_there_are_no_walls_and_only_there(
    strength: Strength,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)  # so that only the sandbox can be in the way
        secret, workspace = Path(name, "answers.json"), Path(name, "workspace")
        workspace.mkdir()
        secret.write_text("the answers")
        secret.chmod(0o644)
        (workspace / "link").symlink_to(secret)
        tries = (
            f"cat {secret}; cat ../answers.json; cat link; ls {name}; echo x > {name}/new; echo x >"
            " /etc/new"
        )
        ran = await Sandbox(workspace, QUICK, strength=strength).run(tries)
        assert ran.output.count("the answers") == (3 if strength is Strength.LIMITS else 0)
        assert ran.end != 0
        assert secret.read_text() == "the answers"
    assert not Path("/etc/new").exists()


async def test_a_hidden_folder_is_empty_even_in_a_system_folder(workspace: Path) -> None:
    if strongest() is not Strength.NAMESPACES:
        pytest.skip("this machine gives no namespaces")
    command = "ls /usr/share | wc -l"
    seen = await Sandbox(workspace, QUICK).run(command)
    unseen = await Sandbox(workspace, QUICK, hidden=[Path("/usr/share")]).run(command)
    assert int(seen.output) > 0
    assert int(unseen.output) == 0


async def test_no_connection_leaves_the_sandbox(workspace: Path, strength: Strength) -> None:
    script = (
        "import socket\ntry: socket.create_connection(('127.0.0.1', {}), 2)\nexcept OSError:"
        " print('refused')"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        ran = await Sandbox(workspace, QUICK, strength=strength).run(
            _python(script.format(listener.getsockname()[1]))
        )
        assert ran.output == "refused\n"
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_only_so_many_processes_can_be_made(workspace: Path, strength: Strength) -> None:
    script = (
        "import os, time\nmade = 0\ntry:\n  while made < 200:\n    if not os.fork():"
        " time.sleep(60)\n    made += 1\nexcept OSError: print(made)"
    )
    ran = await Sandbox(workspace, QUICK, strength=strength).run(_python(script))
    assert ran.end == 0
    assert 0 < int(ran.output) <= QUICK.processes


async def test_a_fork_bomb_goes_off_and_is_over(workspace: Path, strength: Strength) -> None:
    marker = f"bomb_{uuid.uuid4().hex}"
    limits = Limits(seconds=1.0, processes=24)
    await Sandbox(workspace, limits, strength=strength).run(
        f"{marker}() {{ {marker} | {marker} & }}; {marker}; wait; sleep 60"
    )
    assert _running(marker) == []
    assert _zombies() == 0


async def test_a_command_that_takes_too_long_is_stopped(
    workspace: Path, strength: Strength
) -> None:
    began = time.monotonic()
    ran = await Sandbox(workspace, Limits(seconds=0.3), strength=strength).run("sleep 999")
    assert (ran.end, ran.output) == (Stopped.OUT_OF_TIME, "")
    assert time.monotonic() - began < 60


async def test_what_a_command_leaves_in_the_background_is_ended_with_it(
    workspace: Path, strength: Strength
) -> None:
    seconds = 900 + uuid.uuid4().int / 2**128
    ran = await Sandbox(workspace, QUICK, strength=strength).run(
        f"setsid sleep {seconds} & echo started"
    )
    assert (ran.end, ran.output) == (0, "started\n")
    assert _running(str(seconds)) == []


async def test_a_command_whose_caller_is_cancelled_is_ended(
    workspace: Path, strength: Strength
) -> None:
    seconds = 900 + uuid.uuid4().int / 2**128
    task = asyncio.create_task(
        Sandbox(workspace, QUICK, strength=strength).run(f"touch begun; sleep {seconds}")
    )
    async with asyncio.timeout(10):
        while not (workspace / "begun").exists():
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert _running(str(seconds)) == []


async def test_output_is_kept_within_bounds_and_says_so(
    workspace: Path, strength: Strength
) -> None:
    command = "head -c 10000000 /dev/zero | tr '\\0' x; echo the end"
    ran = await Sandbox(workspace, Limits(seconds=20, output_bytes=1000), strength=strength).run(
        command
    )
    assert ran.end == 0
    assert len(ran.output) < 1100
    assert ran.left_out_bytes == 10_000_008 - 1000
    assert ran.output.startswith("xxx")
    assert ran.output.endswith("x" * 10 + "the end\n")


async def test_memory_and_the_size_of_files_are_bounded(
    workspace: Path, strength: Strength
) -> None:
    box = Sandbox(workspace, Limits(seconds=20, memory_mib=256, file_mib=1), strength=strength)
    memory = await box.run(_python("bytearray(2 ** 29)"))
    size = await box.run("head -c 3000000 /dev/zero > big")
    assert memory.end == 1
    assert "MemoryError" in memory.output
    assert size.end != 0
    assert (workspace / "big").stat().st_size == 1024 * 1024


async def test_nothing_of_our_environment_reaches_a_command(
    workspace: Path, strength: Strength, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    ran = await Sandbox(workspace, QUICK, strength=strength).run(
        "env; id -u; cat /proc/$PPID/environ 2>/dev/null"
    )
    assert "sk-secret" not in ran.output
    assert "PATH=" in ran.output


async def test_commands_do_not_run_as_root(workspace: Path, strength: Strength) -> None:
    ran = await Sandbox(workspace, QUICK, strength=strength).run("id -u")
    assert int(ran.output) != 0


async def test_a_signal_is_counted_as_shells_count_it(workspace: Path, strength: Strength) -> None:
    assert (await Sandbox(workspace, QUICK, strength=strength).run("kill -9 $$")).end == 137


async def test_walls_that_cannot_be_raised_start_nothing(workspace: Path) -> None:
    ran = await Sandbox(workspace / "absent", QUICK, strength=strongest()).run("echo never")
    assert ran.end is Stopped.NOT_STARTED
    assert "never" not in ran.output


def test_the_strongest_walls_hold_and_limits_alone_do_not() -> None:
    assert not holds(Strength.LIMITS)
    assert strongest() is Strength.LIMITS or holds(strongest())
    assert len({strength.words for strength in Strength}) == 3


def test_an_unprivileged_user_gets_the_same_walls() -> None:
    python = Path("/usr/bin/python3")
    if os.getuid() != 0 or not python.exists():
        pytest.skip(
            "the other tests are run by such a user, or there is no interpreter that every user may"
            " start"
        )
    task = {
        "walls": "namespaces",
        "hidden": [],
        "seconds": 20,
        "memory_mib": 512,
        "processes": 20,
        "file_mib": 1,
        "canary": None,
    }
    command = "id -u; pwd; touch made; touch /etc/made; ls /root; grep CapEff /proc/self/status"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = shutil.copy(inside.__file__, folder)
        for part in ("workspace", "room"):
            (folder / part).mkdir()
        given = json.dumps(
            {**task, "workspace": f"{name}/workspace", "room": f"{name}/room", "command": command}
        )
        subprocess.run(["chown", "-R", "4321:4321", name], check=True)
        ran = subprocess.run(
            [python, "-I", "-S", script],
            input=given,
            capture_output=True,
            text=True,
            env={},
            cwd="/",
            user=4321,
            group=4321,
        )
        if "unshare" in ran.stderr:
            pytest.skip("users may make no namespaces here")
        assert ran.stderr == "end 0\n"
        assert ran.stdout.startswith("4321\n/workspace\n")
        assert ran.stdout.endswith("CapEff:\t0000000000000000\n")
        assert (folder / "workspace" / "made").stat().st_uid == 4321
    assert not Path("/etc/made").exists()


async def test_a_command_that_fills_the_workspace_is_stopped_at_its_quota(
    workspace: Path, strength: Strength
) -> None:
    box = Sandbox(workspace, Limits(seconds=60.0, file_mib=4, workspace_mib=16), strength=strength)
    ran = await box.run(
        "i=0; while :; do head -c 2000000 /dev/zero > f$i; i=$((i+1)); sleep 0.05; done"
    )
    assert ran.end is Stopped.OUT_OF_SPACE
    assert used_bytes(workspace) < 200 * 1024 * 1024
    assert (await box.run("rm -f f*; echo gone")).output == "gone\n", (
        "what is too much can be deleted"
    )
    assert used_bytes(workspace) == 0
