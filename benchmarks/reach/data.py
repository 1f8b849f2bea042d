"""The data sets: `held_out.json`, on which nothing may be tuned, `dev.json`, or a file of the same
form.
"""

import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]
HELD_OUT = Path(__file__).with_name("held_out.json")
DEV = Path(__file__).with_name("dev.json")
SECTIONS = (
    "rules",
    "facts",
    "skills",
    "unrelated",
    "corrections",
    "harmless",
    "retractions",
    "no_rules",
    "injections",
    "quoted",
    "projects",
)


def load(path: Path, most: int | None = None) -> dict[str, list[Any]]:
    """Every section of a data set, at most `most` records each; a section that the file lacks is
    empty.
    """
    found = json.loads(path.read_text())
    return {section: found.get(section, [])[:most] for section in SECTIONS}
