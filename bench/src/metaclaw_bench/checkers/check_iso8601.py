"""check_iso8601.py FILE FIELD...: every named field of a JSON file is a full time with the offset
+08:00.

A field is a dotted path; `x[]` stands for each element of the list x. A list that is absent or
empty has no elements, so nothing in it can be wrong. Written to agree with the published checker,
its looseness included: the calendar is not consulted."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TIME = re.compile(r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?\+08:00$")


def values(node: object, path: list[str], name: str) -> Iterator[object]:
    """What the path leads to from `node`, once for each element of the lists on its way."""
    if not path:
        yield node
        return
    step, rest = path[0], path[1:]
    if not isinstance(node, dict):
        sys.exit(f"FAIL: {name}: nothing to look into for {step}")
    if step.endswith("[]"):
        elements = node.get(step[:-2], [])
        if not isinstance(elements, list | dict | str):
            sys.exit(f"FAIL: {name}: {step[:-2]} is no list")
        for element in elements:
            yield from values(element, rest, name)
        return
    if node.get(step) is None:
        sys.exit(f"FAIL: {name}: {step} not found")
    yield from values(node[step], rest, name)


def main() -> None:
    """Ends with 1 and a line on standard error if something is wrong."""
    if len(sys.argv) < 3:
        sys.stderr.write("usage: check_iso8601.py FILE FIELD...\n")
        sys.exit(2)
    try:
        content: object = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"FAIL: {sys.argv[1]}: {error}")
    for name in sys.argv[2:]:
        for value in values(content, name.split("."), name):
            if not isinstance(value, str) or not TIME.match(value):
                sys.exit(f"FAIL: {name}: {value!r} is not YYYY-MM-DDTHH:MM:SS+08:00")


main()
