"""The models that the program calls itself: listener, judge and evolver. Also their health: which
listeners fail and when they are asked again, and which models give unusable answers."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from metaclaw.clock import utc_now
from metaclaw.config import EvolverConfig, JudgeConfig, ListenConfig
from metaclaw.domain.chat import Json
from metaclaw.ports import Model, ModelProvider
from metaclaw.text import shorten
from metaclaw.upstream import UNMETERED, HttpEndpoint, HttpModel, LocalModel, Meter

Provider = HttpEndpoint | ModelProvider
UNLEARNED: Final[Mapping[str, object]] = {
    "listener": {"unread": 0, "failing": [], "not_understood": []},
    "unusable": [],
    "set_aside": [],
    "counted": [],
}
"""The `status` of learning before anything was learned."""
Answered = Callable[[str, str | None], None]
"""Called with the name of a model that answered, and with the reason why its answer cannot be used,
or None.
"""
JUDGE: Final = "judge"
EVOLVER: Final = "evolver"
# A judge may give an unreadable vote now and then; an evolver is asked rarely, and nothing is
# learned without its answer.
_LEAST_IN_A_ROW: Final = {JUDGE: 3, EVOLVER: 1}
_PAUSES_S: Final = (2.0, 5.0, 15.0)
_COSTLY_PAUSES_S: Final = (2.0, 15.0, 60.0)
_REASON_CHARS: Final = 200


class Models:
    """Creates one `Model` for each provider and model name, at its first use."""

    def __init__(self, providers: Sequence[Provider], meter: Meter = UNMETERED) -> None:
        self._providers = {provider.name: provider for provider in providers}
        self._meter = meter
        self._known: dict[tuple[str, str, float, str], HttpModel | LocalModel | None] = {}

    def listener(
        self, section: ListenConfig, judge: JudgeConfig
    ) -> Callable[[str, str], Model | None]:
        """A function that returns the model that may read a conversation, given its provider and
        model; or None.

        Another provider sees a person's words only if the configuration names it, or names a model
        that it lists. The embedded model reads only if it is named. The returned model does not
        wait for calls of other purposes."""
        model, named = section.model or judge.model, section.provider or judge.provider

        def ask(provider: str, served: str) -> Model | None:
            chosen = named or (model and self._having(model, first=provider)) or self._own(provider)
            return self._model(chosen, model or served, section.timeout_s, "listen")

        return ask

    def shown_listener(self, section: ListenConfig, judge: JudgeConfig) -> str | None:
        """The model that reads messages, for `status`; None if there is none."""
        model, named = section.model or judge.model, section.provider or judge.provider
        has_own = any(map(self._own, self._providers))
        if not (named or (model and self._having(model)) or has_own):
            return None
        if named is None and not model:
            return "the provider and model of the conversation"
        return (
            f"{named or 'the provider of the conversation'},"
            f" {model or 'the model of the conversation'}"
        )

    def _own(self, provider: str) -> str | None:
        """The provider's name if the program may ask it, else None."""
        endpoint = self._providers.get(provider)
        return (
            provider if isinstance(endpoint, HttpEndpoint) and not endpoint.is_passthrough else None
        )

    def _model(
        self, provider: str | None, model: str, timeout_s: float, lane: str = ""
    ) -> HttpModel | LocalModel | None:
        if provider is None:
            return None
        key = (provider, model, timeout_s, lane)
        if key not in self._known:
            self._known[key] = self._build(provider, model, timeout_s)
        return self._known[key]

    def chosen(self, section: JudgeConfig | EvolverConfig) -> Callable[[str], Model | None]:
        """A function that returns the model to ask, given the model of a turn: at the configured
        provider, or at the first that has the model.

        The embedded model is asked only if it is named, because it is too small to judge or to
        write."""

        def ask(served: str) -> Model | None:
            model = section.model or served
            provider = section.provider or self._having(model) or self._provider(section)
            return self._model(provider, model, section.timeout_s)

        return ask

    def _having(self, model: str, first: str = "") -> str | None:
        """The first provider that may be asked and lists this model; `first` before the others."""
        names = sorted(self._providers, key=lambda name: name != first)
        return next(
            (name for name in names if self._own(name) and model in self._providers[name].models),
            None,
        )

    def shown(self, section: JudgeConfig | EvolverConfig) -> str | None:
        """The model that is asked, for `status`; None if there is none."""
        provider = self._provider(section)
        return (
            None
            if provider is None
            else f"{provider}/{section.model or 'the model that served the turn'}"
        )

    def _provider(self, section: JudgeConfig | EvolverConfig) -> str | None:
        return section.provider or next(filter(self._own, self._providers), None)

    def _build(self, provider: str, model: str, timeout_s: float) -> HttpModel | LocalModel | None:
        match self._providers.get(provider):
            case None:
                return None
            case HttpEndpoint() as http:
                return (
                    None
                    if http.is_passthrough
                    else HttpModel(http, model, meter=self._meter, timeout_s=timeout_s)
                )
            case inside:
                return LocalModel(inside, model, meter=self._meter, timeout_s=timeout_s)


@dataclass(slots=True)
class _Outage:
    """Failures of a model since its last answer. `is_probed` says that the model is reading a
    message now.
    """

    since: str
    reason: str = ""
    failures: int = 0
    again_at: float = 0.0
    is_probed: bool = False


@dataclass(slots=True)
class _Unusable:
    """Unusable answers of a model: all of them, and those since the last usable answer."""

    answers: int = 0
    in_a_row: int = 0
    reason: str = ""
    at: str = ""

    def add(self, reason: str) -> None:
        self.answers += 1
        self.in_a_row += 1
        self.reason, self.at = shorten(reason, _REASON_CHARS), _utc_now()


class ListenerHealth:
    """Remembers failures by the name of the model. A model that fails gets one message at a time,
    after a pause of at most 15 seconds, or 60 seconds after a timeout, which may cost tokens. Its
    first answer ends the pause for all messages."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._outages: dict[str, _Outage] = {}
        self._unusable: defaultdict[str, _Unusable] = defaultdict(_Unusable)

    def admits(self, model: str) -> bool:
        """Whether the model may read a message now; the caller calls `release` afterwards."""
        outage = self._outages.get(model)
        if outage is None:
            return True
        if outage.is_probed or outage.again_at > self._now():
            return False
        outage.is_probed = True
        return True

    def release(self, model: str) -> None:
        """Record that the model has ended reading the message."""
        if (outage := self._outages.get(model)) is not None:
            outage.is_probed = False

    def failures(self, model: str) -> int:
        """The number of failures since the model's last answer."""
        outage = self._outages.get(model)
        return 0 if outage is None else outage.failures

    def record_failure(self, model: str, reason: str, *, is_costly: bool) -> None:
        """Record that the model gave no answer; `is_costly` says that the provider may charge for
        it nevertheless.
        """
        outage = self._outages.setdefault(model, _Outage(_utc_now()))
        pauses_s = _COSTLY_PAUSES_S if is_costly else _PAUSES_S
        outage.again_at = self._now() + pauses_s[min(outage.failures, len(pauses_s) - 1)]
        outage.failures += 1
        outage.reason = shorten(reason, _REASON_CHARS)

    def record_usable(self, model: str) -> None:
        """Record a usable answer."""
        self._outages.pop(model, None)
        self._unusable[model].in_a_row = 0

    def is_usable(self, model: str) -> bool:
        """Whether the last answer of the model was usable, or it has given none."""
        return not self._unusable[model].in_a_row

    def record_unusable(self, model: str, reason: str) -> None:
        """Record an unusable answer."""
        self._outages.pop(model, None)
        self._unusable[model].add(reason)

    def facts(self, unread: int) -> Mapping[str, object]:
        """For `status`: the number of unread messages, the models that fail now, and the unusable
        answers since the start.
        """
        return {
            "unread": unread,
            "failing": [
                {
                    "model": model,
                    "reason": outage.reason,
                    "since": outage.since,
                    "failures": outage.failures,
                }
                for model, outage in self._outages.items()
            ],
            "not_understood": [
                {
                    "model": model,
                    "messages": one.answers,
                    "in_a_row": one.in_a_row,
                    "reason": one.reason,
                    "at": one.at,
                }
                for model, one in self._unusable.items()
                if one.answers
            ],
        }


def _utc_now() -> str:
    return utc_now().isoformat(timespec="seconds")


@dataclass(eq=False)
class UnusableAnswers:
    """Counts unusable answers for each role (judge, evolver) and model since the last usable
    answer.
    """

    _counts: defaultdict[tuple[str, str], _Unusable] = field(
        default_factory=lambda: defaultdict(_Unusable)
    )

    def of(self, role: str) -> Answered:
        """The function to call with each answer in this role."""

        def answered(model: str, fault: str | None) -> None:
            if fault is None:
                self._counts.pop((role, model), None)
            else:
                self._counts[role, model].add(fault)

        return answered

    @property
    def facts(self) -> list[Json]:
        """For `status`: the models whose last answers could not be used, with the number, the
        reason and the time.
        """
        return [
            {
                "role": role,
                "model": model,
                "answers": count.answers,
                "reason": count.reason,
                "at": count.at,
            }
            for (role, model), count in self._counts.items()
            if count.answers >= _LEAST_IN_A_ROW[role]
        ]
