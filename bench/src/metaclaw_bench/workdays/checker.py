"""The checker of file-checks: finds the files that are meant and asks each rule. Standard library
only: a benchmark carries a copy.

As a program: `python scripts/checker.py JSON`, in the workspace; the rules' files lie beside it. It
ends with 0 where every assertion holds; otherwise with 1, and says on standard error which do not.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from metaclaw_bench.workdays.demands import Assertion, Context, Part, Target

    Check = Callable[[Mapping[str, str], Context], list[Assertion]]

TASK = "task"
_MAX_BYTES = 200_000


def check_parts(
    parts: Sequence[Part], files: Mapping[str, str], check_of: Callable[[str], Check]
) -> list[tuple[str, str, bool]]:
    """Every assertion: the rule it belongs to (`task` for what the question itself asks), what it
    says, whether it holds.
    """
    found: list[tuple[str, str, bool]] = []
    for part in parts:
        targets = find_targets(part["target"], part["holds"], files)
        found += [
            (TASK, f"there is a file that holds {held!r}", _holds(targets, held, files))
            for held in part["holds"]
        ]
        for rule, variant, facts in part["rules"]:
            context: Context = {"targets": targets, "variant": variant, "facts": facts}
            # Without a file there is nothing that could keep a rule.
            asserted = check_of(rule)(files, context) if targets else [("there is a file", False)]
            found += [(rule, name, held) for name, held in asserted]
    return found


def find_targets(target: Target, holds: Sequence[str], files: Mapping[str, str]) -> list[str]:
    """The file of that path; or those in the folder that hold what was asked for, whatever they are
    called.
    """
    if "path" in target:
        return [target["path"]] if files.get(target["path"], "").strip() else []
    folder, known = target["folder"] + "/", target["known"]
    return [
        path
        for path, text in sorted(files.items())
        if path.startswith(folder) and path not in known and all(_has(text, held) for held in holds)
    ]


def _holds(targets: Sequence[str], held: str, files: Mapping[str, str]) -> bool:
    return bool(targets) and all(_has(files[path], held) for path in targets)


def _has(text: str, held: str) -> bool:
    return held.casefold() in text.casefold()


def _read_workspace() -> dict[str, str]:
    paths = (
        path for path in sorted(Path().rglob("*")) if path.is_file() and path.parts[0] != "scripts"
    )
    return {
        path.as_posix(): path.read_text(encoding="utf-8", errors="replace")
        for path in paths
        if path.stat().st_size < _MAX_BYTES
    }


def main() -> None:
    """Checks the workspace it is started in."""

    def check_of(rule: str) -> Check:
        check: Check = importlib.import_module(rule).check
        return check

    asserted = check_parts(json.loads(sys.argv[1]), _read_workspace(), check_of)
    missed = [f"{rule}: {name}" for rule, name, held in asserted if not held]
    sys.exit("\n".join(missed) if missed else 0)


if __name__ == "__main__":
    main()
