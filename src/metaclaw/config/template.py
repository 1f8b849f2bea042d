"""The first config.toml: the generated key, and every other key as a comment with its default, written from the tree itself."""

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from metaclaw.config.problems import section_type, toml_value
from metaclaw.config.source import LISTS
from metaclaw.config.tree import Config

_TOP = """\
# MetaClaw's configuration. Lines that begin with # are the defaults; take the # away to change one.
# `metaclaw config check` says whether the file is right, `metaclaw config show` what is in force and why.
# Secrets may be written as "env:NAME" or "file:/path" instead of here.
"""


def template(key: str) -> str:
    """The text of a new file with this key in it."""
    return _TOP + "".join(_section(name, field, key) for name, field in Config.model_fields.items())


def _section(name: str, field: FieldInfo, key: str) -> str:
    section = section_type(field.annotation)
    assert section is not None
    is_list = name in LISTS
    header = f"[[{name}]]" if is_list else f"[{name}]"
    # What is not there unless it is written stays a comment.
    lines = [f"\n# {section.__doc__}", f"# {header}" if is_list or field.get_default() is None else header]
    inner = ""
    for word, value in section.model_fields.items():
        if (name, word) == ("proxy", "api_key"):
            lines.append(f"{word} = {toml_value(key)}")
        elif section_type(value.annotation) is not None and value.get_default() is None:
            inner += _section(f"{name}.{word}", value, key)
        else:
            lines.append(f"# {word} = {_shown(value)}  # {value.description}")
    return "\n".join(lines) + "\n" + inner


def _shown(field: FieldInfo) -> str:
    default = field.get_default()
    is_plain = default is not None and default is not PydanticUndefined
    return toml_value(default if is_plain else field.examples[0] if field.examples else "")
