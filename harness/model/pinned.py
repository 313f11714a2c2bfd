"""What a competition asks of the machines that judge it, so that its runs are of one kind."""

from __future__ import annotations

from collections.abc import Mapping

from harness.model.value import Text, Value

PINNED = ("torch", "triton", "driver")


class Pinned(Value):
    """The versions of torch and Triton, and that of NVIDIA's driver. None: any will do. A version is the whole text,
    such as 2.11.0+cu128."""

    torch: Text | None = None
    triton: Text | None = None
    driver: Text | None = None

    @property
    def versions(self) -> dict[str, str]:
        """Those that are pinned, by name."""
        return {name: version for name in PINNED if (version := getattr(self, name)) is not None}

    def differences(self, has: Mapping[str, str | None]) -> list[str]:
        """Why a machine that `has` these versions may not judge, a sentence each; none if it may."""
        return [
            f"its {name} is {has.get(name) or 'missing'}, pinned is {pinned}"
            for name, pinned in self.versions.items()
            if has.get(name) != pinned
        ]
