"""The configuration: one strict typed tree, read from TOML, the environment and options, and changed without losing a comment."""

from metaclaw.config.flat import flatten, missing_secrets
from metaclaw.config.home import CONFIG_NAME, default_home, prepare_home, replace_file
from metaclaw.config.load import build, load
from metaclaw.config.problems import InvalidConfigError, Problem, toml_value
from metaclaw.config.secret import MASK, Secret, SecretUrl, without_password
from metaclaw.config.source import Source, SourceKind
from metaclaw.config.tree import (
    Config,
    EngineConfig,
    LogConfig,
    ProviderConfig,
    ProxyConfig,
    SessionsConfig,
    SkillsConfig,
    StoreConfig,
    TelemetryConfig,
    is_loopback,
)

__all__ = [
    "CONFIG_NAME",
    "MASK",
    "Config",
    "EngineConfig",
    "InvalidConfigError",
    "LogConfig",
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
