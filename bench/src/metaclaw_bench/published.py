"""The files of MetaClaw-Bench as they are written: their shapes, and reading one with an error that
names file and field.
"""

from pathlib import Path
from typing import TypeVar

import msgspec

from metaclaw.plugin import ConfigError

_Shape = TypeVar("_Shape")


class IndexedDay(msgspec.Struct):
    """A day in the index: which workspace (`id`), which questions (`eval`), which seeded transcript
    (`agent`, `session`).
    """

    id: str
    eval: str
    session: str
    agent: str = ""
    desc: str = ""
    arc: str = ""
    preference_tags: list[str] = msgspec.field(default_factory=list)


class Index(msgspec.Struct):
    """`all_tests.json`: the days in their order, and where their parts lie."""

    name: str
    test: list[IndexedDay]
    eval_dir: str
    workspace_src: str
    openclaw_state_dir: str = ""


class Commented(msgspec.Struct):
    """What is said after a round."""

    correct: str = ""
    incorrect: str = ""
    options: dict[str, str] = msgspec.field(default_factory=dict)


class CommandEval(msgspec.Struct):
    """How files are checked. The data uses the first two only; the published runner knows the
    others as well.
    """

    command: str
    expect_exit: int = 0
    timeout: float = 30.0
    expect_stdout: str | None = None
    expect_stdout_regex: bool = False


class ChoiceEval(msgspec.Struct):
    """Options by letter, and the right letters. A single letter may stand without a list."""

    options: dict[str, str]
    answer: list[str] | str


class FileRound(msgspec.Struct, tag_field="type", tag="file_check"):
    """A round whose answer is files."""

    id: str
    question: str
    eval: CommandEval
    feedback: Commented = msgspec.field(default_factory=Commented)
    update: list[msgspec.Raw] = msgspec.field(default_factory=list)


class ChoiceRound(msgspec.Struct, tag_field="type", tag="multi_choice"):
    """A round whose answer is letters in a box."""

    id: str
    question: str
    eval: ChoiceEval
    feedback: Commented = msgspec.field(default_factory=Commented)
    update: list[msgspec.Raw] = msgspec.field(default_factory=list)


class Group(msgspec.Struct):
    """`questions.json`: the rounds of one day."""

    rounds: list[FileRound | ChoiceRound]
    desc: str = ""


class Piece(msgspec.Struct):
    """A piece of a message's content; only texts are read."""

    type: str
    text: str = ""


class Message(msgspec.Struct):
    """A message of a seeded transcript."""

    role: str
    content: list[Piece] | str


class Line(msgspec.Struct):
    """A line of a seeded transcript; those of other types carry no message."""

    type: str
    message: Message | None = None


def read(path: Path, shape: type[_Shape]) -> _Shape:
    """One JSON file as `shape`. Raises ConfigError that names the file and the field."""
    return decode(content(path), shape, str(path))


def content(path: Path) -> bytes:
    """The bytes of a file of the benchmark."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); the benchmark needs it"
        ) from error


def decode(raw: bytes, shape: type[_Shape], where: str) -> _Shape:
    """JSON as `shape`; `where` is what an error calls it."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {error}; get the benchmark's data again, unchanged") from None
