"""The program: its composition (`Application`), its start and its end; and the API of a home in
which it does not run. Each name is imported when it is first used: a command needs one of them."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metaclaw.app.model_server import find_server
    from metaclaw.app.offline import answer_offline
    from metaclaw.app.providers import build_endpoint
    from metaclaw.app.ready import ReadyProxy
    from metaclaw.app.serving import run


_LOADED_ON_USE = {
    "answer_offline": "offline",
    "build_endpoint": "providers",
    "find_server": "model_server",
    "ReadyProxy": "ready",
    "run": "serving",
}


def __getattr__(name: str) -> object:
    if name not in _LOADED_ON_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"metaclaw.app.{_LOADED_ON_USE[name]}"), name)
