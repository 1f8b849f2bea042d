import re


def read(task):
    number = re.search(r"backup (?:copy |number )?(\d+)", task)
    file = re.search(r"\b(\w+\.\w+)\b", task)
    if not number or not file:
        return None
    return [(".vault/", 0), (file[1], 1), ("~", 0), (number[1], 1)]
