"""The program: its composition (`Application`), its start and its end."""

from metaclaw.app.serving import ReadyProxy, run

__all__ = ["ReadyProxy", "run"]
