"""The configuration: one strict typed tree, read from TOML, the environment and options, and changed without losing a comment."""

from metaclaw.config.flat import flatten, missing_secrets
from metaclaw.config.home import CONFIG_NAME, default_home, prepare_home, replace_file
from metaclaw.config.lines import Statement, statements
from metaclaw.config.load import build, load
from metaclaw.config.policy import DistillConfig, PolicyConfig, TrainingMode
from metaclaw.config.problems import InvalidConfigError, Problem, toml_value
from metaclaw.config.schedule import CalendarConfig, RuleConfig, ScheduleConfig, SleepRange, sleep_range
from metaclaw.config.secret import MASK, Secret, SecretUrl, without_password
from metaclaw.config.source import LISTS, OPTIONAL, Source, SourceKind
from metaclaw.config.tree import (
    Config,
    EngineConfig,
    EvolverConfig,
    JudgeConfig,
    LearningConfig,
    ListenConfig,
    LogConfig,
    PriceConfig,
    PrivacyConfig,
    ProviderConfig,
    ProxyConfig,
    SessionsConfig,
    SkillsConfig,
    StoreConfig,
    TeamConfig,
    TelemetryConfig,
    is_loopback,
)

__all__ = [
    "CONFIG_NAME",
    "LISTS",
    "MASK",
    "OPTIONAL",
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
    "Source",
    "SourceKind",
    "Statement",
    "StoreConfig",
    "TeamConfig",
    "TelemetryConfig",
    "TrainingMode",
    "build",
    "default_home",
    "flatten",
    "is_loopback",
    "load",
    "missing_secrets",
    "prepare_home",
    "replace_file",
    "sleep_range",
    "statements",
    "toml_value",
    "without_password",
]
