"""Runs a kernel's waves: the order of steps, barriers, limits and counts.

    Machine(program, state)    ─► run() ─► findings, counts

All waves at one position step together, so one array operation serves them all. The lowest position goes first, so
waves that leave a branch late catch up with those that skipped it. With an `order`, the waves of a workgroup run one
after another from barrier to barrier. A wave that waits in a loop for another gives way.
"""

from __future__ import annotations

import math
import time

import numpy as np

from harness.emulator import scalar
from harness.emulator.arithmetic import Array
from harness.emulator.findings import BAD_JUMP, BARRIER, DIVERGENT, ENDLESS, KernelFault, KernelFinding, NotEmulated
from harness.emulator.order import Order
from harness.emulator.places import numbers
from harness.emulator.program import DecodedProgram
from harness.emulator.state import Rows, State, WaveFault

FAIR_TURN = 64
"""In every such turn the wave that has done least goes first, so that a wave that waits in a loop cannot starve the
wave it waits for."""

MANY_INSTRUCTIONS = 20_000
"""A wave that has run fewer instructions is not called endless, however long it took: a batch of many waves is slow."""


class Machine:
    """One batch of workgroups. groups: int64 [workgroups, 3], in the order of the state's waves."""

    def __init__(
        self,
        program: DecodedProgram,
        state: State,
        groups: Array,
        limit: int,
        order: Order | None,
        limit_s: float = math.inf,
    ) -> None:
        """limit: the most instructions that a wave may run. limit_s: processor seconds in which some wave must end."""
        self.program, self.state, self.groups, self.limit, self.order = program, state, groups, limit, order
        self.limit_s, self._last_end_s = limit_s, time.thread_time()
        waves = state.position.shape[0]
        self.ended = np.zeros(waves, np.bool_)
        self.waiting = np.zeros(waves, np.bool_)
        self.done = np.zeros(waves, np.int64)
        self.counts = np.zeros(len(program.instructions), np.int64)
        self.findings: dict[tuple[str, int], KernelFinding] = {}
        self.remarks: dict[int, KernelFinding] = {}
        self._begun = state.lanes.copy()
        self.at = 0
        state.note = self._note
        self.rank = np.arange(waves) % state.waves_per_group
        if order is not None:
            self._shuffle()

    def run(self) -> None:
        """Run until all waves have ended. Raises KernelFault and NotEmulated."""
        turn = 0
        while True:
            ready = ~(self.ended | self.waiting)
            if not ready.any():
                return
            if self.order is not None:
                ready = self._one_a_group(ready)
            turn += 1
            positions = self.state.position
            if turn % FAIR_TURN == 0:
                self._look_at_the_clock(ready)
                least = np.argmin(np.where(ready, self.done, np.iinfo(np.int64).max))
                position = int(positions[least])
            else:
                position = int(positions[ready].min())
            self._advance(_rows(ready & (positions == position)), position)

    def _look_at_the_clock(self, ready: Array) -> None:
        """Raises KernelFault if no wave has ended for too long and one has run many instructions."""
        if time.thread_time() - self._last_end_s <= self.limit_s:
            return
        row = int(np.argmax(np.where(ready, self.done, -1)))
        if self.done[row] >= MANY_INSTRUCTIONS:
            self.at = int(self.state.position[row])
            message = f"no wave ended in {self.limit_s:g} s of processor time; this one ran {self.done[row]:,}"
            raise KernelFault(self._finding(WaveFault(ENDLESS, f"{message} instructions", row)))

    def _advance(self, rows: Rows, position: int) -> None:
        program, state = self.program, self.state
        end = program.ends[position]
        waves = state.position[rows].shape[0]
        try:
            for self.at in range(position, end):
                (program.steps[self.at] or program.step(self.at))(state, rows)
        except WaveFault as found:
            raise KernelFault(self._finding(found)) from None
        self.counts[position:end] += waves
        self.done[rows] += end - position + 1
        if (self.done[rows] > self.limit).any():
            row = int(np.arange(self.done.shape[0])[rows][np.argmax(self.done[rows])])
            raise KernelFault(self._finding(WaveFault(ENDLESS, f"a wave ran {self.limit:,} instructions", row)))
        if end == len(program.instructions):
            raise KernelFault(
                self._finding(WaveFault(BAD_JUMP, "it runs past the end of the kernel", int(numbers(state, rows)[0])))
            )
        self.at = end
        if not program.steers(end):
            state.position[rows] = end
            return
        self.counts[end] += waves
        self._steer(rows, end)

    def _steer(self, rows: Rows, number: int) -> None:
        program, state = self.program, self.state
        one, test = program.instructions[number], program.branches[number]
        if test is not None:
            taken = test(state, rows)
            if state.witness and "_exec" not in one.mnemonic:
                # Execz branches only skip code that no lane would run. A lane mask that matters shows in addresses and
                # stored values.
                state.witness(taken, rows, None)
            goal = self._goal(scalar.target(one), int(numbers(state, rows)[taken][0])) if taken.any() else 0
            state.position[rows] = np.where(taken, goal, number + 1)
            if self.order is not None and number in program.waits:
                self.rank[numbers(state, rows)[taken]] = self.rank.max() + 1  # it waits for another wave
            return
        if one.mnemonic == "s_barrier":
            self._remark_lanes(rows, number)
            state.position[rows] = number + 1
            self.waiting[rows] = True
            self._release(rows)
            return
        if one.mnemonic.startswith("s_endpgm"):
            self.ended[rows] = True
            self._last_end_s = time.thread_time()
            self._release(rows)
            return
        jump = scalar.jump(one)
        assert jump is not None
        addresses = jump(state, rows, program.base)
        if state.witness:
            state.witness(addresses, rows, None)
        goals = zip(addresses, numbers(state, rows))
        state.position[rows] = [self._goal(int(address) - program.base, int(row)) for address, row in goals]

    def _remark_lanes(self, rows: Rows, number: int) -> None:
        """Remark lanes that skip a barrier. Hardware counts waves, so a wave passes with some of its lanes; the
        source's behaviour is undefined."""
        if number in self.remarks:
            return
        skipped = self._begun[rows] & ~self.state.lanes[rows]
        if skipped.any():
            wave = int(np.argmax(skipped.any(axis=1)))
            count, most = int(skipped[wave].sum()), int(self._begun[rows][wave].sum())
            message = f"{count} of {most} lanes do not reach it; hardware counts waves, HIP leaves it undefined"
            fault = WaveFault(DIVERGENT, message, int(numbers(self.state, rows)[wave]))
            self.remarks[number] = self._finding(fault)

    def _goal(self, offset: int, row: int) -> int:
        if offset not in self.program.index:
            kernel, one = self.program.kernel, self.program.instructions[self.at]
            if offset in kernel.functions:  # only the kernel's own code is decoded
                called = f"{kernel.name} calls {kernel.functions[offset]} ({one.where()})"
                raise NotEmulated(f"calls of functions are not emulated: {called}")
            message = f"it jumps to byte {offset:,}, where no instruction begins"
            raise KernelFault(self._finding(WaveFault(BAD_JUMP, message, row)))
        return self.program.index[offset]

    def _release(self, rows: Rows) -> None:
        """Release the workgroups whose unfinished waves all wait at a barrier."""
        per_group = self.state.waves_per_group
        for group in np.unique(np.arange(self.ended.shape[0])[rows] // per_group):
            waves = slice(group * per_group, (group + 1) * per_group)
            ended, waiting = self.ended[waves], self.waiting[waves]
            if not waiting.any() or not (ended | waiting).all():
                continue
            places = np.unique(self.state.position[waves][waiting])
            if ended.any() or places.size > 1:
                self.at = int(places[0]) - 1
                if ended.any():
                    missing = f"wave {int(np.argmax(ended))} ended without it"
                else:
                    other = self.program.instructions[int(places[1]) - 1]
                    missing = f"other waves wait at another barrier ({other.where()})"
                row = int(group * per_group + np.argmax(waiting))
                self._note(WaveFault(BARRIER, f"{int(waiting.sum())} of {per_group} waves wait; {missing}", row))
            self.waiting[waves] = False
            self.state.shared.barrier(int(group))
            if self.state.encounter is not None:
                self.state.encounter.met(int(group))
            if self.order is not None:
                self.rank[waves] = self.order.permutation(per_group)

    def _shuffle(self) -> None:
        assert self.order is not None
        per_group = self.state.waves_per_group
        for group in range(self.rank.shape[0] // per_group):
            self.rank[group * per_group : (group + 1) * per_group] = self.order.permutation(per_group)

    def _one_a_group(self, ready: Array) -> Array:
        """From each workgroup, the ready wave whose turn it is."""
        per_group = self.state.waves_per_group
        rank = np.where(ready, self.rank, np.iinfo(np.int64).max).reshape(-1, per_group)
        chosen = np.zeros_like(rank, np.bool_)
        chosen[np.arange(rank.shape[0]), rank.argmin(axis=1)] = True
        return chosen.reshape(-1) & ready

    def _note(self, found: WaveFault) -> None:
        self.findings.setdefault((found.kind, self.at), self._finding(found))

    def _finding(self, found: WaveFault) -> KernelFinding:
        one = self.program.instructions[min(self.at, len(self.program.instructions) - 1)]
        wave = group = None
        if found.row is not None:
            wave = found.row % self.state.waves_per_group
            x, y, z = (int(axis) for axis in self.groups[found.row // self.state.waves_per_group])
            group = (x, y, z)
        file, line = one.line or (None, None)
        return KernelFinding(
            found.kind,
            found.message,
            self.program.kernel.name,
            one.spelt,
            one.offset,
            line,
            file,
            group,
            wave,
            found.lane,
            place=found.place,
        )


def _rows(chosen: Array) -> Rows:
    index = np.nonzero(chosen)[0]
    if index[-1] - index[0] + 1 == index.size:
        return slice(int(index[0]), int(index[-1]) + 1)
    return index
