"""Reading, writing and listing files of a workspace, and of nothing else.

Nothing runs in the workspace while these do (a sandbox ends all it began), so that a path cannot
change between look and use."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path, PurePosixPath

from metaclaw_bench.workspaces import used_bytes

MAX_CHARS = 20_000
MAX_LINES = 2_000
MAX_ENTRIES = 500
MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_WORKSPACE_BYTES = 256 * 1024 * 1024
_MANY = 1_000_000_000


class RefusedError(Exception):
    """A tool cannot do that; the message is for the model."""


def inside(workspace: Path, path: str) -> Path:
    """Where a path of the workspace really lies. Raises RefusedError for one that leads out of it,
    by whatever way.
    """
    if PurePosixPath(path).is_absolute() or path.startswith("~"):
        raise RefusedError(f"{path}: write paths relative to the workspace")
    root = workspace.resolve()
    try:
        real = (root / path).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise RefusedError(f"{path!r} is no path: {error}") from error
    if not real.is_relative_to(root):
        raise RefusedError(f"{path}: leads out of the workspace")
    return real


def read(workspace: Path, path: str, offset: int = 1, limit: int = MAX_LINES) -> str:
    """Lines of a text file, from line `offset` on. Raises RefusedError or OSError."""
    if not (0 < offset < _MANY and 0 < limit < _MANY):
        raise RefusedError("offset and limit are line numbers, 1 or more")
    with _regular(workspace, path).open(encoding="utf-8", errors="replace", newline="") as file:
        text = "".join(islice(file, offset - 1, offset - 1 + limit))
        is_more = len(text) > MAX_CHARS or bool(file.readline(1))
    return f"{text[:MAX_CHARS]}\n[… more: read on with offset and limit …]" if is_more else text


def write(workspace: Path, path: str, content: str) -> str:
    """Make or replace a file, folders above it included. Raises RefusedError or OSError."""
    file = inside(workspace, path)
    if file == workspace.resolve() or file.is_dir():
        raise RefusedError(f"{path} is a folder")
    if file.exists() and not file.is_file():
        raise RefusedError(f"{path} is no ordinary file")
    try:
        body = content.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(f"the content is no text: {error.reason}") from error
    if len(body) > MAX_FILE_BYTES:
        raise RefusedError(f"a file has at most {MAX_FILE_BYTES} bytes")
    if used_bytes(workspace) + len(body) > MAX_WORKSPACE_BYTES:
        raise RefusedError(
            f"the workspace is full: all files together have at most {MAX_WORKSPACE_BYTES} bytes"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(body)
    return f"{path}: {len(body)} bytes written"


def write_all(workspace: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    """Write what can be written; for what cannot, say why."""
    refusals: list[str] = []
    for path, content in files.items():
        try:
            write(workspace, path, content)
        except (RefusedError, OSError) as error:
            refusals.append(str(error))
    return tuple(refusals)


def entries(workspace: Path, path: str = ".") -> str:
    """What lies in a folder, one name a line; folders end with a slash. Raises RefusedError or
    OSError.
    """
    folder = inside(workspace, path)
    if not folder.is_dir():
        raise RefusedError(f"{path} is no folder")
    names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in folder.iterdir())
    more = [f"[… {len(names) - MAX_ENTRIES} more …]"] if len(names) > MAX_ENTRIES else []
    return "\n".join(names[:MAX_ENTRIES] + more) or "(nothing)"


def _regular(workspace: Path, path: str) -> Path:
    file = inside(workspace, path)
    if not file.exists():
        raise RefusedError(f"{path}: there is no such file")
    if not file.is_file():
        raise RefusedError(f"{path} is no ordinary file")
    return file
