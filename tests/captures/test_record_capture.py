"""scripts/record-capture: a real SDK is recorded, nothing secret is kept, and what was recorded is
understood.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "record-capture"
SESSION = "7d9f5a1c-0b1e-4c52-9d55-3f1f6f5b2a10"
OPENAI_CLIENT = f"""
import json, os
from openai import OpenAI

client = OpenAI(default_headers={{"x-session-id": "{SESSION}", "x-api-key": "sk-live-0123456789"}})
tools = [{{"type": "function", "function": {{"name": "sh", "parameters": {{"type": "object", "properties": {{}}}}}}}}]
messages = [{{"role": "user", "content": "look into " + os.path.expanduser("~/notes.txt") + " with sk-live-0123456789"}}]
answer = client.chat.completions.create(model="m", messages=messages, tools=tools).choices[0].message
call = answer.tool_calls[0]
assert (call.function.name, json.loads(call.function.arguments)) == ("sh", {{"command": "true"}})
messages += [answer.model_dump(exclude_none=True), {{"role": "tool", "tool_call_id": call.id, "content": "ok"}}]
chunks = list(client.chat.completions.create(model="m", messages=messages, tools=tools, stream=True))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Finished."
assert client.responses.create(model="m", input="hi").output_text == "Finished."
with client.responses.stream(model="m", input="hi") as stream:
    assert stream.until_done().get_final_response().output_text == "Finished."
assert [model.id for model in client.models.list()] == ["scripted"]
"""
ANTHROPIC_CLIENT = """
from anthropic import Anthropic

client = Anthropic()
tools = [{"name": "sh", "input_schema": {"type": "object", "properties": {}}}]
messages = [{"role": "user", "content": "hi"}]
with client.messages.stream(model="m", max_tokens=9, messages=messages, tools=tools) as stream:
    answer = stream.get_final_message()
assert (answer.stop_reason, answer.content[0].name, answer.content[0].input) == ("tool_use", "sh", {"command": "true"})
messages += [{"role": "assistant", "content": [block.model_dump() for block in answer.content]}]
messages += [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": answer.content[0].id, "content": "ok"}]}]
assert client.messages.create(model="m", max_tokens=9, messages=messages, tools=tools).content[0].text == "Finished."
assert client.messages.count_tokens(model="m", messages=messages).input_tokens == 10
"""


def record(folder: Path, code: str, *arguments: str) -> list[dict[str, Any]]:
    command = [
        sys.executable,
        str(SCRIPT),
        "--out",
        str(folder),
        "--client",
        "sdk-1",
        *arguments,
        "--",
        sys.executable,
        "-c",
        code,
    ]
    environment = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
    }
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def test_the_openai_sdk_is_recorded_and_nothing_secret_is_kept(tmp_path: Path) -> None:
    captures = record(
        tmp_path,
        OPENAI_CLIENT,
        "--call",
        'sh={"command": "true"}',
        "--text",
        "Finished.",
        "--scrub-ids",
    )
    assert [capture["kind"] for capture in captures] == [
        "001_chat_completions_nonstream",
        "002_chat_completions_stream_tool_results",
        "003_responses_nonstream",
        "004_responses_stream",
        "005_get_models",
    ]
    assert {capture["client"] for capture in captures} == {"sdk-1"}
    text = "".join(path.read_text() for path in tmp_path.glob("*.json"))
    assert "sk-live" not in text
    assert "sk-recorded" not in text
    assert SESSION not in text
    assert str(Path.home()) not in text or Path.home() == Path("/")
    headers = {name.lower(): value for name, value in captures[0]["headers"]}
    assert headers["authorization"] == headers["x-api-key"] == "REDACTED"
    assert headers["x-session-id"] == "00000000-0000-4000-8000-000000000001"
    assert captures[0]["body"]["messages"][0]["content"].endswith("with REDACTED")


@pytest.mark.slow
def test_the_anthropic_sdk_is_recorded_too(tmp_path: Path) -> None:
    captures = record(
        tmp_path, ANTHROPIC_CLIENT, "--call", 'sh={"command": "true"}', "--text", "Finished."
    )
    assert [capture["path"] for capture in captures] == [
        "/v1/messages",
        "/v1/messages",
        "/v1/messages/count_tokens",
    ]
    assert captures[0]["body"]["stream"] is True


@pytest.mark.slow
def test_a_recording_may_stand_in_front_of_a_real_provider(tmp_path: Path) -> None:
    """The outer recording plays the provider; the inner one forwards to it, and both see the
    same.
    """
    inner = [
        sys.executable,
        str(SCRIPT),
        "--out",
        str(tmp_path / "inner"),
        "--client",
        "in",
        "--upstream",
        "{url}",
        "--",
    ]
    code = (
        f"import subprocess, sys; sys.exit(subprocess.run([*{inner!r}, sys.executable, '-c',"
        f" {OPENAI_CLIENT!r}]).returncode)"
    )
    code = code.replace("'{url}'", "__import__('os').environ['RECORD_URL']")
    outer = record(
        tmp_path / "outer", code, "--call", 'sh={"command": "true"}', "--text", "Finished."
    )
    forwarded = [
        json.loads(path.read_text()) for path in sorted((tmp_path / "inner").glob("*.json"))
    ]
    assert [capture["body"] for capture in forwarded] == [capture["body"] for capture in outer]


def test_long_strings_are_cut_and_nested_json_is_scrubbed(tmp_path: Path) -> None:
    code = """
import json, os, urllib.request

inside = json.dumps({"device_id": "d-1", "session_id": "s-1"})
body = {"model": "m", "messages": [{"role": "user", "content": "x" * 50}], "metadata": {"user_id": inside}}
request = urllib.request.Request(os.environ["RECORD_URL"] + "/chat/completions", json.dumps(body).encode())
urllib.request.urlopen(request).read()
"""
    (capture,) = record(tmp_path, code, "--cut", "45")
    assert capture["body"]["messages"][0]["content"] == "x" * 45 + " …[5 more characters]"
    assert json.loads(capture["body"]["metadata"]["user_id"]) == {
        "device_id": "REDACTED",
        "session_id": "s-1",
    }


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--", "/no/such/program"], 127), (["--"], 2), (["--call", "sh={", "--", "true"], 2)],
)
def test_a_command_that_cannot_run_is_said_so(
    tmp_path: Path, arguments: list[str], status: int
) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--client", "x", *arguments]
    assert (
        subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == status
    )
