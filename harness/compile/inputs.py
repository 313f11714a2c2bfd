"""Carry a problem's inputs to a process that may not see the problem: describe them here, make them again there.

    verbs/check (trusted)                           a compiling process (confined, with the submission)
    Described.add(case, data)  ──► inputs.json ──►  Inputs.read(folder).cases[i].data(phantoms)
                                   inputs.bin

    inputs.json   {"names", "in_place",                              of the problem's inputs
                   "cases": [{"label", "tree", "tensors"}],          tree: from harness.wire.tree.flatten
                   "storages": [{"bytes", "at"}]}                    at: offset in inputs.bin, null without values
    inputs.bin    the known values of storages: of real tensors, and of phantoms whose values are known

A tensor is {"device", "shadow", "values"}. `shadow` describes a phantom on the meta device, `values` the known values
on the CPU. Each is {"dtype", "storage", "offset", "shape", "stride"} or null. Tensors that shared a storage share one
again. A case can be made any number of times, each time with fresh tensors.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.compile.phantom import CPU, META, Phantom, Phantoms
from harness.compile.reach import DESCRIPTION
from harness.wire.arena import dtype_name
from harness.wire.tree import flatten, unflatten

VALUES = "inputs.bin"


class Described:
    """The cases of a problem, collected for writing. `names`: the names of its inputs."""

    def __init__(self, names: Sequence[str], in_place: Sequence[str]) -> None:
        self._document: dict[str, Any] = {"names": list(names), "in_place": list(in_place), "cases": [], "storages": []}
        self._values = bytearray()

    def add(self, label: str, data: Any, phantoms: Phantoms | None = None) -> None:
        """Add a case. `data` holds real tensors, or tensors of `phantoms`; call this outside the context of `phantoms`.

        Raises TypeError and ValueError as `flatten` does.
        """
        tree, leaves = flatten(data, self._document["names"])
        numbers: dict[int, int] = {}
        tensors = [self._tensor(tensor, phantoms, numbers) for _, tensor in leaves]
        self._document["cases"].append({"label": label, "tree": tree, "tensors": tensors})

    def write(self, folder: Path) -> None:
        (folder / DESCRIPTION).write_text(json.dumps(self._document))
        (folder / VALUES).write_bytes(self._values)

    def _tensor(self, tensor: torch.Tensor, phantoms: Phantoms | None, numbers: dict[int, int]) -> dict[str, Any]:
        if not isinstance(tensor, Phantom):
            return {"device": "cpu", "shadow": None, "values": self._placed(tensor.detach().cpu(), numbers)}
        known = phantoms.known(tensor) if phantoms is not None else None
        return {
            "device": str(tensor.claimed),
            "shadow": self._placed(tensor, numbers),
            "values": None if known is None else self._placed(known, numbers),
        }

    def _placed(self, tensor: torch.Tensor, numbers: dict[int, int]) -> dict[str, Any]:
        storage = tensor.untyped_storage()
        if storage._cdata not in numbers:
            numbers[storage._cdata] = len(self._document["storages"])
            on_meta = tensor.is_meta
            self._document["storages"].append({"bytes": storage.nbytes(), "at": None if on_meta else len(self._values)})
            if not on_meta:
                self._values += bytes(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())  # type: ignore[call-overload]
        return {
            "dtype": dtype_name(tensor.dtype),
            "storage": numbers[storage._cdata],
            "offset": int(tensor.storage_offset()),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
        }


@dataclass(frozen=True)
class DescribedCase:
    """One case as a compiling process reads it."""

    label: str
    tree: Any
    tensors: list[dict[str, Any]]
    storages: list[dict[str, Any]]
    values: bytes

    def data(self, phantoms: Phantoms | None = None) -> Any:
        """Make the generator's data again, with fresh tensors. `phantoms` is needed for a case with phantoms."""
        made: dict[int, torch.UntypedStorage] = {}

        def leaf(number: int) -> torch.Tensor:
            described = self.tensors[number]
            shadow, values = (self._made(described[what], made) for what in ("shadow", "values"))
            if shadow is None or phantoms is None:
                assert values is not None
                return values
            tensor: torch.Tensor = phantoms.made_of(shadow, values, torch.device(described["device"]))
            return tensor

        return unflatten(self.tree, functools.cache(leaf))

    def _made(self, placed: dict[str, Any] | None, made: dict[int, torch.UntypedStorage]) -> torch.Tensor | None:
        if placed is None:
            return None
        number = placed["storage"]
        if number not in made:
            made[number] = self._storage(self.storages[number])
        tensor = torch.empty(0, dtype=getattr(torch, placed["dtype"]), device=made[number].device)
        return tensor.set_(made[number], placed["offset"], placed["shape"], placed["stride"])  # type: ignore[call-overload]

    def _storage(self, described: dict[str, Any]) -> torch.UntypedStorage:
        size, at = described["bytes"], described["at"]
        if at is None:
            return torch.UntypedStorage(size, device=META)
        storage = torch.UntypedStorage(size, device=CPU)
        if size:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]
            whole.copy_(torch.frombuffer(bytearray(self.values[at : at + size]), dtype=torch.uint8))
        return storage


@dataclass(frozen=True)
class Inputs:
    """The described cases, with the names of the problem's inputs and of the inputs that kernels write to."""

    names: list[str]
    in_place: list[str]
    cases: list[DescribedCase]

    @classmethod
    def read(cls, folder: Path) -> Inputs:
        """Read a folder. Raises OSError and ValueError."""
        document = json.loads((folder / DESCRIPTION).read_text())
        values = (folder / VALUES).read_bytes()
        cases = [
            DescribedCase(case["label"], case["tree"], case["tensors"], document["storages"], values)
            for case in document["cases"]
        ]
        return cls(document["names"], document["in_place"], cases)
