"""Learning from somebody who knows better: oneself in hindsight, or a teacher."""

from metaclaw.train.distill.endpoint import EndpointTeacher
from metaclaw.train.distill.hindsight import Hindsight, hinted, imitate, nudge
from metaclaw.train.distill.teacher import Teacher, taught

__all__ = ["EndpointTeacher", "Hindsight", "Teacher", "hinted", "imitate", "nudge", "taught"]
