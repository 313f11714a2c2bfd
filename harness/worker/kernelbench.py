"""KernelBench's form of a submission: a class ModelNew in the place of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class ModelCall:
    """A class with ModelNew's constructor and forward, as a `custom_kernel`. `around` is entered to build it, `device`
    is where it computes."""

    def __init__(self, cls: type, around: Callable[[], Any], device: str) -> None:
        self._class, self._around, self._device = cls, around, device
        self._model: Any = None

    def set_up(self, data: Any) -> None:
        """`data`: the constructor's arguments, the state of the judge's model, the seed that it was built with, and the
        precision that it was cast to, if it was. A model whose state has other names or shapes keeps what it has drawn
        from that seed itself."""
        init, state, seed, precision = data
        with self._around():
            torch.manual_seed(seed)
            model = self._class(*(each.clone() if isinstance(each, torch.Tensor) else each for each in init))
            model = model.to(getattr(torch, precision)) if precision else model
            own = model.state_dict()
            if {name: t.shape for name, t in own.items()} == {name: t.shape for name, t in state.items()}:
                model.load_state_dict(state)
            self._model = model.to(self._device)

    def __call__(self, data: Any) -> Any:
        inputs, seed = data
        if seed is not None:
            torch.manual_seed(int(seed))
        with torch.no_grad():
            return self._model(*inputs)
