"""The configuration: one strict typed tree, read from TOML, the environment and options, and changed without losing a comment."""

from metaclaw.config.flat import flatten, missing_secrets
from metaclaw.config.home import CONFIG_NAME, default_home, prepare_home, replace_file
from metaclaw.config.load import build, load
from metaclaw.config.problems import InvalidConfigError, Problem, toml_value
from metaclaw.config.secret import MASK, Secret, SecretUrl, without_password
from metaclaw.config.source import LISTS, Source, SourceKind
from metaclaw.config.tree import (
    Config,
    EngineConfig,
    EvolverConfig,
    JudgeConfig,
    LogConfig,
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
    "Config",
    "EngineConfig",
    "EvolverConfig",
    "InvalidConfigError",
    "JudgeConfig",
    "LogConfig",
    "PrivacyConfig",
    "Problem",
    "ProviderConfig",
    "ProxyConfig",
    "Secret",
    "SecretUrl",
    "SessionsConfig",
    "SkillsConfig",
    "Source",
    "SourceKind",
    "StoreConfig",
    "TeamConfig",
    "TelemetryConfig",
    "build",
    "default_home",
    "flatten",
    "is_loopback",
    "load",
    "missing_secrets",
    "prepare_home",
    "replace_file",
    "toml_value",
    "without_password",
]
