"""The records of a run, as JSON lines: what was planned, every round as it went, and what was
learned when.

Every record says under which condition and ablations it was made, with which seed, and whether the
policy was simulated. A line is written whole, newline included, or not at all: what stands after
the last newline of a file was never finished and is not read."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypedDict

import msgspec

from metaclaw.plugin import MetaClawError

Phase = Literal["stream", "again", "held_out"]
"""The days in order; early days once more at the end; days that nothing is learned from."""

RoundKind = Literal["multi_choice", "file_check"]

EventKind = Literal[
    "generation",
    "version",
    "version_refused",
    "skill_born",
    "skill_refused",
    "skill_retired",
    "trouble",
]

TAIL_CHARS: Final = 400


class RecordError(MetaClawError):
    """Records that cannot be read or do not belong together; the message names the file, the line
    and the remedy.
    """


class Made(TypedDict):
    """Where a run's records come from: what all kinds of them begin with."""

    run: str
    benchmark: str
    condition: str
    ablation: tuple[str, ...]
    seed: int
    simulated: bool


class _Made(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a record comes from. `ablation` holds labels such as `gate=off`, sorted; empty where
    nothing was changed.
    """

    run: str
    benchmark: str
    condition: str
    ablation: tuple[str, ...] = ()
    seed: int
    simulated: bool

    @property
    def cell(self) -> str:
        """Condition and ablations as one label."""
        return " · ".join((self.condition, *self.ablation))


class PlanRecord(_Made, frozen=True, kw_only=True, tag="plan", tag_field="type"):
    """What a run set out to do. Scores are divided by the rounds planned, whatever became of them;
    `words` tell of its settings, `sandbox` what kept the agent from the answers."""

    stream: int
    again: int = 0
    held_out: int = 0
    words: str = ""
    sandbox: str = ""


class RoundRecord(_Made, frozen=True, kw_only=True, tag="round", tag_field="type"):
    """One round.

    `exact` is None but for a choice, `reward` where nobody could say, tokens and cost (US dollars)
    where nobody counted. `failure` is why there is no answer to score, which is not the same as a
    wrong one; `defect` the class of a known defect of the question. `skills` are those placed in
    its prompt, `tail` the end of the answer (see `tail_of`)."""

    day: str
    day_number: int
    round: str
    kind: RoundKind
    score: float
    passed: bool
    exact: bool | None
    held_out: bool
    phase: Phase
    rules: tuple[str, ...] = ()
    generation: int = 0
    policy_version: int = 0
    skills: tuple[str, ...] = ()
    reward: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost: float | None = None
    seconds: float = 0.0
    failure: str | None = None
    defect: str | None = None
    tail: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        """Which question it is, whoever answers: what pairs the rounds of two conditions."""
        return self.phase, self.day, self.round


class EventRecord(_Made, frozen=True, kw_only=True, tag="event", tag_field="type"):
    """Something was learned, refused or taken back, after so many rounds of a day. `number` is the
    generation or version it is about, `name` the skill; `numbers` are what it cost or measured, by
    name (`tokens`, `steps`, …)."""

    day: str
    day_number: int
    after: int
    kind: EventKind
    number: int | None = None
    name: str | None = None
    why: str = ""
    numbers: dict[str, float] = {}


Record = PlanRecord | RoundRecord | EventRecord

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class RecordWriter:
    """Appends records to a file, each in one piece. A line that an interrupted run left half done
    is cut off first.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _mend(path)
        self._file = path.open("ab", buffering=0)

    def write(self, *records: Record) -> None:
        """Append, in order."""
        for record in records:
            self._file.write(_encoder.encode(record) + b"\n")

    def close(self) -> None:
        """Nothing is written afterwards."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_records(path: Path) -> list[Record]:
    """All finished lines of a file. Raises RecordError naming the first that is no record."""
    try:
        whole = path.read_bytes()
    except OSError as error:
        raise RecordError(
            f"{path}: cannot be read ({error.strerror}); name a file of records, such as"
            " rounds.jsonl"
        ) from error
    lines = whole.split(b"\n")[:-1]
    return [_decode(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]


def read_all(paths: Iterable[Path]) -> list[Record]:
    """The records of several files, and of all `*.jsonl` in and below folders, in the order of
    their names.
    """
    return [record for path in paths for file in _files(path) for record in read_records(file)]


def write_records(path: Path, records: Sequence[Record]) -> None:
    """A whole file at once: afterwards it is there complete, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.part")
    aside.write_bytes(b"".join(_encoder.encode(record) + b"\n" for record in records))
    aside.replace(path)


def of_one_kind(records: Sequence[Record]) -> bool:
    """Whether they are simulated. Raises RecordError where some are and some are not: such numbers
    are never put side by side.
    """
    kinds = {record.simulated for record in records}
    if len(kinds) > 1:
        simulated = sorted({record.run for record in records if record.simulated})
        real = sorted({record.run for record in records if not record.simulated})
        told = f"simulated: {_named(simulated)}; of a real model: {_named(real)}"
        raise RecordError(
            f"simulated and real records are never mixed ({told}); make one report of each"
        )
    return True in kinds


def tail_of(answer: str) -> str:
    """The end of an answer, as it is kept."""
    return answer[-TAIL_CHARS:]


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]


def _decode(line: bytes, path: Path, number: int) -> Record:
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError as error:
        raise RecordError(
            f"{path}, line {number}: no record of a benchmark run ({error}); name the folder given"
            " as --out, or run it again"
        ) from error


def _mend(path: Path) -> None:
    """Cut off what stands after the last newline."""
    if not path.exists():
        return
    whole = path.read_bytes()
    kept = whole.rfind(b"\n") + 1
    if kept < len(whole):
        with path.open("r+b") as file:
            file.truncate(kept)


def _named(runs: Sequence[str]) -> str:
    most = 3
    return ", ".join(runs[:most]) + (f" and {len(runs) - most} more" if len(runs) > most else "")
