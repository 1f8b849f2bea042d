"""Background loops: everything that runs beside serving and never in its way.

`assembly.Learning` is not imported here: it brings half the program along, and serving does not wait for it to load.
"""

from metaclaw.learn.supervise import Supervisor

__all__ = ["Supervisor"]
