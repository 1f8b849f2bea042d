"""`metaclaw demo`, played by the real program: with a scripted provider, and with a model in
miniature that is named.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from tests.cli.program import program
from tests.support.scripted_model import Reply, ScriptedModel, say
from tests.support.story import PATTERN
from tests.support.tiny import make_speaking_model

RULE = 'begin every answer with the words "Aye, captain"'
CONFIG = """
[[providers]]
name = "scripted"
kind = "openai"
base_url = "{url}"
api_key = "sk-scripted"
models = ["scripted"]
wires = ["chat"]

[[providers]]
name = "mine"
kind = "openai"
base_url = "{url}"
api_key = "passthrough"
"""
SETTINGS = {
    **{
        "policy.learning_rate": "0.0015",
        "policy.batch_turns": "8",
        "policy.group_size": "16",
        "policy.prompts_per_step": "8",
    },
    **{
        "policy.steps": "60",
        "policy.max_new_tokens": "8",
        "policy.golden_margin": "1.0",
        "policy.kl_limit": "100.0",
    },
    **{"policy.rehearsal": "0.0", "skills.retrieval": "words"},
}


def answer(body: dict[str, Any]) -> Reply:
    """Obeys the rule where it stands in the prompt; asked to read a message, takes the rule
    down.
    """
    words = json.dumps(body["messages"])
    if "== The message" in words:
        is_said = RULE in body["messages"][-1]["content"].rpartition("== The message")[2]
        item = {
            "op": "add",
            "kind": "rule",
            "text": f"Always {RULE}.",
            "when": "always",
            "examples": [],
            "scope": "everywhere",
        }
        whole = {
            **item,
            "targets": [],
            "expires": None,
            "check": None,
            "violates": None,
            "complies": None,
        }
        return say(json.dumps({"items": [whole] if is_said else [], "correction": None}))(body)
    is_told = "Aye, captain" in words
    return (
        streamed("Aye, captain: Paris." if is_told else "Paris.")
        if body.get("stream")
        else say("Paris.")(body)
    )


def streamed(text: str) -> Reply:
    """The answer as a stream of events."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    first = {
        **head,
        "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
        ],
    }
    last = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return 200, b"".join(
        b"data: " + json.dumps(event).encode() + b"\n\n" for event in (first, last)
    ) + b"data: [DONE]\n\n"


@pytest.mark.slow
def test_a_correction_takes_effect_with_a_provider(home: Path) -> None:
    with ScriptedModel([answer]) as model:
        home.mkdir()
        (home / "config.toml").write_text(CONFIG.format(url=model.url))
        done = program("demo", "--unattended", timeout_s=300)
    assert done.code == 0, done.out + done.err
    assert "seen: the next answer obeys, and the one before did not" in done.out
    assert "4 of 4 claims were seen." in done.out
    assert "== Act two" not in done.out
    assert "metaclaw demo --acts 2" in done.out
    assert not (home / "ledger.db").exists()  # the demo has a home of its own


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_demo_takes_its_proxy_with_it(
    home: Path, tmp_path: Path, number: signal.Signals
) -> None:
    is_asked, is_over = Event(), Event()

    def hang(body: dict[str, Any]) -> Reply:
        is_asked.set()
        is_over.wait(120)
        return answer(body)

    with ScriptedModel([hang]) as model:
        home.mkdir()
        (home / "config.toml").write_text(CONFIG.format(url=model.url))
        command = [
            sys.executable,
            "-u",
            "-m",
            "metaclaw",
            "--home",
            str(home),
            "demo",
            "--unattended",
            "--acts",
            "1",
        ]
        env = {
            **os.environ,
            "TMPDIR": str(tmp_path),
        }  # its temporary home stays there when it is killed
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
        ) as demo:
            assert demo.stdout is not None
            url = next(
                found[1]
                for line in demo.stdout
                if (found := re.search(r"It serves at (http://[\d.:]+\d)", line))
            )
            assert is_asked.wait(120)
            demo.send_signal(number)
            is_over.set()
            for _ in range(600):
                if not is_serving(url):
                    break
                time.sleep(0.1)
            else:
                pytest.fail("the proxy still serves")


def is_serving(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
@pytest.mark.nightly
def test_weights_are_trained_while_away_proven_swapped_and_taken_back(
    home: Path, tmp_path: Path
) -> None:
    folder = make_speaking_model(tmp_path / "miniature")
    given = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    done = program(
        *(
            "demo",
            "--unattended",
            "--acts",
            "1,2",
            "--minutes",
            "25",
            "--base-model",
            str(folder),
            "--check",
            PATTERN,
            *given,
        ),
        timeout_s=1700,
    )
    said = done.out + done.err
    assert f"the model in {folder}, not the embedded one," in said
    for words in (
        "seen: what you said was noted",
        "seen: the rule was in the prompt of your next request",
        "seen: after undo the rule is gone",
        "seen: a window opened",
        "seen: training paused while you were answered",
        "seen: version 1 was trained",
        "seen: after the rollback the untrained model answers again",
    ):
        assert words in said, said
    assert "NOT seen: the" not in said.replace("NOT seen: more answers", ""), said


def test_acts_that_do_not_exist_are_refused() -> None:
    done = program("demo", "--acts", "3")
    assert done.code == 2
    assert "--acts 1, --acts 2 or --acts 1,2" in done.err
