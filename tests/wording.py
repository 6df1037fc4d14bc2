"""What a sentence must tell, whatever its wording."""

import re


def says(text: str, *parts: str) -> bool:
    """Whether the text holds all parts as words of their own, in this order."""
    place = 0
    text = text.replace("\N{NO-BREAK SPACE}", " ")
    for part in parts:
        found = re.compile(rf"(?<!\w)(?<!\d\.){re.escape(part)}(?!\w|\.\d)").search(text, place)
        if found is None:
            return False
        place = found.end()
    return True
