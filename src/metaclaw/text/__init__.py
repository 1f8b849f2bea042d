"""Plain text: hidden characters, sentences, terms, word lists, and JSON inside prose."""

from metaclaw.text.characters import HIDDEN, hides_characters, may_contain_hidden, visible_form, without_hidden_characters
from metaclaw.text.json_text import json_documents
from metaclaw.text.sentences import (
    Imperative,
    begins_with_rule,
    begins_with_verb,
    instructions,
    introduces_rules,
    is_imperative,
    split_sentences,
    visible_text,
)
from metaclaw.text.terms import (
    MAX_WORD_CHARS,
    count_terms,
    list_terms,
    list_words,
    sentence_terms,
    specific_terms,
    stem,
    terms_of,
)
from metaclaw.text.words import COMMON_WORDS, VERY_COMMON_WORDS

__all__ = [
    "COMMON_WORDS",
    "HIDDEN",
    "MAX_WORD_CHARS",
    "VERY_COMMON_WORDS",
    "Imperative",
    "begins_with_rule",
    "begins_with_verb",
    "count_terms",
    "hides_characters",
    "instructions",
    "introduces_rules",
    "is_imperative",
    "json_documents",
    "list_terms",
    "list_words",
    "may_contain_hidden",
    "sentence_terms",
    "specific_terms",
    "split_sentences",
    "stem",
    "terms_of",
    "visible_form",
    "visible_text",
    "without_hidden_characters",
]
