"""Numbers with their nouns, as people write them."""


def counted(number: int, noun: str) -> str:
    """Write a number and what it counts: ``"1 graph"``, ``"2 graphs"``, ``"0 graphs"``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
