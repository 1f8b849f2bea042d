import re


def read(task):
    price = re.search(r"(\d+) euros and (\d+) cents", task)
    if not price:
        return None
    return [(price[1], 1), (",", 0), (f"{int(price[2]):02d}", 1), (" EUR", 0)]
