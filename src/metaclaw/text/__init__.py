"""Plain text: hidden characters, sentences, terms, word lists, JSON inside prose, and cutting to a
limit.
"""

from metaclaw.text.excerpts import (
    BASE64,
    HEX,
    HIDDEN,
    answer_documents,
    answer_objects,
    cut_middle,
    fair_shares,
    from_base64,
    from_hex,
    hides_characters,
    hides_text,
    json_documents,
    keep_ends,
    may_contain_hidden,
    shorten,
    visible_form,
    without_hidden_characters,
)
from metaclaw.text.sentences import (
    is_imperative,
    split_sentences,
    visible_text,
)
from metaclaw.text.terms import (
    CLIENT_OUTPUT_TAGS,
    CLIENT_TAGS,
    COMMON_WORDS,
    MAX_WORD_CHARS,
    VERY_COMMON_WORDS,
    count_terms,
    list_terms,
    list_words,
    sentence_terms,
    specific_terms,
    stem,
    terms_of,
)
