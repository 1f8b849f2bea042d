"""check_metadata.py FILE [--type md|json|py|csv]: the file says when it was created, by whom, and
how far it is.

Markdown and plain text say it in front matter, JSON in its object `meta`, Python in the section
`Meta:` of a docstring, CSV in a first line `# meta: created_at=… author=… status=…`. Written to
agree with the published checker, its looseness included: a status is checked in Markdown and JSON
only, a quoted time is no time, and the first text between triple double quotes is the docstring.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

TIME = re.compile(r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?\+08:00$")
DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
FIELDS = ("created_at", "author", "status")
STATES = ("pending", "in_progress", "done")


def of_markdown(text: str) -> Mapping[str, object]:
    """The front matter: from the dashes the file begins with to the next line that begins with
    dashes.
    """
    matter, dashes, _ = text.removeprefix("---").partition("\n---")
    if not text.startswith("---") or not dashes:
        sys.exit("FAIL: no front matter")
    return pairs(matter.splitlines(), ":")


def of_json(text: str) -> Mapping[str, object]:
    """The object `meta`."""
    content = json.loads(text)
    meta = content.get("meta") if isinstance(content, dict) else None
    if not isinstance(meta, dict):
        sys.exit("FAIL: no object called meta")
    return meta


def of_python(text: str) -> Mapping[str, object]:
    """What follows `Meta:` in the docstring, as far as the next empty line; names in any case."""
    found = DOCSTRING.search(text)
    _, title, section = found[1].partition("Meta:") if found else ("", "", "")
    if not title:
        sys.exit("FAIL: no docstring with a section Meta:")
    return {
        name.lower(): value
        for name, value in pairs(section.split("\n\n")[0].splitlines(), ":").items()
    }


def of_csv(text: str) -> Mapping[str, object]:
    """The pairs of the first line."""
    first = text.split("\n")[0].strip()
    if not first.startswith("# meta:"):
        sys.exit("FAIL: the first line is not # meta:")
    return pairs(first.removeprefix("# meta:").split(), "=")


def pairs(pieces: Iterable[str], sign: str) -> dict[str, object]:
    """Names and values with a sign between them."""
    return {
        name.strip(): value.strip()
        for name, found, value in (piece.partition(sign) for piece in pieces)
        if found
    }


READERS = {"md": of_markdown, "txt": of_markdown, "json": of_json, "py": of_python, "csv": of_csv}


def main() -> None:
    """Ends with 1 and a line on standard error if something is missing or wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--type", choices=["json", "md", "py", "csv"])
    wanted = parser.parse_args()
    kind = wanted.type or wanted.file.rpartition(".")[2].lower()
    if kind not in READERS:
        sys.exit(f"FAIL: {wanted.file}: metadata are known in {', '.join(READERS)} only")
    try:
        meta = READERS[kind](Path(wanted.file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"FAIL: {wanted.file}: {error}")
    missing = [field for field in FIELDS if meta.get(field) in (None, "")]
    if missing:
        sys.exit(f"FAIL: {wanted.file}: {', '.join(missing)} missing")
    if not TIME.match(str(meta["created_at"])):
        sys.exit(f"FAIL: {wanted.file}: created_at is not YYYY-MM-DDTHH:MM:SS+08:00")
    if kind not in ("py", "csv") and meta["status"] not in STATES:
        sys.exit(f"FAIL: {wanted.file}: status is none of {', '.join(STATES)}")


main()
