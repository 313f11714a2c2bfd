"""What a submission's process says of its own calls on a CPU. It informs the author and ranks nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.judge.reply import CallReply


@dataclass
class Seen:
    """interpreted: whether any call so far ran in Triton's interpreter. launching: the labels of the cases that did.
    kernels: the names of the kernels. switches: the values of their constexprs that are True or False. inexact: what
    a GPU would compute less exactly."""

    interpreted: bool = False
    launching: set[str] = field(default_factory=set)
    kernels: set[str] = field(default_factory=set)
    switches: set[str] = field(default_factory=set)
    inexact: set[str] = field(default_factory=set)

    def note(self, label: str, reply: CallReply) -> None:
        """Note a reply to a call of the case `label`."""
        self.interpreted |= reply.interpreted
        self.launching |= {label} if reply.launched else set()
        self.kernels |= set(reply.kernels)
        self.switches |= set(reply.switches)
        self.inexact |= set(reply.inexact)
