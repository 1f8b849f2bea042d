"""The record of the files in the skills folder that agreed with the store, and the decision who
changed a file since.

The store has the library; the folder is a view of it. Only a difference to what this home wrote
out, or read and published, is an edit by a person. The record is in the folder itself, so that a
lost or replaced folder has none, and is written out again."""

import hashlib
import json
from collections.abc import Mapping, Set
from enum import Enum, auto
from pathlib import Path
from typing import Final

import msgspec

from metaclaw.domain.front_matter import front_matter
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.durable_files import replace_file

RECORD_FILE: Final = ".written-out"


class FileRecord(msgspec.Struct, frozen=True):
    """The files as they were when they agreed with the store. `generation` and its `hash` identify
    the state of the store. `files` are digests of texts; `begun` are digests of texts that were
    being written and may be there or not."""

    generation: int
    hash: str
    files: Mapping[SkillName, str]
    begun: Mapping[SkillName, frozenset[str]]


def digest_of(skill: Skill) -> str:
    """A digest of everything that a skill's file says, whatever its layout."""
    extra = sorted(
        (key, json.dumps(value, default=str, skipkeys=True))
        for key, value in front_matter(skill).items()
    )
    said = "\0".join(
        (
            skill.content_hash,
            skill.state,
            skill.author,
            str(skill.pinned),
            *(text for pair in extra for text in pair),
        )
    )
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


def write_record(folder: Path, record: FileRecord, *, flush: bool) -> None:
    """Write the record into the folder. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = msgspec.json.encode(record, order="sorted")
    replace_file(folder / RECORD_FILE, content, follow_links=False, flush=flush)


def read_record(folder: Path) -> FileRecord | None:
    """The record of a folder; None if there is none that can be read."""
    try:
        return msgspec.json.decode((folder / RECORD_FILE).read_bytes(), type=FileRecord)
    except (OSError, msgspec.DecodeError):
        return None


def names_due(
    record: FileRecord, stored: Set[SkillName], changed: Set[SkillName]
) -> Set[SkillName]:
    """The skills whose files the store has changed since the record. `stored` are those in force,
    `changed` those of them whose text is another than in the record's generation."""
    return changed | record.begun.keys() | (stored ^ record.files.keys())


class NoText(Enum):
    """A file without a readable skill. An empty file may be the result of a power loss, and does
    not count as an edit.
    """

    EMPTY = auto()
    UNREADABLE = auto()


class FileFate(Enum):
    """What becomes of a file that differs from the store."""

    WRITE = auto()
    """No person changed it: it gets the store's text, or is removed with it."""
    EDITED = auto()
    """A person wrote it."""
    REMOVED = auto()
    """A person removed it, or made it unreadable: its skill is retired."""
    LEFT = auto()
    """It cannot be read, and the skill was never in it: the store's text stays in force, and the
    file as it is.
    """


def fate_of(
    found: str | NoText | None, written: str | None, begun: frozenset[str], *, is_due: bool
) -> FileFate:
    """What becomes of a file whose digest is `found` (None: there is no file). `written` is its
    digest when it last agreed with the store; `begun` are texts that were being written. `is_due`
    says that the store has changed the skill since."""
    if isinstance(found, str):
        return (
            FileFate.WRITE if is_due and (found == written or found in begun) else FileFate.EDITED
        )
    if is_due or written is None:
        return FileFate.LEFT if found is NoText.UNREADABLE else FileFate.WRITE
    return FileFate.REMOVED
