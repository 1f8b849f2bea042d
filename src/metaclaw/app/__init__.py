"""The program: its composition (`Application`), its start and its end; and the API of a home in
which it does not run. Each name is imported when it is first used: a command needs one of them."""

from typing import TYPE_CHECKING

from metaclaw.loading import loaded_on_use

if TYPE_CHECKING:
    from metaclaw.app.model_server import find_server
    from metaclaw.app.offline import answer_offline
    from metaclaw.app.providers import build_endpoint
    from metaclaw.app.ready import ReadyProxy
    from metaclaw.app.serving import Predecessor, run

_LOADED_ON_USE = {
    "answer_offline": "offline",
    "build_endpoint": "providers",
    "find_server": "model_server",
    "Predecessor": "serving",
    "ReadyProxy": "ready",
    "run": "serving",
}
__getattr__ = loaded_on_use(__name__, _LOADED_ON_USE)
