"""The errors of the program, and what it does on each.

MetaClawError
├─ ConfigError      the configuration is invalid            → exit 2, one sentence
├─ WireError        the client's request is invalid         → 4xx in the wire's format
├─ UpstreamError    the provider failed (status, retryable) → its status, or 502
│  └─ EngineError   the embedded model cannot answer        → 503
├─ SkillError       a skill file is unusable                → skipped and reported
├─ JudgeError       the judge gave no verdict               → unknown, tried again
├─ LearnerError     the learner process has ended           → started again
├─ TrainingError    a training step failed                  → tried again in the next window
└─ StoreError       the database is unusable                → keep serving, report as degraded
   ├─ OvertakenError  another home published first           → tried again on its generation
   └─ DeposedError    another program leads the learning now → this one stops learning
"""

from typing import Final

OUT_OF_RESOURCES: Final = (OSError, MemoryError, RuntimeError)
"""What Python raises when the system has no more files, memory, disk space or threads
(RuntimeError).
"""


class MetaClawError(Exception):
    """Root of every error this program raises on purpose."""


class ConfigError(MetaClawError):
    """The configuration cannot be used; the message names file, key and remedy."""


class WireError(MetaClawError):
    """A request that cannot be understood; carries the HTTP status and the machine-readable code to
    answer with.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str = "invalid_request_error",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class UpstreamError(MetaClawError):
    """A provider did not answer, or answered with something that is not an answer."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 502,
        retryable: bool = False,
        code: str = "upstream_error",
        wait_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retryable = retryable
        self.code = code
        self.wait_s = wait_s
        """When a client should try again, if that is known."""


class BudgetError(UpstreamError):
    """The program does not call a model for itself because today's learning budget is used up."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=429, code="learning_budget")


class EngineError(UpstreamError):
    """The embedded model cannot serve this request."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 503,
        retryable: bool = False,
        code: str = "engine_unavailable",
        wait_s: int | None = None,
    ) -> None:
        super().__init__(message, status=status, retryable=retryable, code=code, wait_s=wait_s)


class SkillError(MetaClawError):
    """A skill file is unusable; the message names the file and the remedy."""


class JudgeError(MetaClawError):
    """A judge is down, slow or its answer cannot be read; the verdict stays unknown."""


class LearnerError(MetaClawError):
    """The learner process has ended. Nothing is lost: another process continues."""


class TrainingError(MetaClawError):
    """A training step failed, or weights cannot be used; the next window tries again."""


class BackendDownError(TrainingError):
    """The training service cannot be reached; the call is repeated until it is back."""


class MissingPackageError(TrainingError):
    """A package that training needs is not installed; the message says how to install it."""


class TrainingBudgetError(TrainingError):
    """Today's learning budget does not pay for the judge that scores answers; training continues
    when it does.
    """


class TrainerMemoryError(TrainingError):
    """The trainer has too little memory even for the smallest piece of work; it tries again
    later.
    """


class WeightsLostError(TrainingError):
    """The host cannot load these weights: they are missing, truncated, or made for another
    model.
    """


class StoreError(MetaClawError):
    """The database cannot be read or written now."""


class OvertakenError(StoreError):
    """Another process published a skill generation first; the change is made again on that one."""


class DeposedError(StoreError):
    """Another program on the same store has taken over learning; nothing was written."""
