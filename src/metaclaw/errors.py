"""The error tree, by who must act.

MetaClawError
├─ ConfigError     the owner edits the file                → exit 2, one sentence
├─ WireError       the client sent nonsense                → 4xx in the wire's shape
├─ UpstreamError   the provider failed (status, retryable) → its status, or 502
├─ SkillError      a skill file is unusable                → skipped, shown
├─ JudgeError      no verdict could be had                 → unknown, tried again
├─ LearnerError    the process that learns has ended       → started again
├─ EngineError     the embedded model cannot answer        → 503
└─ StoreError      the database is unusable                → serve on, degraded, loudly
"""


class MetaClawError(Exception):
    """Root of every error this program raises on purpose."""


class ConfigError(MetaClawError):
    """The configuration cannot be used; the message names file, key and remedy."""


class WireError(MetaClawError):
    """A request that cannot be understood; carries the HTTP status and the machine-readable code to answer with."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request_error", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class UpstreamError(MetaClawError):
    """A provider did not answer, or answered with something that is not an answer."""

    def __init__(self, message: str, *, status: int = 502, retryable: bool = False, code: str = "upstream_error") -> None:
        super().__init__(message)
        self.status = status
        self.retryable = retryable
        self.code = code


class BudgetError(UpstreamError):
    """A call of the program's own is not made, because today's learning budget is used up."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=429, code="learning_budget")


class EngineError(UpstreamError):
    """The embedded model cannot serve this request."""

    def __init__(self, message: str, *, status: int = 503, retryable: bool = False, code: str = "engine_unavailable") -> None:
        super().__init__(message, status=status, retryable=retryable, code=code)


class SkillError(MetaClawError):
    """A skill file is unusable; the message names the file and the remedy."""


class JudgeError(MetaClawError):
    """A judge is down, slow or cannot be understood; what it was asked about stays unknown."""


class LearnerError(MetaClawError):
    """The process that learns is gone; nothing is lost, and another one goes on."""


class TrainingError(MetaClawError):
    """A training step did not happen, or weights cannot be used; the next window tries again."""


class BackendDownError(TrainingError):
    """The training service cannot be reached; the call is repeated until it is back."""


class MissingPackageError(TrainingError):
    """A package that training needs is not installed; the message says how to install it."""


class TrainingBudgetError(TrainingError):
    """The day's learning budget does not pay for the judge that scores answers; training goes on when it does."""


class TrainerMemoryError(TrainingError):
    """The trainer finds too little memory, however little it works on at once; it tries again later."""


class WeightsLostError(TrainingError):
    """The host cannot load these weights: they are missing, cut, or not for this model."""


class StoreError(MetaClawError):
    """The database cannot be read or written now."""
