"""Places in a text that hold a secret, and how overlapping ones become one."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

PLACEHOLDER = re.compile(r"<[A-Z][A-Z_]{2,20}(?::[a-z0-9-]{1,30})?(?:#\d{1,6})?>")
"""What stands where a secret stood: `<API_KEY:openai>`, `<PASSWORD#2>`."""


class Certainty(IntEnum):
    """How a secret was recognised, the weakest first; of two that overlap, the surer one names it."""

    RANDOM = 1
    NAMED = 2
    SHAPED = 3
    KNOWN = 4


@dataclass(frozen=True, slots=True)
class Hit:
    """A stretch of text that must not travel. `label` is what its placeholder says, without brackets and number."""

    start: int
    end: int
    label: str
    certainty: Certainty


def merged(hits: Iterable[Hit]) -> list[Hit]:
    """The hits in order, overlapping ones united: never shorter than the longest, named by the surest."""
    united: list[Hit] = []
    for hit in sorted((hit for hit in hits if hit.start < hit.end), key=lambda hit: (hit.start, -hit.end)):
        if united and hit.start < united[-1].end:
            last = united[-1]
            name = hit if hit.certainty > last.certainty else last
            united[-1] = Hit(last.start, max(last.end, hit.end), name.label, name.certainty)
        else:
            united.append(hit)
    return united
