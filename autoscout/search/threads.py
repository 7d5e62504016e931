"""Limits BLAS to one thread, because on small matrices several threads mostly wait for each other."""

from collections.abc import Callable
from functools import cache, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")


def one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Limits BLAS to one thread within `function` only. Measured on two cores: a search step of a session with 30
    experiments took 119 ms with two threads and 26 ms with one; on a busy machine 297 and 42 ms."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _libraries().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited


@cache
def _libraries() -> "ThreadpoolController":
    import scipy.linalg  # noqa: F401  threadpoolctl finds only loaded libraries
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
