import importlib.util
import sys
from collections.abc import Iterator

import pytest
from profile_bench import Bench

from autoscout.running.processes import WORKER

sys.path.append(str(WORKER))  # what all workers share lies beside them only where they run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("megatron") is None:
        missing = pytest.mark.skip(reason="megatron-core is not installed (the megatron extra)")
        for item in items:
            if "engine" in item.keywords:
                item.add_marker(missing)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("experiments"))
    yield bench
    bench.close()
