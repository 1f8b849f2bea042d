"""Skills: their files, the shelf that holds those in force, retrieval, and the text that is placed in a prompt."""

from metaclaw.skills.files import parse_skill, read_skill, remove_skill, render_skill, write_skill
from metaclaw.skills.place import Block, already_present, estimate_tokens, remove_blocks, render_block
from metaclaw.skills.query import query_text
from metaclaw.skills.shelf import Shelf, ShelfView

__all__ = [
    "Block",
    "Shelf",
    "ShelfView",
    "already_present",
    "estimate_tokens",
    "parse_skill",
    "query_text",
    "read_skill",
    "remove_blocks",
    "remove_skill",
    "render_block",
    "render_skill",
    "write_skill",
]
