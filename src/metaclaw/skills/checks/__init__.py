"""Checks of answers: their text in a skill's front matter, and trying them."""
