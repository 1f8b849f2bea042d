"""Public interface for distributions that add commands to `metaclaw`, such as `metaclaw-bench`.

A distribution names its command in the entry-point group `metaclaw.commands`. Everything else it
needs of the program it gets as any other client does: by the command line and the HTTP API
(docs/http.md). What is not named here may change at any time."""

from metaclaw import __version__
from metaclaw.cli import plain, print_json, print_table
from metaclaw.errors import ConfigError, MetaClawError
from metaclaw.instance import Running, find

__all__ = [
    "ConfigError",
    "MetaClawError",
    "Running",
    "__version__",
    "find",
    "plain",
    "print_json",
    "print_table",
]
