"""A tiny benchmark in the published layout, in our own words, written into a test's folder."""

import json
from collections.abc import Mapping
from pathlib import Path

Record = dict[str, object]


def choice(name: str, options: str, answer: str) -> Record:
    """A multiple choice round with one-letter options."""
    return {
        "id": name,
        "type": "multi_choice",
        "question": f"Which of {', '.join(options)}? Use \\bbox{{X}}.",
        "feedback": {
            "correct": "Right.",
            "options": {letter: f"about {letter}" for letter in options},
        },
        "eval": {
            "options": {letter: f"option {letter}" for letter in options},
            "answer": list(answer),
        },
        "update": [],
    }


def files(name: str, command: str, **more: object) -> Record:
    """A file check round."""
    return {
        "id": name,
        "type": "file_check",
        "question": f"Please make what {name} asks for.",
        "feedback": {"correct": "Good.", "incorrect": "Not so."},
        "eval": {"command": command, "expect_exit": 0, **more},
    }


def write(
    root: Path, days: Mapping[str, list[Record]], tags: Mapping[str, list[str]] | None = None
) -> Path:
    """The whole benchmark under `root`: index, questions, transcripts, a persona and a file a day.
    No checkers.
    """
    index = []
    for name, rounds in days.items():
        _put(
            root / "eval" / name / "questions.json",
            json.dumps({"id": name, "desc": f"About {name}", "rounds": rounds}),
        )
        _put(root / "workspaces/shared" / name / "notes.txt", f"Notes of {name}.\n")
        _put(root / f"openclaw_state/agents/someone/sessions/{name}_s.jsonl", _transcript(name))
        day_tags = (tags or {}).get(name, ["times"])
        index.append(
            {
                "id": name,
                "desc": f"The day {name}",
                "agent": "someone",
                "session": f"{name}_s",
                "eval": name,
                "arc": "A",
                "preference_tags": day_tags,
            }
        )
    _put(root / "workspaces/shared/SOUL.md", "You are somebody.\n")
    _put(root / "workspaces/shared/common/list.txt", "shared by all\n")
    _put(
        root / "all_tests.json",
        json.dumps(
            {
                "name": "Small",
                "eval_dir": "./somewhere/eval",
                "workspace_src": "${METACLAW_ROOT}/somewhere/workspaces/shared",
                "openclaw_state_dir": "./somewhere/openclaw_state",
                "test": index,
            }
        ),
    )
    return root


def _transcript(day: str) -> str:
    lines: list[Record] = [
        {"type": "session", "id": f"{day}_s"},
        {
            "type": "message",
            "message": {
                "role": "user",
                "content": [{"type": "text", "text": f"Good morning, it is {day}."}],
            },
        },
        {
            "type": "message",
            "message": {
                "role": "assistant",
                "content": [{"type": "text", "text": "Good morning."}],
            },
        },
    ]
    return "\n".join(json.dumps(line) for line in lines) + "\n"


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
