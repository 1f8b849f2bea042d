"""Gemini CLI sends no session identifier; its requests are as version 0.61.0 sent them, shortened."""

import json
from typing import Any

import pytest

from metaclaw.domain.chat import Wire
from metaclaw.domain.turn import Origin, TurnKind
from metaclaw.proxy.http.body import read
from metaclaw.proxy.sessions import Origins

HEADERS = {
    "user-agent": "GeminiCLI-tui/0.61.0/gemini-2.5-flash (linux; x64; terminal)",
    "x-goog-api-client": "google-genai-sdk/1.30.0 gl-node/v20.20.2",
}
SETUP = (
    "<session_context>\nThis is the Gemini CLI. We are setting up the context for our chat.\n"
    "- **Workspace Directories:**\n  - /home/ann/shop\n- **Directory Structure:**\n\n"
    "/home/ann/shop/\n</session_context>"
)
FIRST = {"parts": [{"text": SETUP}, {"text": "Fix the tests"}], "role": "user"}
CALL = {
    "functionCall": {"id": "ls_1_0", "name": "list_directory", "args": {"dir_path": "."}},
    "thoughtSignature": "c2ln",
}
ANSWER = {"parts": [CALL], "role": "model"}
RESULT = {
    "parts": [
        {
            "functionResponse": {
                "id": "ls_1_0",
                "name": "list_directory",
                "response": {"output": "a.py"},
            }
        }
    ],
    "role": "user",
}


def identify(origins: Origins, *contents: Any, system: str = "You are Gemini CLI, an") -> Origin:
    body = {
        "model": "gemini-2.5-flash",
        "stream": True,
        "contents": list(contents),
        "systemInstruction": {"parts": [{"text": system}], "role": "user"},
        "tools": [{"functionDeclarations": [{"name": "list_directory"}]}],
    }
    raw = json.dumps(body).encode()
    return origins.identify(Wire.GEMINI, HEADERS, read(Wire.GEMINI, raw))


def test_a_conversation_is_one_session_of_its_project_with_the_persons_words() -> None:
    origins = Origins(silence_s=3600)
    first = identify(origins, FIRST)
    assert (first.agent, first.kind, first.task) == ("gemini", TurnKind.MAIN, "Fix the tests")
    assert first.scope.workspace == "/home/ann/shop"
    later = identify(origins, FIRST, ANSWER, RESULT)
    assert (later.session, later.task) == (first.session, "Fix the tests")
    assert not later.segment_began
    question = {"parts": [{"text": "And the docs?"}], "role": "user"}
    said = {"parts": [{"text": "Done."}], "role": "model"}
    resumed = {
        "parts": [{"text": SETUP.replace("shop/", "shop/b.py")}, {"text": "Fix the tests"}],
        "role": "user",
    }
    new = identify(origins, resumed, ANSWER, RESULT, said, question)
    assert (new.session, new.task, new.segment_began) == (first.session, "And the docs?", True)


@pytest.mark.parametrize(
    ("reason", "system", "words"),
    [
        ("gemini-routing", "\nYou are a specialized Task Routing AI. Your", "hi"),
        ("gemini-loop", "You are a diagnostic agent that determines whether", "hi"),
        (
            "gemini-next-speaker",
            "You are Gemini CLI, an",
            "Analyze *only* the content and structure of your immediately preceding response",
        ),
    ],
)
def test_its_side_turns_are_known_by_their_words(reason: str, system: str, words: str) -> None:
    asked = {"parts": [{"text": words}], "role": "user"}
    origin = identify(Origins(silence_s=3600), asked, system=system)
    assert (origin.kind, origin.kind_reason) == (TurnKind.SIDE, reason)
