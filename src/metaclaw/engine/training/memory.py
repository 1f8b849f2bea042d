"""Running out of memory: work is tried again on half as much at once, until it fits or there is no sense in less."""

import gc
import logging
from collections.abc import Callable
from typing import Final, TypeVar

import torch

from metaclaw.errors import TrainerMemoryError

log = logging.getLogger(__name__)

_LEAST_SHARE: Final = 1.0 / 64.0
_SIGNS: Final = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
_MOST_CHARS: Final = 240
_T = TypeVar("_T")


class WorkShare:
    """Which share of the usual amount is worked on at once. `release` lets go of everything that can be made again."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self.share = 1.0

    def of(self, most: int) -> int:
        """How much of this may be worked on at once."""
        return max(1, int(self.share * most))

    def run(self, work: Callable[[], _T]) -> _T:
        """Do some work that leaves nothing behind when it fails. Raises TrainerMemoryError where even the smallest share has too
        little memory."""
        while True:
            try:
                return work()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = in_words(error)
            # Here, because the traceback above holds what was computed.
            self._release()
            free_memory()
            if self.share <= _LEAST_SHARE:
                raise TrainerMemoryError(reason)
            self.share /= 2.0
            log.warning("memory_short share=%g reason=%s", self.share, reason)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether this, or what it followed from, is a lack of memory: recording a CUDA graph hides the first error behind another."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in str(error) for sign in _SIGNS):
            return True
        error = error.__cause__ or error.__context__
    return False


def in_words(error: BaseException) -> str:
    """A lack of memory, for people."""
    return f"the trainer finds too little memory ({' '.join(str(error).split())[:_MOST_CHARS].rstrip('. ')})"


def free_memory() -> None:
    """Give back what torch keeps for later."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
