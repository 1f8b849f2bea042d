import re


def read(task):
    number = re.search(r"\b(\d\d)(\d{3})(\d{3})\b", task)
    if not number or "phone list" not in task:
        return None
    return [(number[1], 1), ("/", 0), (number[2], 1), ("-", 0), (number[3], 1)]
