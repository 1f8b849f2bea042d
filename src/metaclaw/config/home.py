"""The home folder: its place, its creation, and atomic replacement of files in it."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from metaclaw.errors import ConfigError

CONFIG_NAME = "config.toml"


def default_home(env: Mapping[str, str] | None = None) -> Path:
    """`METACLAW_HOME`, or `~/.metaclaw`."""
    named = (os.environ if env is None else env).get("METACLAW_HOME", "").strip()
    return Path(named or "~/.metaclaw").expanduser().absolute()


def prepare_home(home: Path) -> None:
    """Create the home folder and its subfolders, for their owner only."""
    try:
        for folder in (home, home / "run", home / "logs", home / "skills"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the home folder {home} cannot be used ({error.strerror}): choose another with METACLAW_HOME") from error


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically, readable by its owner only; a crash leaves the old or the new content."""
    target = path.resolve()
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
