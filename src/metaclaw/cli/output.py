"""What commands print: facts as JSON, or words; text from outside never reaches the terminal as control codes."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import click

from metaclaw.errors import MetaClawError

Command = TypeVar("Command", bound=Callable[..., object])


def json_option(command: Command) -> Command:
    """Adds `--json` as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")(command)


def print_json(facts: Mapping[str, object]) -> None:
    """Facts for programs: one JSON object, ASCII only, so that no terminal or pipe can spoil it."""
    click.echo(json.dumps(facts, indent=2, default=_plain_value))


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Facts for people: columns as wide as their widest value."""
    cells = [list(headers), *([plain(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(headers))]
    for line in cells:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def print_facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Facts for people: one `name  value` a line."""
    shown = [(name, plain(value)) for name, value in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"  {name.ljust(width)}  {value}".rstrip())


def ask(question: str) -> None:
    """Ask; no is an end without a change, and so is nobody there to answer."""
    try:
        click.confirm(question, abort=True)
    except click.Abort:
        raise MetaClawError("nothing was changed; say --yes to go on without being asked") from None


def plain(value: object) -> str:
    """A value on one line, with anything unprintable shown as an escape."""
    text = "–" if value is None or value == "" else str(value)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def plain_block(text: str) -> str:
    """A text of several lines, each of them made plain."""
    return "\n".join("".join(c if c.isprintable() or c == "\t" else "�" for c in line) for line in text.splitlines())


def duration(seconds: float) -> str:
    """A length of time as a person says it."""
    whole = int(seconds)
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if whole >= size:
            rest, inner = whole % size, {"d": (3_600, "h"), "h": (60, "min"), "min": (1, "s")}[name]
            return f"{whole // size} {name}" + (f" {rest // inner[0]} {inner[1]}" if rest // inner[0] else "")
    return f"{whole} s"


def counted(number: object, one: str, many: str | None = None) -> str:
    """`1 turn`, `2 turns`."""
    return f"{number} {one}" if number == 1 else f"{number} {many or one + 's'}"


def moment(when: datetime | None) -> str:
    """A time in this machine's own zone, to the second."""
    return "–" if when is None else when.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _plain_value(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)
