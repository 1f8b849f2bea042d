"""Output of commands: JSON, tables, facts and progress. Control codes in texts from elsewhere never
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
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TypeVar

import click

from metaclaw.domain.status import agent_word
from metaclaw.errors import MetaClawError

Command = TypeVar("Command", bound=Callable[..., object])


def json_option(command: Command) -> Command:
    """Adds `--json` as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")(command)


def home_and_json(command: Callable[..., object]) -> Callable[..., object]:
    """Passes the home folder as the first parameter, and adds `--json` as the parameter
    `as_json`.
    """
    return json_option(click.pass_obj(command))


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


def print_result(facts: Mapping[str, object], sentence: str, *, as_json: bool) -> None:
    """Print the facts as JSON, or the sentence."""
    if as_json:
        print_json(facts)
    else:
        click.echo(sentence)


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], optional: Sequence[str] = ()
) -> None:
    """Print a table with columns as wide as their widest value. On a terminal the table is made to
    fit.

    Columns named in `optional` are left out, in that order, while the others would be too narrow to
    read. Then the widest columns are made narrower. The first column is wrapped and never cut. The
    other columns are cut to the number of lines of the first, at least two if it is too narrow for
    any name. Output to a file or a pipe is never cut."""
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
            click.echo("  ".join(padded).rstrip())
    if hidden := [name for column, name in enumerate(headers) if column not in shown]:
        click.echo(f"(no room for {', '.join(hidden)})")


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
    kept, used = [], 1
    for char in text:
        used += cell_width(char)
        if used > width:
            break
        kept.append(char)
    return "".join(kept).rstrip() + "…"


def short(text: object, most: int) -> str:
    """A text on one line of at most `most` characters, with an ellipsis where something is left
    out.
    """
    line = " ".join(str(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def one_line(text: object, width: int) -> str:
    """A text on one line, made plain and cut."""
    return cut(plain(" ".join(str(text).split())), width)


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


def print_facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Print one `name  value` per line; on a terminal, long values are wrapped below themselves."""
    shown = [(name, plain(value)) for name, value in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    room = terminal_width()
    for name, value in shown:
        lines = [value] if room is None else wrapped(value, max(30, room - width - 4))
        for number, line in enumerate(lines):
            click.echo(f"  {(name if not number else '').ljust(width)}  {line}".rstrip())


def wrapped(text: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` columns, between words; longer words are not
    broken.
    """
    import textwrap

    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def print_wrapped(text: str, *, indent: str = "  ", bold: bool = False) -> None:
    """Print a sentence; on a terminal it is wrapped, and its further lines are indented."""
    room = terminal_width()
    lines = [text] if room is None else wrapped(text, max(20, room - len(indent)))
    for number, line in enumerate(lines):
        click.secho(f"{indent if number else ''}{line}", bold=bold)


def ask(question: str) -> None:
    """Ask for confirmation; raise MetaClawError on no, and if there is no terminal."""
    try:
        click.confirm(question, abort=True)
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


def tell_skipped(skipped: object, word: str = "skipped") -> None:
    """Print the files that the API could not read, and why."""
    for one in skipped if isinstance(skipped, list) else ():
        click.echo(f"{word} {plain(one['path'])}: {plain(one['reason'])}", err=True)


def plain(value: object) -> str:
    """A value on one line, with anything unprintable shown as an escape."""
    text = "–" if value is None or value == "" else str(value)
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def agent_name(name: object) -> str:
    """The name of an agent in words, also of an unrecognised one."""
    return plain(agent_word(name))


def plain_block(text: str) -> str:
    """A text of several lines, with anything unprintable replaced."""
    return "\n".join(
        "".join(c if c.isprintable() or c == "\t" else "�" for c in line)
        for line in text.splitlines()
    )


def duration(seconds: float) -> str:
    """A length of time in its two largest units, such as `2 h 5 min`."""
    whole = int(seconds)
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if whole >= size:
            rest, inner = whole % size, {"d": (3_600, "h"), "h": (60, "min"), "min": (1, "s")}[name]
            return f"{whole // size} {name}" + (
                f" {rest // inner[0]} {inner[1]}" if rest // inner[0] else ""
            )
    return f"{whole} s"


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
    seconds = (datetime.now(UTC) - when).total_seconds()
    if seconds < 60:
        return "just now"
    for size, limit, name in ((60, 3_600, "min"), (3_600, 86_400, "h"), (86_400, 7 * 86_400, "d")):
        if seconds < limit:
            return f"{int(seconds // size)} {name} ago"
    return when.astimezone().strftime("%Y-%m-%d")


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
