"""Who trains, who serves what was trained, and whose tokens they are: one set of parts for each kind of `[policy]`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metaclaw.config import Config, PolicyConfig
from metaclaw.engine import EmbeddedModel, EmbeddedTrainer, FolderTokeniser, Turnstile
from metaclaw.errors import ConfigError
from metaclaw.ports import ModelProvider, PolicyHost, Tokeniser, TrainingBackend
from metaclaw.upstream import UNMETERED, HttpEndpoint, Meter

if TYPE_CHECKING:
    from metaclaw.train import Teacher

_RELEASE_MEMORY_AFTER_S: Final = 600.0
_NICE: Final = 10
"""Behind whatever else the machine does, but not starved by it: answers are protected by the turnstile, not by this."""
SERVICE: Final = "policy"
"""The name of the provider that a training service's own sampler is."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the parts are built from. `in_use` are the versions that serve, which no host may let go of."""

    folder: Path
    turnstile: Turnstile
    embedded: EmbeddedModel | None
    model_folder: Path
    providers: Mapping[str, HttpEndpoint]
    in_use: Callable[[], frozenset[int]]
    meter: Meter = UNMETERED


@dataclass(frozen=True, slots=True)
class Parts:
    """`provider` is the name of who answers with trained weights; `serves` is that provider where the configuration names none."""

    backend: TrainingBackend
    host: PolicyHost
    tokeniser: Tokeniser
    provider: str
    model_of: Callable[[int], str] | None = None
    serves: ModelProvider | None = None
    teacher: "Teacher | None" = None


def build_parts(config: Config, policy: PolicyConfig, around: Surroundings) -> Parts:
    """The parts that the configuration asks for. Raises ConfigError."""
    parts = _embedded(config, policy, around) if policy.backend == "embedded" else _service(config, policy, around)
    if policy.kl > 0.0 and not parts.backend.abilities.has_kl:
        raise ConfigError(f'policy.kl = {policy.kl:g}: backend = "{policy.backend}" has no KL term; set it to 0')
    return replace(parts, teacher=_teacher(policy, around, parts.tokeniser))


def _embedded(config: Config, policy: PolicyConfig, around: Surroundings) -> Parts:
    trainer = EmbeddedTrainer(
        around.model_folder,
        around.folder,
        turnstile=around.turnstile,
        convert=policy.base_model is None,
        threads=config.engine.threads or None,
        device=policy.device,
        nice=_NICE,
        release_memory_after_s=_RELEASE_MEMORY_AFTER_S,
    )
    tokeniser = FolderTokeniser(around.model_folder)
    if policy.serve != "backend":
        return _served_elsewhere(config, policy, around, trainer, tokeniser)
    if around.embedded is None:
        raise ConfigError('policy.backend = "embedded" needs the embedded model among the providers')
    return Parts(trainer, around.embedded, tokeniser, around.embedded.name)


def _served_elsewhere(
    config: Config, policy: PolicyConfig, around: Surroundings, backend: TrainingBackend, tokeniser: Tokeniser
) -> Parts:
    """A vLLM or SGLang server among the providers, which loads adapters while it runs. vLLM is asked in tokens, so that what it
    answers can train; SGLang is relayed."""
    from metaclaw.train import VllmModel, sglang_host, sglang_model_of, vllm_host

    named = next(one for one in config.providers if one.name == policy.provider)
    key = None if named.api_key is None else named.api_key.resolve()
    base = named.models[0] if named.models else policy.base_model or named.name
    if policy.serve == "vllm":
        from metaclaw.engine.text import Vocabulary

        folder = policy.tokenizer or around.model_folder
        host = vllm_host(named.base_url or "", key, in_use=around.in_use)
        model = VllmModel(around.providers[named.name], host, base, lambda: Vocabulary(folder), name=SERVICE)
        return Parts(backend, model, tokeniser, SERVICE, serves=model)
    host = sglang_host(named.base_url or "", key, in_use=around.in_use)
    return Parts(backend, host, tokeniser, named.name, sglang_model_of(base))


def _service(config: Config, policy: PolicyConfig, around: Surroundings) -> Parts:
    """A training service and its own sampler. Its SDK is loaded only here."""
    if policy.serve != "backend":
        raise ConfigError(
            f'policy.serve = "{policy.serve}" needs backend = "embedded": the weights of backend = "{policy.backend}" stay with it'
        )
    from metaclaw.engine.text import Vocabulary
    from metaclaw.train import SamplerModel, load_tinker, load_weaver, tinker_backend, weaver_backend

    assert policy.tokenizer is not None
    assert policy.base_model is not None
    vocabulary = Vocabulary(policy.tokenizer)
    key = None if policy.api_key is None else policy.api_key.resolve()
    ends = vocabulary.end_ids
    if policy.backend == "weaver":
        backend = weaver_backend(
            load_weaver(), policy.base_model, vocabulary.decode, end_ids=ends, base_url=policy.base_url, api_key=key
        )
    else:
        backend = tinker_backend(
            load_tinker(policy.backend),
            policy.base_model,
            vocabulary.decode,
            end_ids=ends,
            name=policy.backend,
            base_url=policy.base_url,
            api_key=key,
        )
    sampler = SamplerModel(backend, vocabulary, policy.base_model, name=SERVICE)
    return Parts(backend, sampler, FolderTokeniser(policy.tokenizer), SERVICE, serves=sampler)


def _teacher(policy: PolicyConfig, around: Surroundings, tokeniser: Tokeniser) -> "Teacher | None":
    distill = policy.distill
    if distill is None or distill.teacher is None or distill.model is None:
        return None
    from metaclaw.train import EndpointTeacher

    return EndpointTeacher(around.providers[distill.teacher], distill.model, tokeniser.word, meter=around.meter)
