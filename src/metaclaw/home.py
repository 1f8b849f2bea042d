"""The home folder of the program."""

import os
from collections.abc import Mapping
from pathlib import Path


def default_home(env: Mapping[str, str] | None = None) -> Path:
    """`METACLAW_HOME`, or `~/.metaclaw`."""
    named = (os.environ if env is None else env).get("METACLAW_HOME", "").strip()
    return Path(named or "~/.metaclaw").expanduser().absolute()
