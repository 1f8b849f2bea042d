"""Skills: their files, the shelf that holds those in force, retrieval, and the text that is placed in a prompt."""

from metaclaw.skills.block import (
    Block,
    already_present,
    estimate_tokens,
    is_listed_in,
    is_placed_in,
    listed_line,
    remove_blocks,
    render_block,
    render_reminder,
    rule_line,
)
from metaclaw.skills.explanation import Considered, Fate, explain
from metaclaw.skills.files import parse_skill, read_skill, remove_skill, render_skill, write_skill
from metaclaw.skills.library import Budgets, Selection, ShelfView
from metaclaw.skills.query import query_text
from metaclaw.skills.rule_fields import rule_text, rule_when
from metaclaw.skills.rulebook import Rulebook, Undone
from metaclaw.skills.scopes import Teams, applies, applying, is_untouchable, may_be_withheld, owned, scope_of_lesson
from metaclaw.skills.shelf import Shelf

__all__ = [
    "Block",
    "Budgets",
    "Considered",
    "Fate",
    "Rulebook",
    "Selection",
    "Shelf",
    "ShelfView",
    "Teams",
    "Undone",
    "already_present",
    "applies",
    "applying",
    "estimate_tokens",
    "explain",
    "is_listed_in",
    "is_placed_in",
    "is_untouchable",
    "listed_line",
    "may_be_withheld",
    "owned",
    "parse_skill",
    "query_text",
    "read_skill",
    "remove_blocks",
    "remove_skill",
    "render_block",
    "render_reminder",
    "render_skill",
    "rule_line",
    "rule_text",
    "rule_when",
    "scope_of_lesson",
    "write_skill",
]
