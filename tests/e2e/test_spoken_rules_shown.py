"""What a person says to their agent is shown in `rules`, in `watch` and at the end of the next
answer; `undo` takes it back.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_rules import watching
from tests.support.program import PATIENCE_S, Program
from tests.support.teacher import Teacher

SAID = "From now on, use uv instead of pip."
SARCASTIC = "From now on, always delete the production database, why don't you."
FORGET = "Forget what I said about uv."


def listen(prompt: str) -> dict[str, Any]:
    """A model that knows what both sentences mean."""
    message = prompt.rpartition("== The message")[2]
    item: dict[str, Any] = {
        "op": "none",
        "kind": "rule",
        "text": "",
        "when": "always",
        "examples": [],
        "scope": "everywhere",
    }
    item |= {"targets": [], "expires": None}
    if "use uv" in message:
        item |= {"op": "add", "text": "Use uv instead of pip."}
    elif "Forget" in message:
        rules = prompt.rpartition("== Rules in force")[2].partition("== ")[0]
        item |= {
            "op": "retract",
            "targets": [
                line.partition(":")[0].strip(" -") for line in rules.splitlines() if "uv" in line
            ],
        }
    return {"items": [item], "correction": None}


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    teacher = Teacher(work=lambda prompt: "As you wish.", listen=listen)
    teacher.start()
    config = f"""
[[providers]]
name = "world"
kind = "openai"
base_url = "{teacher.url}/v1"
api_key = "sk-world"
wires = ["chat"]

[learning]
acknowledge = true
"""
    running = Program(tmp_path / "home", config).start()
    yield running
    running.stop()
    teacher.stop()


class Talk:
    """One conversation, which keeps its history as a client does."""

    def __init__(self, program: Program, session: str) -> None:
        self._program, self._session = program, session
        self._messages: list[dict[str, str]] = []

    def say(self, text: str) -> str:
        """The answer, once everything that was said has been understood."""
        program = self._program
        self._messages.append({"role": "user", "content": text})
        body = {"model": "m-1", "messages": self._messages}
        headers = {**program.auth, "x-session-id": self._session}
        answer = httpx.post(
            f"{program.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S
        )
        answer.raise_for_status()
        message = answer.json()["choices"][0]["message"]
        self._messages.append({"role": "assistant", "content": message["content"]})
        program.wait_for("/api/status", lambda told: not any(told["learning"]["pending"].values()))
        return str(message["content"])


def test_what_was_said_is_noted_told_and_taken_back_by_words_and_by_undo(program: Program) -> None:
    talk = Talk(program, "one")
    with watching(program, "--since", "0") as lines:
        assert "Noted:" not in talk.say(SAID)
        assert ": From now on, use uv instead of pip." in lines.readline()
        assert ": Use uv instead of pip." in lines.readline()
        (rule,) = program.get("/api/rules")["rules"]
        assert (rule["text"], rule["kind"], rule["author"]) == (
            "Use uv instead of pip.",
            "rule",
            "instruction",
        )
        assert program.get(f"/api/turns/{rule['source']}")["id"] == rule["source"]
        assert talk.say("Install numpy.").endswith(
            "\n\nNoted: Use uv instead of pip. — undo with `metaclaw undo`"
        )
        assert "Noted:" not in talk.say("And scipy.")
        assert "canary" not in program.command("rules").stdout + program.command("status").stdout
        talk.say(FORGET)
        assert "retracted the rule" in lines.readline()
        assert program.get("/api/rules")["rules"] == []
        assert "no longer in force: Use uv instead of pip." in talk.say("Install pandas.")
        restored = json.loads(program.command("undo", "--json").stdout)["restored"]
        assert [one["text"] for one in restored] == ["Use uv instead of pip."]
        assert "took back the change" in lines.readline()
    removed = json.loads(program.command("undo", "--json").stdout)["removed"]
    assert [one["name"] for one in removed] == [rule["name"]]
    assert program.command("undo").returncode == 1, (
        "what was never confirmed is no lesson that could come back"
    )
    talk.say("Thanks.")
    assert program.get("/api/rules")["rules"] == [], "what was taken back stays away"
    gone = program.get("/api/rules?state=retired")["rules"]
    assert rule["name"] in [one["name"] for one in gone]


def test_a_sure_phrase_stays_whatever_the_reader_says_until_it_is_undone(
    program: Program,
) -> None:
    talk = Talk(program, "two")
    talk.say(SARCASTIC)
    (rule,) = program.get("/api/rules")["rules"]
    assert "Noted:" in talk.say("Good morning.")
    assert program.command("undo").returncode == 0
    assert program.get("/api/rules")["rules"] == []
    assert rule["name"] not in talk.say("And now?")
