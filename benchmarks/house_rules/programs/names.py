import re


def read(task):
    kind = re.search(r"\b(\w+) about (\w+) and (\w+)", task)
    version = re.search(r"[Vv]ersion (\d+)", task)
    if not kind or not version or "filename" not in task:
        return None
    extension, one, two = kind.groups()
    return [
        ("[", 0),
        (one, 1),
        ("_", 0),
        (two, 1),
        ("].v", 0),
        (version[1], 1),
        (".", 0),
        (extension, 1),
    ]
