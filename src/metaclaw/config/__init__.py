"""The configuration: one strict typed tree, read from TOML, the environment and options, and edited without losing comments."""

from metaclaw.config.editor import ensure_api_key, set_values
from metaclaw.config.home import CONFIG_NAME, default_home, prepare_home, replace_file
from metaclaw.config.learning import (
    EvolverConfig,
    JudgeConfig,
    LearningConfig,
    ListenConfig,
    PriceConfig,
    PrivacyConfig,
    SkillsConfig,
    TeamConfig,
)
from metaclaw.config.loader import build, flatten, load, missing_secrets
from metaclaw.config.policy import DistillConfig, PolicyConfig, TrainingMode
from metaclaw.config.problems import InvalidConfigError, Problem, toml_value
from metaclaw.config.schedule import CalendarConfig, RuleConfig, ScheduleConfig, SleepRange, sleep_range
from metaclaw.config.section import MASK, Secret, SecretUrl, without_password
from metaclaw.config.serving import (
    WIRES_OF_KIND,
    EngineConfig,
    LogConfig,
    ProviderConfig,
    ProxyConfig,
    SessionsConfig,
    StoreConfig,
    TelemetryConfig,
    is_loopback,
)
from metaclaw.config.sources import LISTS, OPTIONAL, SourceKind, Statement, ValueSource, statements
from metaclaw.config.tree import Config

__all__ = [
    "CONFIG_NAME",
    "LISTS",
    "MASK",
    "OPTIONAL",
    "WIRES_OF_KIND",
    "CalendarConfig",
    "Config",
    "DistillConfig",
    "EngineConfig",
    "EvolverConfig",
    "InvalidConfigError",
    "JudgeConfig",
    "LearningConfig",
    "ListenConfig",
    "LogConfig",
    "PolicyConfig",
    "PriceConfig",
    "PrivacyConfig",
    "Problem",
    "ProviderConfig",
    "ProxyConfig",
    "RuleConfig",
    "ScheduleConfig",
    "Secret",
    "SecretUrl",
    "SessionsConfig",
    "SkillsConfig",
    "SleepRange",
    "SourceKind",
    "Statement",
    "StoreConfig",
    "TeamConfig",
    "TelemetryConfig",
    "TrainingMode",
    "ValueSource",
    "build",
    "default_home",
    "ensure_api_key",
    "flatten",
    "is_loopback",
    "load",
    "missing_secrets",
    "prepare_home",
    "replace_file",
    "set_values",
    "sleep_range",
    "statements",
    "toml_value",
    "without_password",
]
