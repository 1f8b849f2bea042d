"""The program: its composition (`Application`), its start and its end."""

from metaclaw.app.serving import StartedProxy, run

__all__ = ["StartedProxy", "run"]
