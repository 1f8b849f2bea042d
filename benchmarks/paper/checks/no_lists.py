import re


def share_kept(text):
    """The less, the more lines and list marks there are."""
    marks = re.findall(r"\n|(?:^|\s)(?:\d+[.)]|[-*•])(?=\s)", text)
    return 1 / (1 + len(marks))
