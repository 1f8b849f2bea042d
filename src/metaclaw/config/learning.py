"""Sections of learning: skills, the models that judge, listen and write skills, its budget, teams
and privacy.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from metaclaw.config.section import Names, Seconds, Section, whole_path


class SkillsConfig(Section):
    """Skills: texts that tell the agent what to do in which situation."""

    enabled: bool = Field(default=True, description="Place skills into prompts.")
    dir: Path = Field(
        default=Path("{home}/skills"),
        strict=False,
        validate_default=True,
        description="Folder of `<name>/SKILL.md` files.",
    )
    max_placed: int = Field(
        default=3,
        ge=0,
        le=16,
        description="Most skills placed in full for one task; 0 places and lists none.",
    )
    budget_tokens: int = Field(
        default=1500,
        ge=0,
        le=100_000,
        description=(
            "Token limit of the skills placed in full, and again of the list of the others"
            " (estimated)."
        ),
    )
    rules_budget_tokens: int = Field(
        default=800,
        ge=0,
        le=100_000,
        description=(
            "All rules and facts are placed if together they take at most this many tokens; else"
            " only those that match."
        ),
    )
    retrieval: Literal["auto", "words", "hybrid"] = Field(
        default="auto",
        description=(
            "How skills are found: by `words`; `hybrid`, by words and meaning; `auto`, as"
            " `hybrid` if the local model is installed."
        ),
    )
    embeddings_provider: str | None = Field(
        default=None,
        description=(
            "The provider (of kind openai) that computes vectors for the search by meaning,"
            " from requests and from texts of rules and skills. Default: the local model."
        ),
        examples=["openai"],
    )
    embeddings_model: str | None = Field(
        default=None,
        description="The provider's embedding model; required with `embeddings_provider`.",
        examples=["text-embedding-3-small"],
        min_length=1,
    )
    tool: bool = Field(
        default=True,
        description=(
            "Offer the model a tool, `metaclaw_skill`, by which it reads a listed skill in full."
        ),
    )
    learn: bool = Field(
        default=True, description="Make skills from failures and standing instructions."
    )
    gate: Literal["off", "lint"] = Field(
        default="lint",
        description=(
            "The review of a learned skill. `lint`: its text must be sound and repeat nothing;"
            " `off`: only secrets, foreign instructions and new capabilities are looked for."
        ),
    )

    @field_validator("dir", mode="before")
    @classmethod
    def _read_path(cls, value: object, known: ValidationInfo) -> object:
        return whole_path(str(value), known) if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _check_embeddings(self) -> "SkillsConfig":
        if (self.embeddings_provider is None) != (self.embeddings_model is None):
            missing = "embeddings_model" if self.embeddings_model is None else "embeddings_provider"
            raise PydanticCustomError(
                "embeddings_half", "needs {missing} as well", {"missing": missing}
            )
        return self


class JudgeConfig(Section):
    """The model that judges turns which no detector can decide (process reward model)."""

    provider: str | None = Field(
        default=None,
        description=(
            "The provider that answers. Default: the one that served the turn; without a provider"
            " that has a key of its own, no model judges."
        ),
        examples=["openai"],
    )
    model: str | None = Field(
        default=None,
        description="The model. Default: the model that made the turn.",
        examples=["gpt-5.1-mini"],
        min_length=1,
    )
    votes: int = Field(
        default=3,
        ge=1,
        le=15,
        description=(
            "Most votes on one turn; more than one only if the first is in doubt or says fail."
        ),
    )
    max_share: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="Largest share of main turns that it is asked about.",
    )
    timeout_s: Seconds = Field(
        default=60.0,
        description="Seconds for one vote; a later one counts as unknown.",
    )


class ListenConfig(Section):
    """The model that finds rules, facts and corrections in what people write."""

    provider: str | None = Field(
        default=None,
        description=(
            "The provider that answers. Default: `judge.provider`; else the one that served the"
            " conversation, if it has its own key; else only sure phrases become rules."
        ),
        examples=["openai"],
    )
    model: str | None = Field(
        default=None,
        description="The model. Default: `judge.model`, else the one that served the conversation.",
        examples=["gpt-5.1-mini"],
        min_length=1,
    )
    timeout_s: Seconds = Field(
        default=30.0,
        description="Seconds for an answer; after them the message is read again later.",
    )


class EvolverConfig(Section):
    """The model that writes skills from failures."""

    provider: str | None = Field(
        default=None,
        description=(
            "The provider that answers. Default: the one that served the turn; without a provider"
            " that has a key of its own, only a person's own words become skills."
        ),
        examples=["openai"],
    )
    model: str | None = Field(
        default=None,
        description="The model. Default: the model that made the turns.",
        examples=["gpt-5.1"],
        min_length=1,
    )
    min_failures: int = Field(
        default=3,
        ge=1,
        le=1000,
        description=(
            "Failures of one kind before it is asked; one correction by a person is enough."
        ),
    )
    max_new_skills: int = Field(
        default=3, ge=1, le=10, description="Most skills that it may propose at once."
    )
    timeout_s: Seconds = Field(default=180.0, description="Seconds for an answer.")


class PriceConfig(Section):
    """What a model costs, per million tokens, in the currency of `learning.daily_cost`."""

    model: str = Field(
        description="The model, or `provider/model` if providers charge differently.",
        examples=["gpt-5-mini"],
        min_length=1,
    )
    input: float = Field(ge=0, description="Per million input tokens.", examples=[0.25])
    output: float = Field(ge=0, description="Per million output tokens.", examples=[2.0])
    cached: float | None = Field(
        default=None,
        ge=0,
        description="Per million input tokens read from the provider's cache. Default: as `input`.",
        examples=[0.025],
    )


class LearningConfig(Section):
    """What learning may cost per day, and whether answers mention what was learned."""

    daily_tokens: int | None = Field(
        default=None,
        ge=0,
        le=10**15,
        description=(
            "Tokens per day for the program's own calls to models; 0 makes none. Default: a"
            " tenth of the tokens of the day's main turns, at least 300,000 (docs/cost.md)."
        ),
        examples=[1_000_000],
    )
    daily_cost: float | None = Field(
        default=None,
        ge=0,
        description=(
            "Money per day, by `learning.prices`. Without `daily_tokens`, the token limit then"
            " applies only to models without a price."
        ),
        examples=[2.0],
    )
    prices: Annotated[tuple[PriceConfig, ...], Field(strict=False)] = Field(
        default=(),
        description=(
            'Prices that replace the built-in ones (docs/cost.md): `[{ model = "gpt-5-mini", input'
            " = 0.25, output = 2.0 }]`, or tables `[[learning.prices]]`."
        ),
    )
    acknowledge: bool | None = Field(
        default=None,
        description="Add a line to the next answer that says what was learned. Unset: for the first"
        " ten lessons, in interactive clients.",
        examples=[True],
    )

    @field_validator("prices")
    @classmethod
    def _check_prices(cls, prices: tuple[PriceConfig, ...]) -> tuple[PriceConfig, ...]:
        models = [price.model for price in prices]
        twice = next((model for model in models if models.count(model) > 1), None)
        if twice is not None:
            raise PydanticCustomError(
                "price_twice", "has two prices for {model}; keep one of them", {"model": twice}
            )
        return prices


class TeamConfig(Section):
    """People who share skills."""

    name: str = Field(
        description="The NAME in a skill's `scope: team:NAME`.", examples=["backend"], min_length=1
    )
    users: Names = Field(
        description="Their ids, as they come in `X-User-Id`.", examples=[["alice", "bob"]]
    )


class PrivacyConfig(Section):
    """Which secrets are removed before text leaves this machine, and how long turns are kept."""

    redact: bool = Field(
        default=True,
        description=(
            "Replace values of your environment and dotfiles, too, before a turn goes to a"
            " judge, an evolver or a trainer."
        ),
    )
    retention_days: int = Field(
        default=0,
        ge=0,
        le=36_500,
        description="Delete turns older than this many days; 0 keeps them.",
    )
