"""The records of research runs, as JSON lines: every attempt at a stage, every run, and how two
conditions compare.

Each says under which condition it was made, with which seed, and whether the model was simulated:
those are never mixed."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

import msgspec

from metaclaw.plugin import MetaClawError

RECORDS: Final = "research.jsonl"

Runner = Literal["own", "autoresearchclaw"]
Ending = Literal["completed", "failed", "broken"]
"""All stages were done; a contract stayed broken, or a gate refused twice; or the model or the
program could not be used.
"""


class _Made(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pipeline: Runner
    condition: str
    seed: int
    run: int
    simulated: bool


class AttemptRecord(_Made, frozen=True, kw_only=True, tag="attempt", tag_field="type"):
    """One request for a stage's file. `broken` is what was wrong with the answer, None where it
    fulfilled the contract.
    """

    stage: int
    visit: int
    attempt: int
    is_retry: bool
    broken: str | None
    skills: tuple[str, ...] = ()
    turn: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None


class RunRecord(_Made, frozen=True, kw_only=True, tag="run", tag_field="type"):
    """One run of the pipeline, counted. What could not be counted is None: requests of prompts
    nobody knows, files of another kind.

    `lessons` are the skills that a program of its own made of what it failed at. `unlearned` is
    what the proxy was still busy to learn from earlier runs when this one began; empty where it had
    come to rest. `cost`: US dollars without judge and evolver."""

    topic: str
    scorable: int
    completed: int | None
    attempts: int | None
    retries: int | None
    refines: int | None
    rollbacks: int
    ending: Ending
    why: str = ""
    unclassified: int = 0
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost: float | None = None
    lessons: tuple[str, ...] = ()
    unlearned: tuple[str, ...] = ()


class ComparisonRecord(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="comparison",
    tag_field="type",
):
    """A metric under two conditions, over the same seeds and runs: both means, the mean paired
    difference and its 95 % interval.
    """

    metric: str
    baseline: str
    other: str
    from_run: int
    pairs: int
    baseline_mean: float
    other_mean: float
    difference: float
    low: float
    high: float


Record = AttemptRecord | RunRecord | ComparisonRecord

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Add lines to a file, in one piece."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(_encoder.encode(record) + b"\n" for record in records))


def write_research(path: Path, records: Iterable[Record]) -> None:
    """A whole file at once: afterwards it is there complete, or not at all."""
    aside = path.with_name(f"{path.name}.part")
    aside.write_bytes(b"".join(_encoder.encode(record) + b"\n" for record in records))
    aside.replace(path)


def read_research(path: Path) -> list[Record]:
    """All finished lines of a file. Raises MetaClawError where one is no record."""
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return [_decoder.decode(line) for line in lines]
    except msgspec.DecodeError as error:
        raise MetaClawError(
            f"{path} holds a line that is no record of a research run ({error}); run it again, with"
            " another --out"
        ) from error
