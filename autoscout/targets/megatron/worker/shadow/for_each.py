"""Makes torch's optimizers behave as on a GPU. There they update all parameters at once (foreach), with temporaries of
the size of all parameters; on a CPU, they update one parameter after the other."""

import importlib
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor


def as_on_a_gpu() -> None:
    for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
        module: Any = importlib.import_module(name)
        known: list[str] = module._get_foreach_kernels_supported_devices()
        module._get_foreach_kernels_supported_devices = lambda known=known: [*known, "cpu"]
        if FakeTensor not in module._foreach_supported_types:
            module._foreach_supported_types.append(FakeTensor)
