"""KernelBench's form of a submission: a class ModelNew in the place of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

MOST_NAMED = 6
"""Members of a state that a sentence names."""


class ModelCall:
    """A class with ModelNew's constructor and forward, as a `custom_kernel`, to be called within `around_call`.
    `around` is entered to build it and to call it, `device` is where it computes."""

    def __init__(self, cls: type, around: Callable[[], Any], device: str) -> None:
        self._class, self._around, self._device = cls, around, device
        self._model: Any = None

    def set_up(self, data: Any) -> None:
        """`data`: the constructor's arguments, the state of the judge's model, the seed that it was built with, and the
        precision that it was cast to, if it was. A model whose state has other names or shapes keeps what it has drawn
        from that seed itself, and what it printed says so."""
        init, state, seed, precision = data
        with self._around():
            torch.manual_seed(seed)
            model = self._class(*(each.clone() if isinstance(each, torch.Tensor) else each for each in init))
            model = model.to(getattr(torch, precision)) if precision else model
            own = model.state_dict()
            if {name: t.shape for name, t in own.items()} == {name: t.shape for name, t in state.items()}:
                model.load_state_dict(state)
            else:
                print(_not_loaded(own, state), flush=True)
            self._model = model.to(self._device)

    def __call__(self, data: Any) -> Any:
        inputs, seed = data
        if seed is not None:
            torch.manual_seed(int(seed))
        return self._model(*inputs)

    @contextmanager
    def around_call(self) -> Iterator[None]:
        with self._around(), torch.no_grad():
            yield


def _not_loaded(own: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> str:
    """Why a model does not get the judge's weights, in words."""
    shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
    due = {name: tuple(tensor.shape) for name, tensor in state.items()}
    unlike = [f"{name} {due[name]}" for name in due if shapes.get(name) != due[name]]
    besides = [f"{name} {shapes[name]}" for name in shapes if due.get(name) != shapes[name]]
    has = f"has {_listed(besides)}" if besides else "has nothing else"
    lacks = f"lacks {_listed(unlike)}" if unlike else "lacks nothing"
    why = f"its state is not Model's: it {lacks} and {has}"
    return f"podium: ModelNew keeps the weights that it has drawn itself, because {why}"


def _listed(named: list[str]) -> str:
    return ", ".join(named[:MOST_NAMED]) + (f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else "")
