"""Files that survive a power cut: replaced in one step, and on disk when the call returns."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

OWNER_ONLY: Final = 0o600
BY_UMASK: Final = 0o666


def replace_file(
    path: Path, *parts: bytes, mode: int = OWNER_ONLY, follow_links: bool = True, flush: bool = True
) -> None:
    """Replace a file, or create it. Readers, and the disk after a crash, have the old content or
    the new. Raises OSError and leaves the old content. A process that is killed meanwhile may leave
    `.NAME.*.tmp` beside the file.

    Without `follow_links` a link is replaced, not the file that it names. Without `flush` a power
    cut may lose the new content until `sync_path` has flushed the file and its folder."""
    target = path.resolve() if follow_links else path
    draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        write_file(draft, *parts, mode=mode, flush=flush)
        draft.replace(target)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    if flush:
        sync_path(target.parent)


def write_file(path: Path, *parts: bytes, mode: int = BY_UMASK, flush: bool = True) -> None:
    """Write a file in place, such as one in a folder that is renamed when it is complete. Raises
    OSError.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        for part in parts:
            file.write(part)
        if flush:
            file.flush()
            os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
