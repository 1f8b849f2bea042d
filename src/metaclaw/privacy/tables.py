"""Secrets in tables: a column whose heading names a secret holds one in each row."""

import re
from collections.abc import Iterator

from metaclaw.privacy.hits import Certainty, Hit
from metaclaw.privacy.values import is_meant

_TABLE = re.compile(r"^([ \t]*\|[^\n]{1,500})\n[ \t]*\|[ \t:|+-]{3,500}\n((?:[ \t]*\|[^\n]{1,2000}(?:\n|\Z)){1,500})", re.MULTILINE)
_SECRET = re.compile(r"pass|secret|token|api.?key|[a-z]_key|credential|pwd|пароль|密码")


def tabled(text: str, low: str) -> Iterator[Hit]:
    """The cells under headings such as `Password`, where they look like secrets."""
    if "|" not in low or ("|--" not in low and "| --" not in low and "|:-" not in low):
        return
    for table in _TABLE.finditer(low):
        columns = [at for at, heading in enumerate(table[1].split("|")) if _SECRET.search(heading)]
        at = table.start(2)
        for row in table[2].split("\n") if columns else ():
            yield from _cells(text, at, row, columns)
            at += len(row) + 1


def _cells(text: str, at: int, row: str, columns: list[int]) -> Iterator[Hit]:
    for column, cell in enumerate(row.split("|")):
        if column in columns:
            bare = cell.strip(" \t`")
            start = at + cell.find(bare)
            value = text[start : start + len(bare)]
            if is_meant(value):
                yield Hit(start, start + len(bare), "PASSWORD", Certainty.NAMED)
        at += len(cell) + 1
