"""`[policy]` and `[schedule]`: whether and how weights are trained, and what counts as the user
being away.
"""

import re
from dataclasses import dataclass
from datetime import time
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from zoneinfo import ZoneInfo

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from metaclaw.config.section import (
    Names,
    Seconds,
    Secret,
    Section,
    Share,
    home_of,
    is_http,
    whole_path,
)
from metaclaw.hooks import MODEL_HOSTS, TRAINING_SERVICES, PluginError, find_entry, known_names

TrainingMode: TypeAlias = Literal["auto", "rl", "skills_only"]
_NAME = re.compile(r"\S(.*\S)?")


class PolicyConfig(Section):
    """Training of weights. Without this section there is none; an empty section trains the embedded
    model while you are away.
    """

    mode: TrainingMode = Field(
        default="auto",
        description=(
            "When weights are trained. `auto`: only in windows (see `[schedule]`); `rl`: whenever a"
            " batch is full; `skills_only`: never. `start --mode` sets it for one run."
        ),
    )
    backend: str = Field(
        default="embedded",
        description=(
            "What trains: this machine (`embedded`), or a service of a plugin (`tinker`,"
            " `mint`, `weaver`)."
        ),
    )
    base_model: str | None = Field(
        default=None,
        description=(
            "The model that is trained: a folder of a Hugging Face model or a GGUF file"
            " (`metaclaw model add` brings one); for a service, its name for the model"
            " (required). Default: the embedded model."
        ),
        examples=["Qwen/Qwen3-8B"],
    )
    tokenizer: Path | None = Field(
        default=None,
        strict=False,
        description=(
            "Folder with the tokenizer and chat template of `base_model`. Required unless `backend`"
            " is embedded."
        ),
        examples=["{home}/models/tokenizer"],
    )
    base_url: str | None = Field(
        default=None,
        description="The training service's address. Default: the vendor's.",
        examples=["http://127.0.0.1:8001"],
    )
    api_key: Secret | None = Field(
        default=None, description="The training service's key.", examples=["env:TINKER_API_KEY"]
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto",
        description=(
            "Where the embedded model serves and is trained; `auto` takes a CUDA GPU if there is"
            " one."
        ),
    )
    lora_rank: int = Field(default=16, ge=1, le=512, description="Rank of the trained adapter.")
    learning_rate: float = Field(
        default=3e-4,
        gt=0,
        le=1,
        description=(
            "Peak learning rate of AdamW; it rises in the first steps and falls in the last."
        ),
    )
    batch_turns: int = Field(
        default=32, ge=1, le=4096, description="Number of usable turns that a run needs to begin."
    )
    batch_most: int = Field(
        default=1024,
        ge=1,
        le=65_536,
        description=(
            "Most turns of one run, newest first. Up to as many prompts of earlier runs are"
            " added, so that a version keeps what was learned before."
        ),
    )
    prompts_per_step: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Prompts of one step. Default: 32 on a GPU or a service, 4 on a CPU.",
        examples=[16],
    )
    group_size: int | None = Field(
        default=None,
        ge=2,
        le=256,
        description=(
            "Answers to each prompt of a step. Default: 16 on a GPU or a service, 12 on a CPU."
        ),
        examples=[8],
    )
    steps: int = Field(
        default=200,
        ge=1,
        le=10_000,
        description=(
            "Most optimiser steps of one run; it ends earlier when it has learned enough or no"
            " longer improves."
        ),
    )
    rehearsal: float = Field(
        default=2.0,
        ge=0,
        le=100,
        description=(
            "Weight of training on the untrained model's own answers to ordinary questions,"
            " which keeps other abilities; 0 turns it off."
        ),
    )
    max_new_tokens: int = Field(
        default=256,
        ge=1,
        le=32_768,
        description=(
            "Longest answer that is drawn, in tokens; the request's own limit applies as well."
        ),
    )
    temperature: float = Field(
        default=1.0,
        gt=0,
        le=2,
        description="Sampling temperature of the answers that are drawn.",
    )
    max_lag: int = Field(
        default=3,
        ge=0,
        le=1000,
        description=(
            "A turn may train if it is at most this many versions behind the serving version."
        ),
    )
    held_out_share: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="Share of turns kept out of training; the gate tests versions on them.",
    )
    golden_margin: Share = Field(
        default=0.02,
        description=(
            "Share by which a version may be worse on the golden set (about 1,200 small questions"
            " of all kinds)."
        ),
    )
    kl_limit: float = Field(
        default=8.0,
        gt=0,
        description=(
            "Largest KL divergence of a version from the untrained model, in nats per token."
        ),
    )
    canary_turns: int = Field(
        default=50,
        ge=1,
        le=100_000,
        description=(
            "Judged turns of a new version in which it is rolled back if they fail more often"
            " than those of the version before it."
        ),
    )
    train_share: Share = Field(
        default=0.5,
        description=(
            "Share of the time in which a GPU or a service may train while you work; a CPU, and"
            " anything with 0, trains only in windows."
        ),
    )
    keep_versions: int = Field(
        default=5,
        ge=2,
        le=1000,
        description="Number of versions whose weights are kept, besides those in use.",
    )
    serve: str = Field(
        default="backend",
        description=(
            "What serves trained weights: the backend that trained them, `vllm`, or a server of"
            " a plugin (`sglang`)."
        ),
    )
    provider: str | None = Field(
        default=None,
        description=(
            "The provider that is the server of `serve`. Default: the proxy starts and watches"
            " one on this machine."
        ),
        examples=["openai"],
    )
    serve_command: Names = Field(
        default=(),
        description=(
            "The command that starts the server of `serve`; `{model}` (a folder), `{name}`,"
            " `{port}` and `{rank}` are filled in. Default for `vllm`: `vllm serve …`."
        ),
        examples=[["/opt/vllm/bin/vllm", "serve", "{model}", "--port", "{port}"]],
    )
    hindsight: bool = Field(
        default=True,
        description=(
            "If no answer to a prompt earns a reward, answer again with the rule or a"
            " correction in the prompt, and train on that if it earns more."
        ),
    )

    @field_validator("backend")
    @classmethod
    def _check_backend(cls, name: str) -> str:
        return _installed(TRAINING_SERVICES, name, "embedded")

    @field_validator("serve")
    @classmethod
    def _check_serve(cls, name: str) -> str:
        return _installed(MODEL_HOSTS, name, "backend")

    @field_validator("base_model")
    @classmethod
    def _check_base_model(cls, name: str | None) -> str | None:
        if name is not None and not (_NAME.fullmatch(name) and name.isprintable()):
            raise PydanticCustomError(
                "base_model", "is empty, or has spaces around it or unprintable characters in it"
            )
        return name

    @field_validator("tokenizer", mode="before")
    @classmethod
    def _read_path(cls, value: object, known: ValidationInfo) -> object:
        return whole_path(str(value), known) if isinstance(value, str | Path) else value

    @field_validator("base_url")
    @classmethod
    def _check_address(cls, url: str | None, known: ValidationInfo) -> str | None:
        _require_service(url, known)
        if url is not None and not is_http(url):
            raise PydanticCustomError(
                "base_url", "is not an http:// or https:// address without query or fragment"
            )
        return None if url is None else url.rstrip("/")

    @field_validator("api_key")
    @classmethod
    def _check_key(cls, key: Secret | None, known: ValidationInfo) -> Secret | None:
        _require_service(key, known)
        if key is not None and key.is_passthrough:
            raise PydanticCustomError("policy_key", "cannot be passthrough: training has no caller")
        return key

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str, known: ValidationInfo) -> str:
        if device != "auto" and known.data.get("backend", "embedded") != "embedded":
            raise PydanticCustomError(
                "policy_device", "applies only to the embedded backend; delete this line"
            )
        return device

    def prompts_of_a_step(self, has_own_processor: bool) -> int:
        """Prompts of one step. `has_own_processor`: the backend computes on a GPU or another
        machine.
        """
        return self.prompts_per_step or (32 if has_own_processor else 4)

    def answers_to_a_prompt(self, has_own_processor: bool) -> int:
        """Answers drawn for each prompt of a step."""
        return self.group_size or (16 if has_own_processor else 12)

    @model_validator(mode="after")
    def _check_keys(self) -> "PolicyConfig":
        if (
            self.backend == "embedded"
            and self.base_model is not None
            and not Path(self.base_model).expanduser().is_absolute()
        ):
            raise PydanticCustomError(
                "embedded_base",
                'needs the absolute path of a folder as base_model, because backend = "embedded"'
                " trains the model there",
            )
        missing = [name for name in ("base_model", "tokenizer") if getattr(self, name) is None]
        if self.backend != "embedded" and missing:
            raise PydanticCustomError(
                "service_needs",
                "needs {names} for backend = {backend}",
                {"names": " and ".join(missing), "backend": f'"{self.backend}"'},
            )
        if self.serve == "backend" and (self.provider is not None or self.serve_command):
            raise PydanticCustomError(
                "serve", "needs serve to name a server if provider or serve_command is set"
            )
        if self.provider is not None and self.serve_command:
            raise PydanticCustomError(
                "serve_command",
                "has provider, a server that runs, and serve_command, which starts one; delete one",
            )
        return self


def _installed(group: str, name: str, own: str) -> str:
    """The name, if it is the program's own part or a plugin has it."""
    if name == own:
        return name
    known = [own, *known_names(group)]
    if name not in known:
        names = f"{', '.join(known[:-1])} or {known[-1]}"
        raise PydanticCustomError("plugin_unknown", "must be {names}", {"names": names})
    try:
        find_entry(group, name)
    except PluginError as error:
        raise PydanticCustomError(
            "plugin_missing", "cannot be used: {reason}", {"reason": str(error)}
        ) from error
    return name


def _require_service(value: object, known: ValidationInfo) -> None:
    if value is not None and known.data.get("backend") == "embedded":
        raise PydanticCustomError(
            "embedded_service",
            'does not apply to backend = "embedded"; delete this line, or set another backend',
        )


DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_RANGE = re.compile(r"(?:(?P<days>[a-z,-]+) )?(?P<begins>\d{1,2}:\d\d)-(?P<ends>\d{1,2}:\d\d)")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_HOW = (
    'is no range of hours; write "23:00-07:00", or "mon-fri 23:00-07:00" or "sat,sun 00:00-10:00"'
    " for some days"
)

# For each kind of calendar: the keys it requires, and the keys it must not have.
_KEYS_OF_CALENDAR = {
    "ics": (("url",), ("client_id", "client_secret")),
    "caldav": (("url",), ("client_id", "client_secret")),
    "google": (("client_id", "client_secret"), ("url", "user", "password")),
}

Minutes: TypeAlias = Annotated[float, Field(gt=0, le=10_080)]


@dataclass(frozen=True, slots=True)
class SleepRange:
    """Hours of the day, and the weekdays on which they begin (Monday is 0). If `ends` is not after
    `begins`, it is on the next day."""

    days: frozenset[int]
    begins: time
    ends: time


def sleep_range(text: str) -> SleepRange:
    """Parse a range such as `22:00-07:00`. Raises NoRangeError if it is not a range, ValueError for
    invalid hours.
    """
    match = _RANGE.fullmatch(text.strip().lower())
    if match is None:
        raise NoRangeError(_HOW)
    begins, ends = (
        _clock(match["begins"]),
        _clock("0:00" if match["ends"] == "24:00" else match["ends"]),
    )
    if begins == ends and match["ends"] != "24:00":
        raise ValueError("begins when it ends; write 00:00-24:00 for the whole day")
    return SleepRange(_days(match["days"]), begins, ends)


class NoRangeError(ValueError):
    """The text is not a range of hours."""


def _clock(text: str) -> time:
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(f"has {text}, which is no time of day; hours go from 00:00 to 24:00")
    return time(int(match[1]), int(match[2]))


def _days(text: str | None) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            raise NoRangeError(
                f"has {part!r}, which is no weekday; write {', '.join(DAYS)}, or two of them with -"
                " between"
            )
        begins, ends = DAYS.index(first), DAYS.index(last or first)
        found |= {day % 7 for day in range(begins, ends + 1 if ends >= begins else ends + 8)}
    return frozenset(found)


class CalendarConfig(Section):
    """One calendar. You count as away while it shows you as busy, unless a rule says otherwise."""

    kind: str = Field(
        min_length=1,
        description=(
            "`ics`: an iCalendar file or feed; `caldav`: a CalDAV server; `google`: Google"
            " Calendar; or a kind that an installed plugin reads."
        ),
        examples=["ics"],
    )
    url: Secret | None = Field(
        default=None,
        description=(
            "ics: absolute path or address of the file; caldav: address of the calendar. It is"
            " masked, as addresses of private feeds are secrets."
        ),
        examples=["https://example.org/me.ics"],
    )
    user: str | None = Field(
        default=None,
        min_length=1,
        description="User name, for caldav and protected feeds.",
        examples=["ada"],
    )
    password: Secret | None = Field(
        default=None, description="The user's password.", examples=["env:CALENDAR_PASSWORD"]
    )
    client_id: str | None = Field(
        default=None,
        min_length=1,
        description="google: the OAuth client's id.",
        examples=["…apps.googleusercontent.com"],
    )
    client_secret: Secret | None = Field(
        default=None,
        description="google: the OAuth client's secret.",
        examples=["env:GOOGLE_SECRET"],
    )
    calendar: str = Field(
        default="primary", min_length=1, description="google: which of the account's calendars."
    )
    refresh_minutes: Minutes = Field(
        default=15.0, description="Minutes between two readings of the calendar."
    )
    timeout_s: Seconds = Field(
        default=10.0,
        description="Seconds for reading it; a calendar that cannot be read is ignored.",
    )

    @field_validator("url", mode="before")
    @classmethod
    def _check_url(cls, value: object, known: ValidationInfo) -> object:
        if not isinstance(value, str) or value.startswith(("env:", "file:")):
            return value
        place = value.replace("{home}", str(home_of(known)))
        is_path = place.startswith(("/", "~")) and known.data.get("kind") != "caldav"
        if not is_path and not place.startswith(("http://", "https://")):
            raise PydanticCustomError(
                "calendar_url",
                "is neither an http:// or https:// address nor (for ics) the absolute path of a"
                " file",
            )
        return place

    @model_validator(mode="after")
    def _check_keys(self) -> "CalendarConfig":
        needed, foreign = _KEYS_OF_CALENDAR.get(self.kind, ((), ()))
        facts = {"kind": f'"{self.kind}"'}
        for name in needed:
            if getattr(self, name) is None:
                raise PydanticCustomError(
                    "calendar_needs", "needs {name} for kind = {kind}", {"name": name, **facts}
                )
        for name in foreign:
            if getattr(self, name) is not None:
                raise PydanticCustomError(
                    "calendar_other",
                    "has {name}, which does not apply to kind = {kind}",
                    {"name": name, **facts},
                )
        if self.password is not None and self.user is None:
            raise PydanticCustomError("calendar_user", "has password, and so needs user")
        return self


class RuleConfig(Section):
    """What events mean whose title contains certain words. The first rule that matches counts."""

    title: str = Field(
        description="Words in the title of an event; case does not matter.",
        min_length=1,
        examples=["pairing with agent"],
    )
    means: Literal["away", "present", "nothing"] = Field(
        description="What such an event means; `nothing` ignores it.", examples=["present"]
    )


class ScheduleConfig(Section):
    """When weights may be trained with `policy.mode = "auto"`: something shows that you are away,
    nothing that you are present.
    """

    sleep: Names = Field(
        default=("23:00-07:00",),
        description=(
            'Hours in which you sleep, also for certain days: "mon-fri 23:00-07:00"; the days'
            " are those on which the hours begin."
        ),
    )
    timezone: str | None = Field(
        default=None,
        description="Time zone of these hours. Default: that of this machine.",
        examples=["Europe/Vienna"],
    )
    idle_minutes: Minutes = Field(
        default=30.0,
        description=(
            "You count as away after this many minutes without keyboard, mouse or main turn."
        ),
    )
    min_window_minutes: Minutes = Field(
        default=1.0, description="A window is not opened if it is expected to be shorter."
    )
    cooldown_minutes: float = Field(
        default=1.0,
        ge=0,
        le=1440,
        description="Minutes from the end of a window until the next may open.",
    )
    calendars: Annotated[tuple[CalendarConfig, ...], Field(strict=False)] = Field(
        default=(),
        description=(
            'Calendars that show when you are away: a list such as `[{ kind = "ics", url ='
            ' "/home/me/me.ics" }]`, or tables `[[schedule.calendars]]`.'
        ),
    )
    rules: Annotated[tuple[RuleConfig, ...], Field(strict=False)] = Field(
        default=(),
        description=(
            'What events mean, by their title: `[{ title = "pairing with agent", means = "present"'
            " }]`."
        ),
    )
    on_battery: bool = Field(
        default=False, description="Train on this machine while it runs on battery."
    )
    on_metered: bool = Field(
        default=False, description="Train on a service while the network is metered."
    )
    max_load: float = Field(
        default=0.7,
        ge=0,
        le=64,
        description=(
            "This machine does not train while other programs load each core more than this; 0 for"
            " no limit."
        ),
    )
    max_temperature_c: float = Field(
        default=85.0,
        ge=0,
        le=150,
        description=(
            "This machine does not train above this temperature in degrees Celsius; 0 for no limit."
        ),
    )

    @field_validator("sleep")
    @classmethod
    def _check_hours(cls, ranges: tuple[str, ...]) -> tuple[str, ...]:
        """Invalid hours (25:00) do not stop the program: they are reported, and sleep is unknown
        until they are corrected.
        """
        for text in ranges:
            try:
                sleep_range(text)
            except NoRangeError as error:
                raise PydanticCustomError(
                    "sleep", "has {text}, which {why}", {"text": f'"{text}"', "why": str(error)}
                ) from error
            except ValueError:
                continue
        return ranges

    @field_validator("timezone")
    @classmethod
    def _check_timezone(cls, name: str | None) -> str | None:
        if name is not None and not _is_zone(name):
            raise PydanticCustomError("timezone", "is not the name of a time zone")
        return name

    @property
    def sleep_ranges(self) -> tuple[SleepRange, ...]:
        """The valid sleep hours."""
        return tuple(
            hours for hours in (_parse_range(text)[0] for text in self.sleep) if hours is not None
        )

    @property
    def sleep_trouble(self) -> str | None:
        """The first invalid hours and why they are invalid; None if all are valid."""
        return next(
            (f'"{text}" {why}' for text in self.sleep if (why := _parse_range(text)[1])), None
        )


def _parse_range(text: str) -> tuple[SleepRange | None, str | None]:
    """The range, or why it is invalid."""
    try:
        return sleep_range(text), None
    except ValueError as error:
        return None, str(error)


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # a name that is no path, a folder, an unknown name
        return False
    return True
