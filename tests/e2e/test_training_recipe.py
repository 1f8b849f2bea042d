"""The recipe of docs/training.md, word for word: its check, and its commands on the real program
with a miniature model.
"""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from metaclaw.domain.chat import Text
from metaclaw.domain.check import Conversation
from metaclaw.domain.verdict import Outcome
from metaclaw.skills import check_of, examine, parse_skill, trial_trouble
from tests.support.cases import each
from tests.support.program import PATIENCE_S, Program
from tests.support.tiny import make_speaking_model

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text()
SKILL = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1]  # type: ignore[index]
COMMANDS = re.findall(
    r"^metaclaw (.*?)(?:\s+#.*)?$",
    re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)[1],  # type: ignore[index]
    re.MULTILINE,
)
CONFIG = """
[policy]
base_model = "{model}"
steps = 2
max_new_tokens = 16
rehearsal = 0.0
"""


@each(
    ("task", "answer", "score"),
    [
        ("Write 2:17 pm for the roster.", "14:17+05:30", 1.0),
        ("The shift begins at 9:04 am. How does that stand in the roster?", "09:04+05:30", 1.0),
        ("Write 12:30 am for the roster.", "00:30+05:30", 1.0),
        ("Write 2:17 pm for the roster.", "14:17", 0.3),
        ("Write 2:17 pm for the roster.", "14:17+05:30+05:30+05:30", 0.3),
        ("Write 2:17 pm for the roster.", "Hello there, my dear friend!", 0.0),
        ("What is the capital of France?", "Paris", None),
    ],
)
def test_the_check_grades_as_the_page_says(task: str, answer: str, score: float | None) -> None:
    check = check_of(parse_skill(SKILL, "docs/training.md"))
    assert check is not None
    found = examine(check, (Text(answer),), conversation=Conversation(task=task))
    assert found.score == score
    assert (found.outcome is Outcome.PASS) is (score == 1.0)


def test_nothing_is_wrong_with_the_check_of_the_page() -> None:
    assert trial_trouble(parse_skill(SKILL, "docs/training.md")) is None


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    folder = tmp_path / "home" / "skills" / "roster-times"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    start, *_ = COMMANDS
    assert start.split()[0] == "start"
    config = CONFIG.format(model=make_speaking_model(tmp_path / "miniature"))
    running = Program(tmp_path / "home", config).start(*start.split()[1:])
    running.wait_for(
        "/api/status", lambda status: status["engine"]["state"] == "ready", within_s=120
    )
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


@pytest.mark.slow
def test_the_commands_of_the_page_train_and_show_a_version(program: Program) -> None:
    tried, says = re.search(r"`metaclaw (skills test [^`]*)` says .*? `([^`]*)`", PAGE).groups()  # type: ignore[union-attr]
    assert program.command(*shlex.split(tried)).stdout.startswith(says)
    for number in range(24):
        words = f"Write {1 + number % 12}:{10 + number} pm for the roster."
        body = {
            "model": "any",
            "messages": [{"role": "user", "content": words}],
            "max_tokens": 8,
            "temperature": 1,
        }
        headers = program.auth | {"X-Session-Id": f"roster-{number}"}
        answer = httpx.post(
            f"{program.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S
        )
        assert answer.status_code == 200, answer.text
    ended, begun, *looks = [command for command in COMMANDS if not command.startswith("start")]
    assert (ended, begun) == ("sessions end --all", "policy train")
    assert program.command(*ended.split()).stdout == "Ended 24 sessions.\n"
    trained = program.command(*begun.split(), "--json")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    facts = json.loads(trained.stdout)
    assert facts["started"]
    assert not facts["rejections"].get("no verdict")  # it has waited until all were judged
    program.wait_for(
        "/api/policy",
        lambda found: any(one["state"] != "candidate" for one in found["versions"]),
        within_s=10 * PATIENCE_S,
    )
    shown = {command: program.command(*command.split()) for command in looks}
    assert all(done.returncode == 0 for done in shown.values()), shown
    assert "rejected" in shown["policy list"].stdout
    assert "not shown better" in shown["policy show 1"].stdout
