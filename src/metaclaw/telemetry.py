"""What observers of the program are told: plugins that send traces and metrics elsewhere
(`telemetry.otlp`). None of it holds the words of a prompt or an answer.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Protocol, TypeVar, cast

from metaclaw.domain.chat import Usage
from metaclaw.domain.turn import Turn
from metaclaw.hooks import TELEMETRY, PluginError, call_plugin

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OwnCalls:
    """The program's own calls of a model for one purpose: one request and its repetitions. `model`
    is `provider/model`."""

    purpose: str
    model: str
    began: datetime
    ended: datetime
    calls: int
    failures: int
    usage: Usage


@dataclass(frozen=True, slots=True)
class TrainingSpan:
    """The training of one batch, with the proof of what came of it. `version` is the candidate;
    `error` says why there is none."""

    batch: int
    began: datetime
    ended: datetime
    version: int | None
    error: str | None


class Observer(Protocol):
    """A plugin's. Its methods must not block, and are called in any thread."""

    def turn(self, turn: Turn) -> None:
        """A request was answered."""

    def own_calls(self, calls: OwnCalls) -> None:
        """A model was asked by the program itself."""

    def training(self, span: TrainingSpan) -> None:
        """A batch was trained."""

    def close(self) -> None:
        """The program ends. May block for a few seconds."""


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """What a plugin is given: where to send to, and the version of the program."""

    endpoint: str
    version: str


@cache
def observer_of(endpoint: str | None, version: str) -> Observer | None:
    """The observer of this process; None without an endpoint, or if its plugin does not work."""
    if endpoint is None:
        return None
    try:
        return cast(
            "Observer", call_plugin(TELEMETRY, "otlp", TelemetrySettings(endpoint, version))
        )
    except PluginError as error:
        log.error("telemetry_off reason=%s", error)
        return None


def tell(observe: Callable[[T], None], what: T) -> None:
    """Tell an observer; a fault of it must not break what it observes."""
    try:
        observe(what)
    except Exception:
        log.exception("telemetry_failed")
