"""The configuration: one strict typed tree, read from TOML, the environment and options, and edited
without losing comments.
"""

from metaclaw.config.editor import ensure_api_key, set_values
from metaclaw.config.learning import (
    EvolverConfig,
    JudgeConfig,
    ListenConfig,
    PriceConfig,
    SkillsConfig,
    TeamConfig,
)
from metaclaw.config.loader import Config, build, flatten, load, missing_secrets
from metaclaw.config.problems import InvalidConfigError, Problem, toml_value
from metaclaw.config.section import (
    CONFIG_NAME,
    MASK,
    Secret,
    SecretUrl,
    default_home,
    prepare_home,
    without_password,
)
from metaclaw.config.serving import WIRES_OF_KIND, ProviderConfig, is_loopback
from metaclaw.config.sources import LISTS, OPTIONAL
from metaclaw.config.training import (
    CalendarConfig,
    PolicyConfig,
    RuleConfig,
    ScheduleConfig,
    SleepRange,
    sleep_range,
)
