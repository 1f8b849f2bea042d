"""The models that the program calls itself: listener, judge and evolver. Also their health: which
are refused, which listeners fail and when they are asked again, and which give unusable answers."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from metaclaw.clock import utc_now
from metaclaw.config import EvolverConfig, JudgeConfig, ListenConfig
from metaclaw.domain.chat import ChatRequest, Completion, Json
from metaclaw.domain.turn import ModelAt
from metaclaw.errors import UpstreamError
from metaclaw.ports import Model, ModelProvider, Purpose
from metaclaw.text import shorten
from metaclaw.upstream import UNMETERED, HttpEndpoint, HttpModel, LocalModel, Meter

log = logging.getLogger(__name__)

Provider = HttpEndpoint | ModelProvider
UNLEARNED: Final[Mapping[str, object]] = {
    "listener": {"unread": 0, "failing": [], "not_understood": []},
    "unusable": [],
    "refused": [],
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
_REFUSALS: Final = frozenset({401, 402, 404})
_FAULTS: Final = frozenset({400, 403, 422})
"""Statuses for any fault of a request; the message or the code says whether it is the model."""
_REFUSED_S: Final = 3_600.0


class Models:
    """Creates one `Model` for each provider and model name, at its first use. `lately` returns the
    models that answered agents lately, the last one first; it blocks shortly."""

    def __init__(
        self,
        providers: Sequence[Provider],
        meter: Meter = UNMETERED,
        lately: Callable[[], Sequence[ModelAt]] = lambda: (),
    ) -> None:
        self._providers = {provider.name: provider for provider in providers}
        self._meter = meter
        self._lately = lately
        self._known: dict[tuple[ModelAt, float, str], HttpModel | LocalModel | None] = {}
        self._choices: dict[object, _ChosenModel] = {}
        self._refusals = _Refusals()

    @property
    def refused(self) -> list[Json]:
        """For `status`: the models that their providers refuse."""
        return self._refusals.facts

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
            by = ModelAt(provider, served)
            return self._choice(
                (named, model, by, section.timeout_s, "listen"),
                lambda: (*self._configured(named, model, by, (by.provider,)), by),
            )

        return ask

    def shown_listener(self, section: ListenConfig, judge: JudgeConfig) -> str | None:
        """The model that reads messages, for `status`; None if there is none."""
        model, named = section.model or judge.model, section.provider or judge.provider
        has_own = any(map(self._own, self._providers))
        if not (named or has_own):
            return None
        if named is None and not model:
            return "the provider and model of the conversation"
        return (
            f"{named or 'the provider of the conversation'},"
            f" {model or 'the model of the conversation'}"
        )

    def chosen(self, section: JudgeConfig | EvolverConfig) -> Callable[[ModelAt], Model | None]:
        """A function that returns the model to ask, given the one that served a turn; or None.

        It is the configured one, else the one that served the turn, else one that answered lately.
        The embedded model is asked only if it is named, because it is too small to judge or to
        write."""

        def ask(served: ModelAt) -> Model | None:
            def candidates() -> Iterator[ModelAt]:
                others = (served.provider, *self._providers)
                yield from self._configured(section.provider, section.model, served, others)
                yield served
                yield from self._lately()
                for provider in self._providers.values():
                    yield from (ModelAt(provider.name, model) for model in provider.models)

            key = (section.provider, section.model, served, section.timeout_s, "")
            return self._choice(key, candidates)

        return ask

    def shown(self, section: JudgeConfig | EvolverConfig) -> str | None:
        """The model that is asked, for `status`; None if there is none."""
        if section.provider is None and not any(map(self._own, self._providers)):
            return None
        if section.provider is None and not section.model:
            return "the provider and model that served the turn"
        where = section.provider or "the provider that has it"
        return f"{where}/{section.model or 'the model that served the turn'}"

    def _configured(
        self, provider: str | None, model: str | None, served: ModelAt, others: Iterable[str]
    ) -> Iterator[ModelAt]:
        """What the configuration names. A model without a provider is sought where it is listed,
        then at `others`; a provider without a model is asked for one of its own."""
        if provider is not None:
            yield ModelAt(provider, model or self._model_of(provider, served))
        elif model:
            own = filter(self._own, self._providers)
            listing = [name for name in own if model in self._providers[name].models]
            names = sorted(listing, key=lambda name: name != served.provider) or others
            yield from (ModelAt(name, model) for name in dict.fromkeys(names))

    def _model_of(self, provider: str, served: ModelAt) -> str:
        """A model that this provider has: the one that served a turn, or one that answered lately,
        or one that it lists."""
        known = self._providers.get(provider)
        listed = () if known is None else known.models
        if served.provider == provider or served.model in listed:
            return served.model
        recent = (one.model for one in self._lately() if one.provider == provider)
        return next(recent, None) or next(iter(listed), served.model)

    def _choice(
        self,
        key: tuple[str | None, str | None, ModelAt, float, str],
        candidates: Callable[[], Iterable[ModelAt]],
    ) -> Model | None:
        """One of the candidates, the first that may be asked; None without any, or if a named
        provider may not be."""
        named, _, _, timeout_s, lane = key

        def models() -> Iterator[Model]:
            for one in dict.fromkeys(candidates()):
                if one.provider == named or self._own(one.provider):
                    model = self._model(one, timeout_s, lane)
                    if model is not None:
                        yield model
                    elif one.provider == named:
                        return

        if key not in self._choices:
            if (first := next(models(), None)) is None:
                return None
            self._choices[key] = _ChosenModel(models, self._refusals, first.name)
        return self._choices[key]

    def _own(self, provider: str) -> bool:
        """Whether the program may ask this provider without being told to."""
        endpoint = self._providers.get(provider)
        return isinstance(endpoint, HttpEndpoint) and not endpoint.is_passthrough

    def _model(self, one: ModelAt, timeout_s: float, lane: str) -> HttpModel | LocalModel | None:
        key = (one, timeout_s, lane)
        if key not in self._known:
            self._known[key] = self._build(one, timeout_s)
        return self._known[key]

    def _build(self, one: ModelAt, timeout_s: float) -> HttpModel | LocalModel | None:
        match self._providers.get(one.provider):
            case None:
                return None
            case HttpEndpoint() as http:
                return (
                    None
                    if http.is_passthrough
                    else HttpModel(http, one.model, meter=self._meter, timeout_s=timeout_s)
                )
            case inside:
                return LocalModel(inside, one.model, meter=self._meter, timeout_s=timeout_s)


@dataclass(eq=False)
class _ChosenModel:
    """Asks the first of its models that is not refused: by a provider that does not have it, or
    that does not take the key."""

    models: Callable[[], Iterator[Model]]
    refusals: "_Refusals"
    _name: str

    @property
    def name(self) -> str:
        """The name of the model that is asked next."""
        self._name = next((model.name for model in self._in_order()), self._name)
        return self._name

    async def ask(self, request: ChatRequest, purpose: Purpose) -> Completion:
        """Return a complete answer. Raises UpstreamError."""
        refused: UpstreamError | None = None
        for model in self._in_order():
            try:
                answer = await model.ask(request, purpose)
            except UpstreamError as error:
                if not _is_refusal(error, model.name):
                    raise
                refused = self.refusals.add(model.name, purpose, error)
                continue
            self.refusals.end(model.name, purpose)
            return answer
        raise refused or UpstreamError("there is no model that may be asked", code="no_provider")

    def _in_order(self) -> Iterator[Model]:
        later: list[Model] = []
        for model in self.models():
            if self.refusals.holds(model.name):
                later.append(model)
            else:
                yield model
        yield from later


def _is_refusal(error: UpstreamError, name: str) -> bool:
    """Whether a provider will refuse every request for this model (`provider/model`)."""
    if error.status in _REFUSALS:
        return True
    model = name.partition("/")[2]
    return error.status in _FAULTS and ("model" in error.code or model in str(error))


@dataclass(slots=True)
class _Refusal:
    reason: str
    since: str
    until: float
    purposes: dict[Purpose, str] = field(default_factory=dict)
    """The name of the model that is asked instead, if any, for each purpose."""


class _Refusals:
    """The models that their providers refuse. Such a model is asked last for an hour, then first
    again, and is forgotten when it answers."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._found: dict[str, _Refusal] = {}

    def holds(self, model: str) -> bool:
        """Whether the model was refused lately."""
        refusal = self._found.get(model)
        return refusal is not None and refusal.until > self._now()

    def add(self, model: str, purpose: Purpose, error: UpstreamError) -> UpstreamError:
        """Record that a model was refused; returns the error."""
        log.warning("model_refused model=%s purpose=%s reason=%s", model, purpose.value, error)
        refusal = self._found.setdefault(model, _Refusal("", _utc_now(), 0.0))
        refusal.reason = shorten(str(error), _REASON_CHARS)
        refusal.until = self._now() + _REFUSED_S
        refusal.purposes[purpose] = ""
        return error

    def end(self, model: str, purpose: Purpose) -> None:
        """Record that a model answered, in place of those that are refused for this purpose."""
        self._found.pop(model, None)
        for refusal in self._found.values():
            if purpose in refusal.purposes:
                refusal.purposes[purpose] = model

    @property
    def facts(self) -> list[Json]:
        """For `status`: each refused model with its purposes and what is asked instead."""
        return [
            {
                "model": model,
                "reason": refusal.reason,
                "at": refusal.since,
                "instead": {purpose.value: name for purpose, name in refusal.purposes.items()},
            }
            for model, refusal in self._found.items()
        ]


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
