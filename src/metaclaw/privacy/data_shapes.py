"""Pasted data in a person's message: rows of tables, YAML, INI and SQL. Orders in it are values, not the person's words."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

_SQL: Final = re.compile(
    r"[ \t]*(?:INSERT[ \t]+INTO|UPDATE[ \t]+\S+[ \t]+SET|SELECT\b.*\bFROM|DELETE[ \t]+FROM|CREATE[ \t]+TABLE|VALUES[ \t]*\()",
    re.IGNORECASE,
)
_TUPLE: Final = re.compile(r"[ \t]*\((?:'[^'\n]*'|[^()'\n])*\)[ \t]*[,;]?[ \t]*\Z")
# Keys of data are identifiers; a person who writes "Tests: run them" writes a label.
_YAML_KEY: Final = re.compile(r"[ \t]*(?:-[ \t]+)?[a-z_][\w.-]*:(?:[ \t]+\S.*)?\Z")
_YAML_ITEM: Final = re.compile(r"[ \t]*-[ \t]+\S.*\Z")
_SECTION: Final = re.compile(r"[ \t]*\[[\w. -]+\][ \t]*\Z")
_SETTING: Final = re.compile(r"[ \t]*(?:export[ \t]+)?[A-Za-z_][\w.-]*[ \t]*=[ \t]*\S.*\Z")
_FEWEST_ROWS: Final = 3
_FEWEST_SETTINGS: Final = 2
_KEY_CHARS: Final = 24
_MOST_ROWS: Final = 200  # of one block, so that time stays linear


def data_blocks(text: str) -> Iterator[tuple[int, int]]:
    """Where lines of data stand. Blocks do not overlap."""
    whole = text.splitlines(keepends=True)
    lines = [line.rstrip("\r\n") for line in whole]
    at = number = 0
    while number < len(lines):
        count = max(find(lines, number) for find in _FINDERS) if lines[number].strip() else 0
        end = at + sum(map(len, whole[number : number + max(count, 1)]))
        if count:
            yield at, end
        at, number = end, number + max(count, 1)


def _rows(lines: Sequence[str], begin: int) -> int:
    """The number of rows of a table from here: lines with the same number of separators and a short first column."""
    for mark in ("\t", ";", ","):
        columns = lines[begin].count(mark)
        if columns < (1 if mark == "\t" else 2):
            continue
        is_row = partial(_is_row, mark, columns)
        rows = lines[begin : _end(lines, begin, is_row)]
        is_table = mark == "\t" or all(mark + " " not in row for row in rows) or all(row.lstrip()[:1].isdigit() for row in rows[1:])
        if len(rows) >= (_FEWEST_SETTINGS if mark == "\t" else _FEWEST_ROWS) and is_table:
            return len(rows)
    return 0


def _is_row(mark: str, columns: int, line: str) -> bool:
    return line.count(mark) == columns and line.index(mark) <= _KEY_CHARS


def _statements(lines: Sequence[str], begin: int) -> int:
    is_statement = _SQL.match(lines[begin]) is not None
    count = _end(lines, begin, lambda line: bool(_TUPLE.match(line) or (is_statement and _SQL.match(line)))) - begin
    return count if is_statement or count >= _FEWEST_SETTINGS else 0


def _yaml(lines: Sequence[str], begin: int) -> int:
    if not _YAML_KEY.match(lines[begin]) or lines[begin].lstrip().startswith("-"):
        return 0
    found = lines[begin : _end(lines, begin, lambda line: bool(_YAML_KEY.match(line) or _YAML_ITEM.match(line)))]
    keys = [line for line in found if _YAML_KEY.match(line)]
    is_nested = any(line.endswith(":") for line in keys) or any(line[:1] in " \t" for line in found[1:])
    return len(found) if len(found) >= _FEWEST_ROWS and (is_nested or len(keys) >= _FEWEST_ROWS) else 0


def _settings(lines: Sequence[str], begin: int) -> int:
    head = 1 if _SECTION.match(lines[begin]) else 0
    count = _end(lines, begin + head, lambda line: _SETTING.match(line) is not None) - begin - head
    return head + count if count >= (1 if head else _FEWEST_SETTINGS) else 0


def _end(lines: Sequence[str], begin: int, is_data: Callable[[str], bool]) -> int:
    """Where the lines of one kind from here on end."""
    most = min(len(lines), begin + _MOST_ROWS)
    return next((at for at in range(begin, most) if not is_data(lines[at])), most)


_FINDERS: Final[tuple[Callable[[Sequence[str], int], int], ...]] = (_rows, _statements, _yaml, _settings)
