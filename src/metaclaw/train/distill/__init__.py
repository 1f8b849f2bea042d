"""Learning from somebody who knows better: oneself in hindsight, or a teacher."""

from metaclaw.train.distill.endpoint import EndpointTeacher
from metaclaw.train.distill.hindsight import hinted, imitate
from metaclaw.train.distill.teacher import Teacher, taught

__all__ = ["EndpointTeacher", "Teacher", "hinted", "imitate", "taught"]
