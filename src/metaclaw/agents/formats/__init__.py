"""Configuration formats that are changed as text: a value is put or removed, every other byte stays."""

from metaclaw.agents.formats.dotenv import DotenvFormat
from metaclaw.agents.formats.jsonc import JsonFormat
from metaclaw.agents.formats.path import Item, KeyPath, TextFormat, UnreadableTextError
from metaclaw.agents.formats.toml import TomlFormat
from metaclaw.agents.formats.yaml import YamlFormat

__all__ = ["DotenvFormat", "Item", "JsonFormat", "KeyPath", "TextFormat", "TomlFormat", "UnreadableTextError", "YamlFormat"]
