"""Background loops: everything that runs beside serving and never in its way."""

from metaclaw.learn.supervise import Supervisor

__all__ = ["Supervisor"]
