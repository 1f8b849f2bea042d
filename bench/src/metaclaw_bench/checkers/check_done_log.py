"""check_done_log.py LOG [--min-entries N] [--task-prefix TEXT]: every line is `[DONE] <time> |
<task id> | <summary>`.

Written to agree with the published checker, its looseness included: the calendar is not consulted,
and one bad line spoils the log."""

import argparse
import re
import sys
from pathlib import Path

LINE = re.compile(
    r"^\[DONE\] \d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?\+08:00 \| ([^|]+) \| (.+)$"
)
MOST_CHARACTERS = 80


def main() -> None:
    """Ends with 1 and a line on standard error if something is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("log", type=Path)
    parser.add_argument("--min-entries", type=int, default=1)
    parser.add_argument("--task-prefix", default="")
    wanted = parser.parse_args()
    try:
        lines = [
            line for line in wanted.log.read_text(encoding="utf-8").split("\n") if line.strip()
        ]
    except (OSError, ValueError) as error:
        sys.exit(f"FAIL: {wanted.log}: {error}")
    task = ""
    for line in lines:
        found = LINE.match(line)
        if not found or len(found[2].strip()) > MOST_CHARACTERS:
            sys.exit(
                f"FAIL: not [DONE] <time> | <task id> | <at most {MOST_CHARACTERS} characters>:"
                f" {line[:200]}"
            )
        task = found[1].strip()
    if len(lines) < wanted.min_entries:
        sys.exit(f"FAIL: {len(lines)} of {wanted.min_entries} entries")
    if not task.startswith(wanted.task_prefix):
        sys.exit(f"FAIL: the last task is {task}, not {wanted.task_prefix}…")


main()
