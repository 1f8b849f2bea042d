import re


def read(task):
    title = re.search(r"original of ((?:[A-Z]\w* ?)+)", task)
    if not title:
        return None
    words = title[1].lower().split()
    return [
        part
        for number, word in enumerate(words)
        for part in (("-" if number else "", 0), (word, 1))
    ] + [(".orig", 0)]
