import re


def read(task):
    level = re.search(r"\b(error|warning|notice)\b", task)
    component = re.search(r"\b[Tt]he (?!log line)(\w+)", task)
    fault = re.search(
        r"(?:: |says | (?:error|warning|notice), )(?!the )([a-z ]+?)(?:,| with code)", task
    )
    code = re.search(r"code (?:is )?(\d+)", task)
    if not level or not component or not fault or not code:
        return None
    parts = level[1].upper(), component[1], fault[1], code[1]
    return [
        ("[", 0),
        (parts[0], 1),
        ("] ", 0),
        (parts[1], 1),
        (" | ", 0),
        (parts[2], 1),
        (" | ", 0),
        (parts[3], 1),
    ]
