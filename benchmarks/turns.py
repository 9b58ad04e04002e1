"""Time works that take turns, so that a busy machine slows all of them alike. Read by the benchmarks beside it."""

import time
from collections.abc import Callable


def least_seconds(*works: Callable[[], object], repeats: int) -> list[float]:
    """Least seconds of each work over so many rounds, in which each has its turn."""
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for seconds, work in zip(taken, works, strict=True):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
    return [min(seconds) for seconds in taken]
