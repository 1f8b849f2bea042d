"""Sections of learning: skills, the models that judge, listen and write skills, its budget, teams and privacy."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from metaclaw.config.section import Names, Seconds, Section, whole_path


class SkillsConfig(Section):
    """Skills: what the agent is told to do in which situation."""

    enabled: bool = Field(default=True, description="Place skills into prompts.")
    dir: Path = Field(
        default=Path("{home}/skills"), strict=False, validate_default=True, description="Folder of `<name>/SKILL.md` files."
    )
    max_placed: int = Field(default=3, ge=0, le=16, description="Most skills placed in full for one task; 0 places and lists none.")
    budget_tokens: int = Field(
        default=1500,
        ge=0,
        le=100_000,
        description="Most tokens that skills placed in full may take, and most that the list of the others may take, estimated.",
    )
    rules_budget_tokens: int = Field(
        default=800,
        ge=0,
        le=100_000,
        description="Rules and facts are all placed while they take no more tokens than this; beyond it, those that match.",
    )
    retrieval: Literal["auto", "words", "hybrid", "lexical"] = Field(
        default="auto",
        description="How skills are found: by words and by meaning where the local model is installed; by words; by both."
        " `lexical` is the old name of `words`.",
    )
    embeddings_provider: str | None = Field(
        default=None,
        description="Which provider makes the vectors for the search by meaning, of kind openai. It gets what rules and skills are"
        " found by, and people's requests. Default: the local model; nothing is sent.",
        examples=["openai"],
    )
    embeddings_model: str | None = Field(
        default=None,
        description="Its embedding model; needed with `embeddings_provider`.",
        examples=["text-embedding-3-small"],
        min_length=1,
    )
    learn: bool = Field(default=True, description="Make skills from failures and standing instructions.")
    gate: Literal["off", "lint", "shadow", "full"] = Field(
        default="full",
        description="What a learned skill must pass. `off`: nothing; `lint`: checks of its text; `shadow`: also replays of recorded"
        " turns; `full`: also a live trial.",
    )
    canary_share: float = Field(
        default=0.67, gt=0, le=1, allow_inf_nan=False, description="Share of matching tasks on which a skill on trial is placed."
    )
    holdout_share: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description='With `gate = "full"`: share of matching tasks on which a learned skill is withheld, to measure its uplift.',
    )

    @field_validator("dir", mode="before")
    @classmethod
    def _read_path(cls, value: object, known: ValidationInfo) -> object:
        return whole_path(str(value), known) if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _check_embeddings(self) -> "SkillsConfig":
        if (self.embeddings_provider is None) != (self.embeddings_model is None):
            missing = "embeddings_model" if self.embeddings_model is None else "embeddings_provider"
            raise PydanticCustomError("embeddings_half", "needs {missing} as well", {"missing": missing})
        return self


class JudgeConfig(Section):
    """The process reward model: asked about turns that no detector can decide."""

    provider: str | None = Field(
        default=None,
        description="Which provider answers. Default: the first with a key of its own; without one, no model judges turns.",
        examples=["openai"],
    )
    model: str | None = Field(
        default=None, description="Its model. Default: the model that made the turn.", examples=["gpt-5.1-mini"], min_length=1
    )
    votes: int = Field(
        default=3,
        ge=1,
        le=15,
        description="Most votes about one turn; one is asked for first, more where it is doubtful or says that the turn failed.",
    )
    max_share: float = Field(
        default=0.2, ge=0, le=1, allow_inf_nan=False, description="Most turns it is asked about, as a share of main turns."
    )
    timeout_s: Seconds = Field(default=60.0, description="How long one vote may take; one that takes longer is unknown.")


class ListenConfig(Section):
    """The model that reads what people say, for rules, facts and corrections."""

    provider: str | None = Field(
        default=None,
        description="Which provider answers. Default: as for the judge, if that is set; else the provider that served the"
        " conversation, if it has a key of its own. Without one, only sure phrases become rules.",
        examples=["openai"],
    )
    model: str | None = Field(
        default=None,
        description="Its model. Default: as for the judge, if that is set; else the model that served the conversation.",
        examples=["gpt-5.1-mini"],
        min_length=1,
    )
    timeout_s: Seconds = Field(default=30.0, description="How long its answer may take; then the message is read again later.")


class EvolverConfig(Section):
    """The model that writes skills from failures."""

    provider: str | None = Field(
        default=None,
        description="Which provider answers. Default: as for the judge; without one, only a person's own words become skills.",
        examples=["openai"],
    )
    model: str | None = Field(
        default=None, description="Its model. Default: the model that made the turns.", examples=["gpt-5.1"], min_length=1
    )
    min_failures: int = Field(
        default=3, ge=1, le=1000, description="Failures of one kind before it is asked; a person's own correction is enough alone."
    )
    max_new_skills: int = Field(default=3, ge=1, le=10, description="Most skills it may propose at once.")
    timeout_s: Seconds = Field(default=180.0, description="How long its answer may take.")


class PriceConfig(Section):
    """What a model costs, per million tokens, in the currency of `learning.daily_cost`."""

    model: str = Field(
        description="The model, or `provider/model` where providers charge differently.", examples=["gpt-5-mini"], min_length=1
    )
    input: float = Field(ge=0, allow_inf_nan=False, description="Per million input tokens.", examples=[0.25])
    output: float = Field(ge=0, allow_inf_nan=False, description="Per million output tokens.", examples=[2.0])
    cached: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Per million input tokens read from the provider's cache. Default: as `input`.",
        examples=[0.025],
    )


class LearningConfig(Section):
    """What learning may cost in a day, and whether agents' answers tell of it."""

    daily_tokens: int | None = Field(
        default=None,
        ge=0,
        le=10**15,
        description="Most tokens a day for calls of the program's own; then learning waits until midnight. Default: "
        "a tenth of the day's main turns (of the last days' average, if that is more), and at least 300,000. 0 makes no calls.",
        examples=[1_000_000],
    )
    daily_cost: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Most money a day, by `learning.prices`. If it is set and `daily_tokens` is not, only models "
        "without a price are limited in tokens.",
        examples=[2.0],
    )
    prices: Annotated[tuple[PriceConfig, ...], Field(strict=False)] = Field(
        default=(),
        description='Prices, before the built-in ones (docs/cost.md): `[{ model = "gpt-5-mini", input = 0.25, output = 2.0 }]`, or '
        "tables `[[learning.prices]]`.",
    )
    acknowledge: bool = Field(default=False, description="Say in one line at the end of the next answer what was noted.")

    @field_validator("prices")
    @classmethod
    def _check_prices(cls, prices: tuple[PriceConfig, ...]) -> tuple[PriceConfig, ...]:
        models = [price.model for price in prices]
        twice = next((model for model in models if models.count(model) > 1), None)
        if twice is not None:
            raise PydanticCustomError("price_twice", "has two prices for {model}; keep one of them", {"model": twice})
        return prices


class TeamConfig(Section):
    """People who share skills."""

    name: str = Field(description="The NAME in a skill's `scope: team:NAME`.", examples=["backend"], min_length=1)
    users: Names = Field(description="Their ids, as they come in `X-User-Id`.", examples=[["alice", "bob"]])


class PrivacyConfig(Section):
    """Secrets: what is removed before text leaves this machine."""

    redact: bool = Field(
        default=True,
        description="Before a turn is sent to a judge, an evolver or a trainer, also replace values from your environment "
        "and dotfiles; text that looks like a secret is always replaced.",
    )
    retention_days: int = Field(default=0, ge=0, le=36_500, description="Forget turns older than this; 0 keeps them.")
