"""Agents by a command template: what the command is given, what becomes of what it prints, and how
it fails.
"""

import asyncio
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from metaclaw.plugin import ConfigError
from metaclaw_bench.agent import Agent, Answered, Asked, Failed, Why
from metaclaw_bench.external import Command, ExternalAgent
from metaclaw_bench.questions import Day, Said

pytestmark = pytest.mark.anyio
DAY = Day("day01", "", "day01_x", (), (), None)


def _command(
    script: Path, arguments: str = "", *, retries: int = 0, seconds: float = 20.0
) -> Command:
    template = f"{shlex.quote(sys.executable)} -S {shlex.quote(str(script))} {arguments}"
    return Command(template, "http://127.0.0.1:1/v1", "key-1", "model-1", retries, seconds)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "agent.py"


async def _ask(command: Command, workspace: Path, text: str) -> Asked:
    agent: Agent = ExternalAgent(command)
    await agent.begin(DAY, workspace)
    asked = await agent.ask(text)
    await agent.end()
    return asked


def _is_alive(process: int) -> bool:
    try:
        return "Z (zombie)" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


async def test_the_command_gets_what_the_template_asks_for_and_its_output_is_the_answer(
    script: Path, tmp_path: Path
) -> None:
    script.write_text(
        "import os, sys; print(sys.argv[1:], os.getcwd()); open('made.txt', 'w').close()"
    )
    folder = tmp_path / "work space"
    folder.mkdir()
    asked = await _ask(
        _command(script, "-s {session} --m={message} {workspace} {base_url} {api_key} {model}"),
        folder,
        "Hallo ü",
    )
    words = [
        "-s",
        "day01_x",
        "--m=Hallo ü",
        str(folder),
        "http://127.0.0.1:1/v1",
        "key-1",
        "model-1",
    ]
    assert asked == Answered(f"{words} {folder}\n", None, 1)
    assert (folder / "made.txt").exists()


async def test_nothing_in_a_message_is_taken_for_a_command_or_a_placeholder(
    script: Path, tmp_path: Path
) -> None:
    script.write_text("import sys; sys.stdout.write(sys.argv[1])")
    message = "$(touch pwned); `id` 'x' \"{session}\" {nothing} && rm -rf .\n"
    assert await _ask(_command(script, "{message}"), tmp_path, message) == Answered(
        message, None, 1
    )
    assert not (tmp_path / "pwned").exists()


async def test_a_day_has_a_state_of_its_own_and_its_opening_in_a_file(
    script: Path, tmp_path: Path
) -> None:
    script.write_text(
        "import sys; from pathlib import Path; state, opening, user, message = sys.argv[1:]; seen ="
        " Path(state, 'seen')\nseen.open('a').write('x'); print(seen.read_text(),"
        " Path(opening).read_text(), user, message)"
    )
    day = replace(DAY, opening=(Said("user", "It is Monday."), Said("assistant", "Good.")))
    agent = ExternalAgent(
        replace(_command(script, "{state} {opening} {user} {message}"), user="Robin")
    )
    told = '{"role": "user", "text": "It is Monday."}\n{"role": "assistant", "text": "Good."}\n'
    for times in ("x", "xx"):
        await agent.begin(day, tmp_path)
        for seen in ("x", "xx")[: len(times)]:
            assert await agent.ask("Go on.") == Answered(f"{seen} {told} Robin Go on.\n", None, 1)
        await agent.end()


async def test_an_agent_that_is_not_given_the_opening_is_told_which_day_it_is(
    script: Path, tmp_path: Path
) -> None:
    script.write_text("import sys; sys.stdout.write(sys.argv[1])")
    agent = ExternalAgent(_command(script, "{message}"))
    await agent.begin(
        replace(DAY, opening=(Said("user", "It is Monday."), Said("assistant", "Good."))), tmp_path
    )
    assert await agent.ask("Go on.") == Answered("It is Monday.\n\nGo on.", None, 1)
    assert await agent.ask("Go on.") == Answered("Go on.", None, 1)
    await agent.end()


async def test_a_template_without_the_message_gets_it_on_standard_input(
    script: Path, tmp_path: Path
) -> None:
    script.write_text("import sys; sys.stdout.write(sys.stdin.read().upper())")
    assert await _ask(_command(script), tmp_path, "hello") == Answered("HELLO", None, 1)


async def test_the_environment_has_addresses_and_keys(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the-users-own")
    names = ["OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN"]
    script.write_text(f"import os; print(*(os.environ[name] for name in {names}))")
    asked = await _ask(_command(script), tmp_path, "")
    assert asked == Answered("http://127.0.0.1:1/v1 key-1 http://127.0.0.1:1 key-1\n", None, 1)


async def test_a_command_that_fails_is_run_again(script: Path, tmp_path: Path) -> None:
    script.write_text(
        "import sys\nopen('tries', 'a').write('x')\nif len(open('tries').read()) < 3: sys.exit('not"
        " yet')\nprint('ok')"
    )
    assert await _ask(_command(script, retries=3), tmp_path, "") == Answered("ok\n", None, 3)


async def test_a_command_that_always_fails_fails_the_round_with_its_last_words(
    script: Path, tmp_path: Path
) -> None:
    script.write_text(
        "import sys\nopen('tries', 'a').write('x')\nprint('half an answer')\nsys.exit('no model')"
    )
    failed = await _ask(_command(script, retries=2), tmp_path, "")
    assert failed == Failed(Why.COMMAND, "the command ended with status 1: no model", steps=3)
    assert (tmp_path / "tries").read_text() == "xxx"


async def test_a_command_that_takes_too_long_is_ended_with_what_it_started(
    script: Path, tmp_path: Path
) -> None:
    script.write_text(
        "import os, subprocess, time\nopen('pid', 'w').write(str(subprocess.Popen(['sleep',"
        " '998']).pid))\ntime.sleep(998)"
    )
    began = time.monotonic()
    failed = await _ask(_command(script, retries=5, seconds=2.5), tmp_path, "")
    assert isinstance(failed, Failed)
    assert (failed.why, failed.steps) == (Why.SECONDS, 1)
    assert time.monotonic() - began < 60
    async with asyncio.timeout(30):  # a killed process needs a moment of its own to be gone
        while _is_alive(int((tmp_path / "pid").read_text())):
            await asyncio.sleep(0.01)


async def test_a_process_left_in_the_background_does_not_hold_up_the_answer(
    script: Path, tmp_path: Path
) -> None:
    script.write_text("import subprocess\nsubprocess.Popen(['sleep', '30'])\nprint('done')")
    assert await _ask(_command(script), tmp_path, "") == Answered("done\n", None, 1)


async def test_a_program_that_is_not_there_fails_the_round(script: Path, tmp_path: Path) -> None:
    failed = await _ask(
        replace(_command(script), template="/no/such/agent {message}"), tmp_path, "x"
    )
    assert isinstance(failed, Failed)
    assert failed.why is Why.COMMAND
    assert "could not be started" in failed.detail


@pytest.mark.parametrize(
    ("template", "says"), [("", "empty"), ("agent 'x", "split"), ("agent {mesage}", "{mesage}")]
)
def test_a_template_that_cannot_be_used_is_refused(script: Path, template: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ExternalAgent(replace(_command(script), template=template))


async def test_asking_before_a_day_is_begun_is_a_mistake(script: Path) -> None:
    with pytest.raises(RuntimeError, match="no day"):
        await ExternalAgent(_command(script)).ask("?")


async def test_what_an_agent_has_started_does_not_outlive_a_benchmark_that_is_killed(
    script: Path, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    script.write_text(
        "import os, subprocess, sys, time; child = subprocess.Popen(['sleep', '600'])\nfrom pathlib"
        " import Path; whole = Path(sys.argv[1] + '.part'); whole.write_text(f'{os.getpid()}"
        " {child.pid}')\nwhole.rename(sys.argv[1]); time.sleep(600)"
    )
    benchmark = tmp_path / "benchmark.py"
    benchmark.write_text(
        "import asyncio, sys; from pathlib import Path\nfrom metaclaw_bench.external import"
        " Command, ExternalAgent; from metaclaw_bench.questions import Day\nasync def main():\n   "
        " agent = ExternalAgent(Command(sys.argv[1], 'http://127.0.0.1:1/v1', 'k', 'm'))\n    await"
        " agent.begin(Day('day01', '', 'day01_x', (), (), None), Path(sys.argv[2]))\n    await"
        " agent.ask('Go on.')\nasyncio.run(main())"
    )
    template = _command(script, shlex.quote(str(started))).template
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(benchmark), template, str(tmp_path)
    )
    async with asyncio.timeout(60):
        while not started.exists():
            await asyncio.sleep(0.02)
        running = [int(word) for word in started.read_text().split()]
        assert all(map(_is_alive, running))
        process.kill()
        await process.wait()
        while any(map(_is_alive, running)):
            await asyncio.sleep(0.02)
