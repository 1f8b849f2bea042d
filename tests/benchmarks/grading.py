"""What a check's program says, run in this process."""

import io
import json
import sys
from contextlib import redirect_stdout
from functools import cache
from types import CodeType


def grade(program: str, task: str, said: str) -> float | None:
    """The score that it prints for an answer; None where it says that the task is not its own."""
    out, before = io.StringIO(), sys.stdin
    sys.stdin = io.StringIO(json.dumps({"messages": [], "task": task, "text": said, "calls": []}))
    try:
        with redirect_stdout(out):
            exec(_compiled(program), {"__name__": "__main__"})
    except SystemExit as ended:
        if ended.code != 2:
            raise
        return None
    finally:
        sys.stdin = before
    return float(json.loads(out.getvalue())["score"])


@cache
def _compiled(program: str) -> CodeType:
    return compile(program, "<check>", "exec")
