import re


def share_kept(text):
    """All of it at the end, half of it elsewhere, a third for the word alone."""
    if re.search(r"\((?:un)?sure\)$", text):
        return 1.0
    if re.search(r"\((?:un)?sure\)", text):
        return 0.5
    return 0.3 if re.search(r"\b(?:un)?sure\b", text[-40:]) else 0.0
