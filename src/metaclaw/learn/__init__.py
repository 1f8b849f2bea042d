"""Background loops: everything that runs beside serving and never in its way."""

from metaclaw.learn.assembly import Learning
from metaclaw.learn.owner import Owner, SkillFacts
from metaclaw.learn.supervise import Supervisor

__all__ = ["Learning", "Owner", "SkillFacts", "Supervisor"]
