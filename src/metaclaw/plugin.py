"""Public interface for distributions that add commands to `metaclaw`, such as `metaclaw-bench` and
`metaclaw-demo`.

A distribution names its command in the entry-point group `metaclaw.commands`. Everything else it
needs of the program it gets as any other client does: by the command line and the HTTP API
(docs/http.md). What is not named here may change at any time."""

from metaclaw import __version__
from metaclaw.cli import plain, print_json, print_table
from metaclaw.cli.agents import first_model
from metaclaw.cli.client import ApiClient, Facts, Fields, message_in, parsed
from metaclaw.cli.home import prepared
from metaclaw.cli.lifecycle import launch, stop_proxy
from metaclaw.cli.output import bar, duration, echo, short, show_progress
from metaclaw.config import Config, ProviderConfig
from metaclaw.config import load as load_config
from metaclaw.errors import ConfigError, MetaClawError
from metaclaw.instance import Running, find

__all__ = [
    "ApiClient",
    "Config",
    "ConfigError",
    "Facts",
    "Fields",
    "MetaClawError",
    "ProviderConfig",
    "Running",
    "__version__",
    "bar",
    "duration",
    "echo",
    "find",
    "first_model",
    "launch",
    "load_config",
    "message_in",
    "parsed",
    "plain",
    "prepared",
    "print_json",
    "print_table",
    "short",
    "show_progress",
    "stop_proxy",
]
