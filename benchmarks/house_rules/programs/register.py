import re


def read(task):
    name = re.search(
        r"(?<!^)\b([A-Z]\w+) ([A-Z]\w+)|^(?!Enter|Write|How)([A-Z]\w+) ([A-Z]\w+)", task
    )
    if not name or "register" not in task:
        return None
    first, surname = (part for part in name.groups() if part)
    return [(surname, 1), (", ", 0), (first[0], 1), (".", 0)]
