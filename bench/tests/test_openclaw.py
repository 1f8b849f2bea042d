"""The real OpenClaw as the agent of a benchmark: its sessions, its tools, the person's feedback and
the checks, through the proxy.

`make test-openclaw` installs it; a message takes it half a minute.
"""

import os
import shlex
from pathlib import Path

import pytest

from bench.tests.playing import play
from bench.tests.small_benchmark import choice, files, write
from metaclaw.store import LedgerReader, open_database
from metaclaw_bench.data import read_benchmark
from metaclaw_bench.records import RoundRecord, read_records
from metaclaw_bench.simulated.scripted import scripted
from tests.cli.program import program

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = Path(os.environ.get("METACLAW_TEST_CACHE") or ROOT / ".cache") / "clients"
NODE = CLIENTS / "node24" / "node_modules" / "node" / "bin" / "node"
OPENCLAW = CLIENTS / "openclaw" / "node_modules" / "openclaw" / "openclaw.mjs"
TEMPLATE = (
    f"{shlex.quote(str(ROOT / 'scripts' / 'openclaw-agent'))} --session {{session}} --workspace"
    " {workspace} --state {state} --opening {opening} --model {model} --user {user}"
    " {message}"
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.of_target(
        "test-openclaw",
        os.environ.get("METACLAW_TEST_OPENCLAW") == "1" and NODE.exists() and OPENCLAW.exists(),
    ),
]


def test_a_day_of_the_real_openclaw_scores_what_the_script_behind_it_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCLAW", shlex.join([str(NODE), str(OPENCLAW)]))
    check = "python scripts/check_iso8601.py day01/meeting.json meeting_time"
    data = write(tmp_path / "data", {"day01": [files("r1", check), choice("r2", "ABC", "AC")]})
    done = program(
        *(
            "bench",
            "metaclaw",
            "--data",
            str(data),
            "--simulated",
            "--scripted",
            "honest",
            "--conditions",
            "skills",
        ),
        *("--agent", "command", "--agent-command", TEMPLATE, "--out", str(tmp_path / "out")),
        timeout_s=1800,
    )
    assert done.code == 0, done.err
    folder = tmp_path / "out" / "skills" / "seed-0"
    rounds = [one for one in read_records(folder / "rounds.jsonl") if isinstance(one, RoundRecord)]
    expected = play(read_benchmark(data), scripted("honest"))
    assert [(one.round, one.score, one.failure) for one in rounds] == [
        (one.round, one.score, None) for one in expected
    ]
    assert all(one.score == 1.0 for one in rounds)
    assert rounds[1].tail.strip() == "My answer: \\bbox{A,C}"
    _saw_one_conversation(folder / "home" / "ledger.db")


def _saw_one_conversation(ledger: Path) -> None:
    """All messages were one session of OpenClaw's, which began with the day's opening and heard
    what was said of each answer.
    """
    database = open_database(f"sqlite:///{ledger}")
    try:
        reader = LedgerReader(database)
        turns = [
            turn for row in reader.turns_after(0, 100) if (turn := reader.turn(row.id)) is not None
        ]
    finally:
        database.close()
    assert {turn.turn.agent for turn in turns} == {"openclaw"}
    assert len({turn.turn.session for turn in turns}) == 1
    last = turns[-1].turn.exchange.request.decode()
    assert all(
        words in last
        for words in (
            "Good morning, it is day01.",
            "[Previous Feedback] Good.",
            "[Previous Feedback] Right.",
        )
    )
