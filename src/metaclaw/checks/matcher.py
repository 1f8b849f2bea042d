"""Searches patterns and validates JSON, in a separate process that can be killed when it takes too
long.

This file is the script of that process and imports nothing else of MetaClaw. It reads one JSON
object per line and answers with one. For each pattern it answers with the places where it is found
and the number of its parts that are found; for documents with the first fault of each. The patterns
of a task share a list of texts, by number, and the time: each pattern gets an equal share of what
the ones before it left, so that a slow pattern does not take the time of the others. All limits are processor time
of this process: a task that waits for a processor loses nothing."""

import json
import re
import signal
import sys
import time
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import islice
from typing import Any

MOST_MATCHES = 100
_GROUP = "(?P<"


def main() -> int:
    """Answer until standard input ends."""
    _limit(int(sys.argv[1]))
    signal.signal(signal.SIGPROF, _interrupt)
    for line in sys.stdin:
        began = time.process_time()
        task = json.loads(line)
        reply: dict[str, object]
        try:
            reply = {"found": _answer(task)}
        except _LateError:
            reply = {"found": None}
        except Exception as error:  # noqa: BLE001 - libraries raise various classes for a reference that cannot be resolved
            reply = {"error": _words(error)}
        reply["work_s"] = time.process_time() - began
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
    return 0


def _answer(task: dict[str, Any]) -> object:
    limit_s = task["limit_s"]
    if "patterns" in task:
        return _match_all(task["patterns"], task["texts"], time.process_time() + limit_s)
    return _limited(limit_s, lambda: validate(task["schema"], task["documents"]))


class _LateError(Exception):
    pass


def _match_all(patterns: list[Any], texts: list[str], until: float) -> list[object]:
    """The result of each pattern, or its error; None for a pattern that took too long."""
    found: list[object] = []
    for turn, (pattern, places) in enumerate(patterns):
        share = (until - time.process_time()) / (len(patterns) - turn)
        chosen = [texts[at] for at in places]
        try:
            found.append(_limited(share, partial(match, pattern, chosen)))
        except _LateError:
            found.append(None)
        except Exception as error:  # noqa: BLE001 - the other patterns must get their answer
            found.append(_words(error))
    return found


def _interrupt(number: int, frame: object) -> None:
    raise _LateError


def _limited(limit_s: float, task: Callable[[], object]) -> object:
    """The result of a task. Raises _LateError after `limit_s` of processor time; `re` handles
    signals during a search.
    """
    if limit_s <= 0:
        raise _LateError
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        return task()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _limit(memory_mib: int) -> None:
    import resource  # missing on some systems

    most = memory_mib * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def match(pattern: str, texts: list[str]) -> list[dict[str, Any]]:
    """For each text the spans of the matches, or, if there are none, the number of named parts that
    are found in order.
    """
    compiled = re.compile(pattern)
    found: list[dict[str, Any]] = []
    for text in texts:
        spans = [list(match.span()) for match in islice(compiled.finditer(text), MOST_MATCHES)]
        parts = () if spans else _parts(pattern)
        found.append({"spans": spans, "parts": _in_order(parts, text), "of": len(parts)})
    return found


@lru_cache(256)
def _parts(pattern: str) -> tuple[re.Pattern[str], ...]:
    """The outermost named groups of a pattern, each as a pattern, without those that cannot be
    compiled alone.
    """
    flags = re.compile(pattern).flags
    found = []
    for source in _named_groups(pattern):
        try:
            found.append(re.compile(source, flags))
        except re.error:
            continue
    return tuple(found)


def _named_groups(pattern: str) -> list[str]:
    """The text inside each outermost `(?P<name>…)`."""
    found: list[str] = []
    at, depth, begun, is_class = 0, 0, None, False
    while at < len(pattern):
        sign = pattern[at]
        if sign == "\\":
            at += 1
        elif is_class:
            is_class = sign != "]"
        elif sign == "[":
            is_class = True
            at += pattern.startswith("^", at + 1)
            at += pattern.startswith("]", at + 1)
        elif sign == "(":
            depth += 1
            if begun is None and pattern.startswith(_GROUP, at):
                begun = (pattern.index(">", at) + 1, depth)
        elif sign == ")":
            if begun is not None and begun[1] == depth:
                found.append(pattern[begun[0] : at])
                begun = None
            depth -= 1
        at += 1
    return found


def _in_order(parts: tuple[re.Pattern[str], ...], text: str) -> int:
    """The length of the longest chain of parts in order, so that a missing part does not hide those
    after it.
    """
    # reach[count] is the earliest place at which a chain of `count` parts ends.
    reach = [0] + [len(text) + 1] * len(parts)
    for part in parts:
        for count in range(len(parts) - 1, -1, -1):
            if reach[count] <= len(text) and (found := part.search(text, reach[count])) is not None:
                reach[count + 1] = min(reach[count + 1], found.end())
    return max(count for count, end in enumerate(reach) if end <= len(text))


def validate(schema: dict[str, Any], documents: list[Any]) -> list[dict[str, Any]]:
    """For each document its first fault, or None, and the number of required properties that are
    right.
    """
    validator = _validator(json.dumps(schema))
    required = schema.get("required")
    wanted = (
        [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    )
    found: list[dict[str, Any]] = []
    for document in documents:
        faults = list(validator.iter_errors(document))
        wrong = {fault.absolute_path[0] for fault in faults if fault.absolute_path}
        right = [
            name
            for name in wanted
            if isinstance(document, dict) and name in document and name not in wrong
        ]
        fault = f"{faults[0].json_path}: {faults[0].message}"[:500] if faults else None
        found.append({"fault": fault, "parts": len(right), "of": len(wanted)})
    return found


@lru_cache(64)
def _validator(schema: str) -> Any:
    import jsonschema
    import referencing

    # With an empty registry, a reference outside the schema is an error, not a download.
    return jsonschema.Draft202012Validator(json.loads(schema), registry=referencing.Registry())


if __name__ == "__main__":
    sys.exit(main())
