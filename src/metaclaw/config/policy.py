"""`[policy]`: whether and how weights are trained. Absent, none are."""

import re
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from metaclaw.config.section import Secret, Section, Share, is_http, whole_path

TrainingMode: TypeAlias = Literal["auto", "rl", "skills_only"]
Backend: TypeAlias = Literal["embedded", "tinker", "mint", "weaver"]
_NAME = re.compile(r"\S(.*\S)?")


class DistillConfig(Section):
    """Learning from better answers, beside rewards. Absent, only rewards teach."""

    teacher: str | None = Field(
        default=None,
        description="Provider of a model that scores the policy's own tokens (on-policy distillation). It must return the "
        "log-probabilities of a prompt (vLLM's `prompt_logprobs`) and use the policy's tokenizer. Default: none.",
        examples=["openai"],
    )
    model: str | None = Field(
        default=None, min_length=1, description="The teacher's model. Needed with `teacher`.", examples=["qwen3-32b"]
    )
    hindsight: bool = Field(
        default=True,
        description="Where answers earn nothing, teach what the policy answers with the rule or an earlier correction beside the "
        "question, if that earns more. On also without this section.",
    )

    @model_validator(mode="after")
    def _teacher_has_a_model(self) -> "DistillConfig":
        if (self.teacher is None) != (self.model is None):
            raise PydanticCustomError("teacher", "needs teacher and model together, or neither")
        return self


class PolicyConfig(Section):
    """Training weights. Without this section none are; with it, even an empty one, the embedded model is while you are away."""

    mode: TrainingMode = Field(
        default="auto",
        description="When: `auto` only in windows (see `[schedule]`), `rl` whenever a batch is full, `skills_only` never. "
        "`start --mode` says it for one run.",
    )
    backend: Backend = Field(
        default="embedded",
        description="What trains: this machine, Tinker (or a server with its API, by `base_url`), MinT, Weaver.",
    )
    base_model: str | None = Field(
        default=None,
        description="What is trained. `embedded`: the folder of a Hugging Face causal model; default: the embedded model. "
        "Others: the service's name for it, which is needed.",
        examples=["Qwen/Qwen3-8B"],
    )
    tokenizer: Path | None = Field(
        default=None,
        strict=False,
        description="Folder with the tokenizer and chat template of `base_model`. Needed unless `backend` is embedded.",
        examples=["{home}/models/tokenizer"],
    )
    base_url: str | None = Field(
        default=None, description="The training service's address. Default: the vendor's own.", examples=["http://127.0.0.1:8001"]
    )
    api_key: Secret | None = Field(default=None, description="The training service's key.", examples=["env:TINKER_API_KEY"])
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Where the embedded backend computes; `auto` takes a CUDA GPU if there is one."
    )
    lora_rank: int = Field(default=16, ge=1, le=512, description="Rank of the trained adapter.")
    learning_rate: float = Field(
        default=3e-4,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Peak learning rate of AdamW; it rises in the first steps and falls in the last.",
    )
    batch_turns: int = Field(default=32, ge=1, le=4096, description="Turns that must be there before a run begins.")
    batch_most: int = Field(
        default=1024,
        ge=1,
        le=65_536,
        description="Most turns of one run. It takes all that may train, the newest first, and up to as many prompts of earlier "
        "runs again, so that a version keeps what the one before it learned.",
    )
    prompts_per_step: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Prompts that are answered again in one step. Default: 32 on a GPU or a service, 4 on a CPU.",
        examples=[16],
    )
    group_size: int | None = Field(
        default=None,
        ge=2,
        le=256,
        description="Answers that are drawn and scored for each prompt of a step. Default: 16 on a GPU or a service, 12 on a CPU.",
        examples=[8],
    )
    steps: int = Field(
        default=200,
        ge=1,
        le=10_000,
        description="Most optimiser steps of one run, each on answers drawn anew. A run ends earlier when it has learned enough or "
        "no longer improves.",
    )
    rehearsal: float = Field(
        default=2.0,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="Weight of the untrained model's own answers to ordinary questions, which are trained beside the rules so that "
        "everything else stays as it was; 0 turns it off.",
    )
    max_new_tokens: int = Field(
        default=256,
        ge=1,
        le=32_768,
        description="Longest answer that is drawn; never longer than the request itself allowed.",
    )
    temperature: float = Field(
        default=1.0, gt=0, le=2, allow_inf_nan=False, description="Sampling temperature of the answers that are drawn."
    )
    loss: Literal["importance_sampling", "ppo", "cispo"] = Field(default="ppo", description="The policy-gradient loss.")
    advantage: Literal["group", "batch", "tracker"] = Field(
        default="group",
        description="How rewards become advantages: within a prompt's group (GRPO), over the batch (REINFORCE++), or against a "
        "running value (SPO).",
    )
    kl: float = Field(default=0.0, ge=0, le=10, allow_inf_nan=False, description="Weight of the distance to the untrained model.")
    max_lag: int = Field(default=3, ge=0, le=1000, description="Most versions a turn may be behind the one that serves.")
    held_out_share: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        description="Share of turns kept out of training; versions are proven on them.",
    )
    golden_margin: Share = Field(
        default=0.02,
        description="How much worse a version may be on the golden set (about 1,200 small questions of all kinds), as a share.",
    )
    kl_limit: float = Field(
        default=8.0,
        gt=0,
        allow_inf_nan=False,
        description="Furthest from the untrained model, in nats a token, that a version may be.",
    )
    canary_share: Share = Field(
        default=0.0,
        description="Share of sessions on which a version that passed the gate is tried first. "
        "0: it serves all sessions immediately, is watched, and is rolled back if its turns fail more often than those of the "
        "version before it.",
    )
    canary_turns: int = Field(
        default=50,
        ge=1,
        le=100_000,
        description="Judged turns of a trial after which a version that is not worse serves all sessions; without a trial, judged "
        "turns for which a new version is watched.",
    )
    train_share: Share = Field(
        default=0.5,
        description="Share of the time that training may take while you work, where it does not share the processor with serving "
        "(a GPU, a service); 0 trains in windows only. On a CPU it always waits for a window.",
    )
    keep_versions: int = Field(default=5, ge=2, le=1000, description="How many versions' weights are kept, beside those in use.")
    serve: Literal["backend", "vllm", "sglang"] = Field(
        default="backend",
        description="What serves trained weights: the backend that trained them, or a vLLM or SGLang server that loads adapters.",
    )
    provider: str | None = Field(
        default=None, description="With `serve` vllm or sglang: the provider that is this server.", examples=["openai"]
    )
    distill: DistillConfig | None = Field(default=None, description="Learning from better answers.")

    @field_validator("base_model")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        if name is not None and not (_NAME.fullmatch(name) and name.isprintable()):
            raise PydanticCustomError("base_model", "is empty, or has spaces around it or unprintable characters in it")
        return name

    @field_validator("tokenizer", mode="before")
    @classmethod
    def _is_a_whole_path(cls, value: object, known: ValidationInfo) -> object:
        return whole_path(str(value), known) if isinstance(value, str | Path) else value

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, url: str | None, known: ValidationInfo) -> str | None:
        _belongs_to_a_service(url, known)
        if url is not None and not is_http(url):
            raise PydanticCustomError("base_url", "is not an http:// or https:// address without query or fragment")
        return None if url is None else url.rstrip("/")

    @field_validator("api_key")
    @classmethod
    def _is_a_key(cls, key: Secret | None, known: ValidationInfo) -> Secret | None:
        _belongs_to_a_service(key, known)
        if key is not None and key.is_passthrough:
            raise PydanticCustomError("policy_key", "cannot be passthrough: training has no caller")
        return key

    @field_validator("device")
    @classmethod
    def _is_this_machine(cls, device: str, known: ValidationInfo) -> str:
        if device != "auto" and known.data.get("backend", "embedded") != "embedded":
            raise PydanticCustomError("policy_device", "belongs to the embedded backend; delete this line")
        return device

    def prompts_of_a_step(self, has_own_processor: bool) -> int:
        """Prompts of one step, for a backend that computes on a GPU or elsewhere, or on this machine's CPU."""
        return self.prompts_per_step or (32 if has_own_processor else 4)

    def answers_to_a_prompt(self, has_own_processor: bool) -> int:
        """Answers drawn for each prompt of a step."""
        return self.group_size or (16 if has_own_processor else 12)

    @model_validator(mode="after")
    def _is_whole(self) -> "PolicyConfig":
        if self.backend == "embedded" and self.base_model is not None and not Path(self.base_model).expanduser().is_absolute():
            raise PydanticCustomError(
                "embedded_base",
                'needs the whole path of a folder as base_model, because backend = "embedded" trains what lies there',
            )
        missing = [name for name in ("base_model", "tokenizer") if getattr(self, name) is None]
        if self.backend != "embedded" and missing:
            raise PydanticCustomError(
                "service_needs",
                "needs {names} for backend = {backend}",
                {"names": " and ".join(missing), "backend": f'"{self.backend}"'},
            )
        if (self.serve != "backend") != (self.provider is not None):
            raise PydanticCustomError("serve", 'needs provider with serve = "vllm" or "sglang", and only then')
        return self


def _belongs_to_a_service(value: object, known: ValidationInfo) -> None:
    if value is not None and known.data.get("backend") == "embedded":
        raise PydanticCustomError(
            "embedded_service", 'does not belong to backend = "embedded"; delete this line, or name the backend'
        )
