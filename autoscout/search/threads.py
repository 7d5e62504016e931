"""The search's matrices are small: threads of the linear algebra wait for each other longer than they compute."""

from collections.abc import Callable
from functools import cache, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")


def one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Within `function` BLAS uses one thread; experiments and whoever calls us keep theirs. (Measured on two cores: a
    step of a session of 30 experiments took 119 ms with two threads, 26 with one, and 297 and 42 beside other work.)"""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _libraries().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited


@cache
def _libraries() -> "ThreadpoolController":
    import scipy.linalg  # noqa: F401  what is not loaded yet is not found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
