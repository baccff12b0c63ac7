"""Another factory, with one more key."""


def fancy(start: float, *, lr: float, damping: float) -> float:
    return start * lr / (1 + damping)
