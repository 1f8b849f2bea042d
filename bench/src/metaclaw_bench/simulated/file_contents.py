"""Writing what a file check asks for: trivial contents in the right form, or, on purpose, in the
wrong one.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

TIME: Final = "2026-03-16T09:30:00+08:00"
NOT_A_TIME: Final = "this morning"
_META: Final = {"created_at": TIME, "author": "metaclaw_agent", "status": "done"}
_LINES: Final = "\n".join(f"{key}: {value}" for key, value in _META.items())

Json = dict[str, object]


def read_object(path: Path) -> Json:
    """The object in a JSON file; an empty one where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_object(path: Path, content: Mapping[str, object]) -> None:
    """Write a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def write_new(path: Path, *, with_metadata: bool) -> None:
    """A small file of the kind its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}\n" if path.suffix == ".json" else "Nothing to report.\n", encoding="utf-8")
    if with_metadata:
        add_metadata(path)


def add_metadata(path: Path) -> None:
    """Say when, by whom and how far, in the way of the file's kind. Saying it twice does no harm
    and is not done.
    """
    if path.suffix == ".json":
        write_object(path, {**read_object(path), "meta": _META})
        return
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    head = {
        ".md": f"---\n{_LINES}\n---\n",
        ".py": f'"""What it does.\n\nMeta:\n{_LINES}\n"""\n',
        ".csv": "# meta: " + " ".join(f"{key}={value}" for key, value in _META.items()) + "\n",
    }.get(path.suffix, "")
    if not text.startswith(head):
        path.write_text(head + text, encoding="utf-8")


def set_field(content: Json, field: str, value: str, *, everywhere: bool) -> None:
    """Put a value where a dotted path leads; `x[]` is each element of x, of which there will be at
    least one.

    Unless `everywhere`, elements are left alone that lack the last field while others have it:
    nobody asked to complete them."""
    step, _, rest = field.partition(".")
    if not step.endswith("[]"):
        if rest:
            inner = content.get(step)
            content[step] = inner = inner if isinstance(inner, dict) else {}
            set_field(inner, rest, value, everywhere=everywhere)
        else:
            content[step] = value
        return
    present = content.get(step[:-2])
    elements = (
        [element for element in present if isinstance(element, dict)]
        if isinstance(present, list)
        else []
    )
    content[step[:-2]] = elements = elements or [{}]
    having = [element for element in elements if rest in element]
    for element in elements if everywhere or not having else having:
        set_field(element, rest, value, everywhere=everywhere)


def change(path: Path) -> None:
    """Make a file differ from what it was."""
    if path.suffix == ".json":
        content = read_object(path)
        changes = content.get("changes")
        write_object(path, {**content, "changes": (changes if isinstance(changes, int) else 0) + 1})
    else:
        with path.open("a", encoding="utf-8") as file:
            file.write("One line more.\n")


def append_line(path: Path, line: str) -> None:
    """One line more, in a file that may not be there yet."""
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
