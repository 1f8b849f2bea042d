"""The program put together and run."""

from metaclaw.app.serving import Serving, run

__all__ = ["Serving", "run"]
