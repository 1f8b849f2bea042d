"""CommandOutput of commands: JSON, tables, facts and progress. Control codes in texts from elsewhere never
reach the terminal.
"""

import json
import re
import shutil
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias, TypeVar

import click

from metaclaw.cli.client import Facts
from metaclaw.clock import utc_now
from metaclaw.errors import MetaClawError

Command = TypeVar("Command", bound=Callable[..., object])


class Bold(str):
    """A line that is printed in bold."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command found: facts for `--json`, lines for people, and the exit code."""

    facts: Mapping[str, object]
    lines: Iterable[str] | str
    code: int = 0


def answers(command: Callable[..., CommandOutput]) -> Callable[..., int]:
    """Pass the home folder as the first parameter, add `--json`, and print the output."""

    @json_option
    @click.pass_obj
    @wraps(command)
    def run(home: Path, /, *, as_json: bool, **given: object) -> int:
        output = command(home, **given)
        print_output(output, as_json=as_json)
        return output.code

    return run


def print_output(output: CommandOutput, *, as_json: bool) -> None:
    """Print the facts as JSON, or the lines."""
    if as_json:
        print_json(output.facts)
    else:
        echo_lines(output.lines)


def json_option(command: Command) -> Command:
    """Adds `--json` as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")(command)


def wants_json() -> bool:
    """Whether the running command was called with `--json`."""
    return bool(click.get_current_context().params["as_json"])


class ListingGroup(click.Group):
    """A group of commands; without the name of one, it lists."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args and args != ["--json"] else ["list", *args])


def yes_option(command: Command) -> Command:
    """Adds `--yes`."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def limit_option(default: int, words: str) -> Callable[[Command], Command]:
    """Adds `--limit` with this help."""
    return click.option(
        "--limit", type=click.IntRange(1, 100_000), default=default, show_default=True, help=words
    )


def timeout_option(default: float, words: str, least: float = 0) -> Callable[[Command], Command]:
    """Adds `--timeout` as the parameter `timeout_s`."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=least),
        default=default,
        show_default=True,
        help=words,
    )


def own_command() -> str:
    """How to call this program: `metaclaw`, or its path if it is not on PATH."""
    called = sys.argv[0]
    is_path = called.endswith("/metaclaw") and shutil.which("metaclaw") is None
    return called if is_path else "metaclaw"


def print_json(facts: Mapping[str, object]) -> None:
    """Print one JSON object, in ASCII only, which every terminal and pipe can take."""
    click.echo(json.dumps(facts, indent=2, default=_plain_value))


def echo(line: str, *, err: bool = False) -> None:
    """Print one line, with anything unprintable shown as an escape."""
    text = _printable(line)
    click.echo(click.style(text, bold=True) if isinstance(line, Bold) else text, err=err)


def echo_lines(lines: Iterable[str] | str) -> None:
    """Print lines, each as soon as it is made."""
    for line in [lines] if isinstance(lines, str) else lines:
        echo(line)


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], optional: Sequence[str] = ()
) -> None:
    """Print a table; see `table`."""
    echo_lines(table(headers, rows, optional))


def table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], optional: Sequence[str] = ()
) -> Iterator[str]:
    """The lines of a table with columns as wide as their widest value. On a terminal the table is
    made to fit.

    Columns named in `optional` are left out, in that order, while the others would be too narrow to
    read. Then the widest columns are made narrower. The first column is wrapped and never cut. The
    other columns are cut to the number of lines of the first, at least two if it is too narrow for
    any name. CommandOutput to a file or a pipe is never cut."""
    cells = [list(headers), *([plain(value) for value in row] for row in rows)]
    natural = [max(cell_width(line[column]) for line in cells) for column in range(len(headers))]
    shown, widths = _fit(natural, [headers.index(name) for name in optional], terminal_width())
    for line in cells:
        named = wrap_cell(line[0], widths[0])
        most = max(len(named), 2 if widths[0] < natural[0] else 1)
        others = zip(shown[1:], widths[1:], strict=True)
        columns = [named, *(wrap_cell(line[column], width, most) for column, width in others)]
        for texts in zip_longest(*columns, fillvalue=""):
            padded = (
                text + " " * (width - cell_width(text))
                for text, width in zip(texts, widths, strict=True)
            )
            yield "  ".join(padded).rstrip()
    if hidden := [name for column, name in enumerate(headers) if column not in shown]:
        yield f"(no room for {', '.join(hidden)})"


Cell: TypeAlias = Callable[[Facts], object]
Columns: TypeAlias = Mapping[str, str | Cell]
"""For each header or label, a field of an object, or what makes a text of the object."""


def listing(
    found: Iterable[Facts], columns: Columns, optional: Sequence[str] = ()
) -> Iterator[str]:
    """A table of objects, with a column for each header."""
    return table(
        tuple(columns), ([value for _, value in described(one, columns)] for one in found), optional
    )


def described(one: Facts, cells: Columns) -> list[tuple[str, object]]:
    """The parts of one object by their labels, for `fact_lines`."""
    return [
        (name, one[cell] if isinstance(cell, str) else cell(one)) for name, cell in cells.items()
    ]


def brief(field: str, most: int) -> Cell:
    """A cell with at most this much of a field's text."""
    return lambda one: short(one[field], most)


def dated(field: str) -> Cell:
    """A cell with a field's time."""
    return lambda one: moment(one[field])


def terminal_width() -> int | None:
    """The width of the terminal; None if standard output is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def cell_width(text: str) -> int:
    """The number of terminal columns of a text: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    seen = [char for char in text if not unicodedata.combining(char)]
    return len(seen) + sum(unicodedata.east_asian_width(char) in "WF" for char in seen)


def cut(text: str, width: int) -> str:
    """A text that takes at most `width` columns, with an ellipsis where something is left out."""
    if cell_width(text) <= width:
        return text
    return _head(text, width - 1).rstrip() + "…"


def short(text: object, most: int) -> str:
    """A text on one line of at most `most` characters, with an ellipsis where something is left
    out.
    """
    line = " ".join(str(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


_READABLE = 18
"""The least width at which a column of text can be read."""
_LEAST_COLUMN = 6
_BREAKS = re.compile(r"(?<=[-/_ ])")


def _fit(
    natural: list[int], optional: Sequence[int], room: int | None
) -> tuple[list[int], list[int]]:
    """Choose columns and widths that fit into `room`."""
    shown = list(range(len(natural)))
    if room is None:
        return shown, natural
    for column in optional:
        if _total([min(natural[number], _READABLE) for number in shown]) <= room:
            break
        shown.remove(column)
    while (
        len(shown) > 1 and _total([min(natural[number], _LEAST_COLUMN) for number in shown]) > room
    ):
        shown.pop()
    widths = [natural[number] for number in shown]
    least = [
        min(width, _READABLE if number == 0 else _LEAST_COLUMN)
        for number, width in enumerate(widths)
    ]
    while _total(widths) > room:
        spare = [number for number, width in enumerate(widths) if width > least[number]]
        if not spare:
            widths[0] = max(1, room - _total([0, *widths[1:]]))
            break
        widths[max(spare, key=widths.__getitem__)] -= 1
    return shown, widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def wrap_cell(text: str, width: int, most_lines: int | None = None) -> list[str]:
    """Break a text into lines of at most `width` columns, at spaces and hyphens, and inside longer
    words. The last of `most_lines` lines ends with an ellipsis if something is left out."""
    lines, rest = [""], text
    while rest:
        if most_lines is not None and len(lines) == most_lines:
            lines[-1] = cut(lines[-1] + rest, width)
            break
        piece = _BREAKS.split(rest, maxsplit=1)[0]
        if cell_width((lines[-1] + piece).rstrip()) <= width:
            lines[-1] += piece
        elif lines[-1]:
            lines.append("")
            continue
        else:
            piece = _head(rest, width)
            lines[-1] = piece
        rest = rest[len(piece) :]
    return [line.rstrip() for line in lines]


def _head(text: str, width: int) -> str:
    """The longest beginning of a text that takes at most `width` columns, at least one
    character.
    """
    used = 0
    for number, char in enumerate(text):
        used += cell_width(char)
        if number and used > width:
            return text[:number]
    return text


def fact_lines(pairs: Iterable[tuple[str, object]]) -> Iterator[str]:
    """One line `name  value` for each pair; on a terminal, long values are wrapped below
    themselves.
    """
    shown = [(name, plain(value)) for name, value in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    room = terminal_width()
    for name, value in shown:
        lines = [value] if room is None else wrapped(value, max(30, room - width - 4))
        for number, line in enumerate(lines):
            yield f"  {(name if not number else '').ljust(width)}  {line}".rstrip()


def wrapped(text: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` columns, between words; longer words are not
    broken.
    """
    import textwrap

    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def sentence(text: str, *, indent: str = "  ", is_bold: bool = False) -> list[str]:
    """The lines of a sentence; on a terminal it is wrapped, and its further lines are indented."""
    room = terminal_width()
    lines = [text] if room is None else wrapped(text, max(20, room - len(indent)))
    made = [f"{indent if number else ''}{line}" for number, line in enumerate(lines)]
    return [Bold(line) for line in made] if is_bold else made


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation unless `yes`; raise MetaClawError on no, and if there is no terminal."""
    if yes:
        return
    try:
        click.confirm(_printable(question), abort=True)
    except click.Abort:
        raise MetaClawError("nothing was changed; use --yes to skip the question") from None


def edited_text(text: str, options: str) -> str:
    """The text as a person left it in their editor. Raises MetaClawError if nothing was changed, or
    no editor can be opened; `options` do without one."""
    try:
        edited = click.edit(text, extension=".md")
    except click.ClickException as error:
        raise MetaClawError(
            f"no editor could be opened ({error.message}); use {options}, or set EDITOR"
        ) from error
    if edited is None or edited.strip() == text.strip():
        raise MetaClawError("nothing was changed")
    return edited


def tell_skipped(skipped: Iterable[Mapping[str, object]], word: str = "skipped") -> None:
    """Print the files that the API could not read, and why."""
    for one in skipped:
        echo(f"{word} {one['path']}: {one['reason']}", err=True)


def plain(value: object) -> str:
    """A value on one line, with anything unprintable shown as an escape."""
    text = "–" if value is None or value == "" else str(value)
    return _printable(text).replace("\t", "\\t")


def _printable(line: str) -> str:
    return "".join(
        char
        if char.isprintable() or char == "\t"
        else char.encode("unicode_escape").decode("ascii")
        for char in line
    )


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def duration(seconds: float) -> str:
    """A length of time in its two largest units, such as `2 h 5 min`."""
    rest, found = int(seconds), list[str]()
    for size, unit in _UNITS:
        number, rest = divmod(rest, size)
        if number or (unit == "s" and not found):
            found.append(f"{number} {unit}")
        elif found:
            break
    return " ".join(found[:2])


def counted(number: object, one: str, many: str | None = None) -> str:
    """`1 turn`, `2 turns`."""
    return f"{number} {one}" if number == 1 else f"{number} {many or one + 's'}"


def moment(when: object) -> str:
    """A time of the API in the local zone, to the second."""
    if when is None:
        return "–"
    return datetime.fromisoformat(str(when)).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ago(said: object) -> str:
    """How long ago a time of the API was, such as `5 min ago`; the date if it is more than a
    week.
    """
    if said is None:
        return "–"
    when = datetime.fromisoformat(str(said))
    seconds = (utc_now() - when).total_seconds()
    if seconds < 60:
        return "just now"
    if seconds >= 7 * 86_400:
        return when.astimezone().strftime("%Y-%m-%d")
    size, unit = next(one for one in _UNITS if seconds >= one[0])
    return f"{int(seconds // size)} {unit} ago"


def _plain_value(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)


_BAR = 24
_PAUSE_S = 0.2


def show_progress(line: str) -> None:
    """Replace the progress line; an empty line removes it."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        click.echo(f"\r\033[K{cut(plain(line), width) if line else ''}", nl=False, err=True)


def bar(share: float) -> str:
    """A share from 0 to 1 as a bar with its percentage."""
    done = round(min(1.0, max(0.0, share)) * _BAR)
    return f"[{'#' * done}{'.' * (_BAR - done)}] {share:4.0%}"


@contextmanager
def shown_while(what: str) -> Iterator[None]:
    """Show a progress line with the elapsed time until the block ends."""
    if not sys.stderr.isatty():
        yield
        return
    is_done, began = threading.Event(), time.monotonic()

    def tick() -> None:
        while not is_done.wait(_PAUSE_S):
            show_progress(f"{what}, {duration(time.monotonic() - began)}")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
        show_progress("")
