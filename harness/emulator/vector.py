"""Vector arithmetic: turns a decoded VOP instruction into a function that steps the waves of `rows`.

    vector(instruction, kernel) ─► step(state, rows)

It reads all inputs before it writes. Encodings: VOP1, VOP2, VOPC, VOP3, VOP3P, with literals, DPP and SDWA.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator import clamps, lanes, operands, semantics
from harness.emulator.arithmetic import U32, U64, Array
from harness.emulator.code_object import KernelCode
from harness.emulator.decoding import Instruction
from harness.emulator.findings import NotEmulated
from harness.emulator.moves import MOVES
from harness.emulator.operands import Read
from harness.emulator.results import check_registers, refuse_overflow, write64, write_half, write_lanes
from harness.emulator.state import EXEC, VCC, Rows, State

Step = Callable[[State, Rows], None]

KEEPS_HIGH_HALF = re.compile(r"^v_(mad|fma|div_fixup)_[fui]16$")
"""On CDNA the only 16-bit results that keep the register's upper half. All others clear it, including the `legacy` form
of these (LLVM, GCNSubtarget::zeroesHigh16BitsOfDest). On RDNA3 all keep it."""

OPSEL_IS_ITS_OWN = re.compile(r"^v_(cvt_(pk|sr|f32|scalef32)_.*(fp8|bf8|fp4)|cvt_f32_[fb][pf]8|cvt_pk_f32_[fb][pf]8)")
"""Instructions whose pseudocode reads OPSEL itself."""


def vector(instruction: Instruction, kernel: KernelCode) -> Step:
    """Make the step of a vector instruction. Raises NotEmulated with its name."""
    if instruction.mnemonic in ("v_nop", "v_clrexcp"):
        return lambda state, rows: None
    if instruction.mnemonic in MOVES:
        return MOVES[instruction.mnemonic](instruction, kernel)
    if instruction.mnemonic.startswith("v_mfma") or instruction.mnemonic.startswith(("v_wmma", "v_smfmac")):
        from harness.emulator.matrix import matrix

        return matrix(instruction, kernel)
    return _Builder(instruction, kernel).step()


def operand_table(op: Any) -> dict[str, tuple[str, int]]:
    """Field ─► format and bits, by tinygrad's table."""
    from tinygrad.renderer.amd.dsl import OPERANDS

    return {name: (form.name, int(bits)) for name, (form, bits, _) in OPERANDS.get(op, {}).items()}


class _Builder:
    def __init__(self, instruction: Instruction, kernel: KernelCode) -> None:
        self.instruction, self.kernel = instruction, kernel
        self.fields, self.encoding = instruction.fields, instruction.encoding.removesuffix("_LIT")
        self.table = operand_table(instruction.op)
        self.compares = instruction.mnemonic.startswith("v_cmp")
        if self.fields.get("omod"):
            raise NotEmulated(f"{instruction.mnemonic} with an output modifier is not emulated")
        self.result = self.table.get("vdst", ("FMT_NUM_B32", 32))
        self.d0_bits = 64 if self.result[1] > 32 and not self.compares else 32
        self.semantics = semantics.of(instruction, kernel.target, self.d0_bits)
        saturating = clamps.of_integer(instruction.mnemonic) if self.fields.get("clmp") else None
        if saturating is not None:
            self.semantics = dataclasses.replace(self.semantics, apply=semantics.by_name(saturating))

    def step(self) -> Step:
        if self.d0_bits == 64 and self.result[1] > 64:
            raise NotEmulated(f"{self.instruction.mnemonic} is not emulated")
        names = ("src0", "src1", "src2")
        reads: list[Read | None] = [self.source(number, name) for number, name in enumerate(names)]
        apply, wants, gives = self.semantics.apply, self.semantics.reads, self.semantics.writes
        write, compare = self.write(), self.compares
        carry_in, carry_out = self.carry_in(), self.carry_out()
        if compare and not gives <= {"VCC"}:
            raise NotEmulated(f"{self.instruction.mnemonic} is not emulated")
        opsel = self.fields.get("opsel", 0)
        simm = U32(self.fields.get("literal", self.fields.get("simm16", 0)))
        old = self.destination() if "D0" in wants else None
        exec_too = self.instruction.mnemonic.startswith("v_cmpx")
        writes_vcc = "VCC" in gives
        valid = self.dpp_valid()
        clamp = self.clamp()
        half_float, name = self.result[0].endswith("F16") and not compare, self.instruction.mnemonic

        def step(state: State, rows: Rows) -> None:
            s0, s1, s2 = (read(state, rows) if read else None for read in reads)
            d0 = old(state, rows) if old else None
            vcc = None
            if "VCC" in wants:
                vcc = _lanes_of(state, carry_in, rows)
            found = apply(s0, s1, s2, d0, state.clamped[rows][:, None], vcc, None, simm, state.lane_numbers, opsel)
            if half_float and state.clamped[rows].any():
                refuse_overflow(found["D0"], name)
            if writes_vcc:
                register = carry_out
                on = found["VCC"] & state.lanes[rows]
                if compare:
                    state.set_mask(register, rows, on)
                    if exec_too and register != EXEC:
                        state.set_mask(EXEC, rows, on)
                elif register != 124:
                    state.set_mask(register, rows, on)
            if not compare:
                result = found["D0"]
                write(state, rows, clamp(result) if clamp else result, valid)

        return step

    # sources

    def source(self, number: int, name: str) -> Read | None:
        fields = self.fields
        given = next((one for one in (name, f"v{name}") if one in fields), None)
        dpp, sdwa = "DPP" in self.encoding, "SDWA" in self.encoding
        if name == "src0" and (dpp or sdwa):
            given = "vsrc0"
        if given is None or (number == 2 and "S2" not in self.semantics.reads):
            return None
        form, bits = self.table.get(name, self.table.get(f"v{name}", ("FMT_NUM_B32", 32)))
        code = fields[given]
        if sdwa and ((number == 0 and fields.get("s0")) or (number == 1 and fields.get("s1"))):
            code -= 256
        if code == 254:
            raise NotEmulated(f"{self.instruction.mnemonic} with an operand from LDS is not emulated")
        upper = self.names_a_half(form, bits) and code >= 384
        code -= 128 * upper
        accum = None
        if self.instruction.mnemonic in ("v_accvgpr_read_b32", "v_accvgpr_mov_b32") and code >= 256:
            accum = min(self.kernel.accum_offset, self.kernel.vgprs)
        read = operands.source(code, fields.get("literal", 0), form, 64 if bits > 32 else 32, accum)
        if code >= 256:
            check_registers(self.kernel, code - 256 + (accum or 0), 2 if bits > 32 else 1)
        read = operands.half(read, upper)
        if self.encoding.startswith("VOP3P"):
            return self.packed(read, number, form, bits, code)
        if sdwa:
            read = operands.subdword(read, fields[f"src{number}_sel"], fields[f"src{number}_sext"])
            return operands.modified(
                read, fields[f"src{number}_neg"], fields[f"src{number}_abs"], _float_bits(bits, form)
            )
        if dpp and number == 0:
            read = self.dpp(read)
        if dpp:
            return operands.modified(
                read, fields.get(f"src{number}_neg", 0), fields.get(f"src{number}_abs", 0), _float_bits(bits, form)
            )
        if not self.encoding.startswith("VOP3"):
            return read
        if _is_half(form, bits) and not OPSEL_IS_ITS_OWN.match(self.instruction.mnemonic):
            read = operands.half(read, fields.get("opsel", 0) >> number & 1)
        negated, absolute = fields.get("neg", 0) >> number & 1, fields.get("abs", 0) >> number & 1
        if (negated or absolute) and not re.search(r"F(16|32|64)$", form) and "bitop3" not in self.instruction.mnemonic:
            if self.instruction.mnemonic.startswith("v_cndmask"):
                return operands.modified(read, negated, absolute, 32)
            raise NotEmulated(f"{self.instruction.mnemonic} with a sign modifier on integers is not emulated")
        return operands.modified(read, negated, absolute, _float_bits(bits, form))

    def names_a_half(self, form: str, bits: int) -> bool:
        """True if v128 and above, as a 16-bit operand, mean the upper halves of v0 and above."""
        return self.kernel.rdna and _is_half(form, bits) and self.encoding.startswith(("VOP1", "VOP2", "VOPC"))

    def packed(self, read: Read, number: int, form: str, bits: int, code: int) -> Read:
        fields, mnemonic = self.fields, self.instruction.mnemonic
        if mnemonic.startswith(("v_accvgpr", "v_pk_mov")):
            return read
        if not mnemonic.startswith("v_pk_") and not (mnemonic.startswith("v_dot2") and number < 2):
            if fields.get("neg", 0) or fields.get("neg_hi", 0):
                raise NotEmulated(f"{mnemonic} with a sign modifier is not emulated")
            return read
        low = fields.get("opsel", 0) >> number & 1
        high = fields.get("opsel_hi2", 0) if number == 2 else fields.get("opsel_hi", 0) >> number & 1
        neg, neg_hi = fields.get("neg", 0) >> number & 1, fields.get("neg_hi", 0) >> number & 1
        return operands.packed(read, low, high, neg, neg_hi, 64 if bits > 32 else 32)

    def dpp(self, read: Read) -> Read:
        lanes.check_mask_bits(self.instruction)
        wave_size = self.kernel.wave_size
        source, valid = lanes.dpp_lanes(self.fields["dpp"], wave_size, self.kernel.rdna)
        bound = self.fields.get("bc", 0)

        def moved(state: State, rows: Rows) -> Array:
            value = read(state, rows)[:, source]
            if bound:
                usable = valid & (state.lanes[rows][:, source] | bool(self.fields.get("fi", 0)))
                value = np.where(usable, value, U32(0))
            return value

        return moved

    def dpp_valid(self) -> Callable[[State, Rows], Array] | None:
        """For a DPP instruction: the lanes that write."""
        if "DPP" not in self.encoding:
            return None
        fields, wave_size = self.fields, self.kernel.wave_size
        source, valid = lanes.dpp_lanes(fields["dpp"], wave_size, self.kernel.rdna)
        masks = lanes.enabled_by_masks(fields["row_mask"], fields["bank_mask"], wave_size)
        if fields.get("bc", 0):
            return lambda state, rows: masks
        inactive_too = bool(fields.get("fi", 0))
        return lambda state, rows: masks & valid & (state.lanes[rows][:, source] | inactive_too)

    # results

    def destination(self) -> Read:
        register = self.fields["vdst"] - 256
        if self.instruction.mnemonic.startswith("v_accvgpr_write"):
            register += self.kernel.accum_offset
        register, high = self.half_written(register)
        return operands.half(operands.source(register + 256, 0, "FMT_NUM_B32", 64 if self.d0_bits == 64 else 32), high)

    def half_written(self, register: int) -> tuple[int, int]:
        """The register, and 1 if the result goes to its upper half."""
        if self.names_a_half(*self.result) and register >= 128:
            return register - 128, 1
        own = not _is_half(*self.result) or OPSEL_IS_ITS_OWN.match(self.instruction.mnemonic) is not None
        if own or not self.encoding.startswith("VOP3") or self.encoding.startswith("VOP3P"):
            return register, 0
        return register, self.fields.get("opsel", 0) >> 3 & 1

    def clamp(self) -> Callable[[Array], Array] | None:
        if not self.fields.get("clmp"):
            return None
        if clamps.of_integer(self.instruction.mnemonic):
            return None  # handled by its semantics
        clamp = clamps.of_float(*self.result)
        if clamp is None:
            raise NotEmulated(f"{self.instruction.mnemonic} with a clamp is not emulated")
        return clamp

    def carry_in(self) -> int:
        if (
            self.encoding in ("VOP3", "VOP3SD", "VOP3_SDST")
            and "src2" in self.fields
            and "S2" not in self.semantics.reads
        ):
            return self.fields["src2"] if "div_fmas" not in self.instruction.mnemonic else VCC
        return VCC

    def carry_out(self) -> int:
        if self.encoding in ("VOP3SD", "VOPC_SDWA_SDST"):
            if self.encoding == "VOPC_SDWA_SDST" and not self.fields.get("sd"):
                return VCC
            return self.fields["sdst"]
        if self.encoding == "VOP3_SDST" or (self.compares and self.encoding.startswith("VOP3")):
            return self.fields["vdst"]
        if self.instruction.mnemonic.startswith("v_cmpx") and self.kernel.rdna:
            return EXEC
        return VCC

    def write(self) -> Callable[[State, Rows, Array, Any], None]:
        if self.compares:
            return lambda state, rows, value, valid: None
        register = self.fields["vdst"] - 256
        mnemonic, (form, bits) = self.instruction.mnemonic, self.result
        if mnemonic.startswith("v_accvgpr_write") or mnemonic == "v_accvgpr_mov_b32":
            register += min(self.kernel.accum_offset, self.kernel.vgprs)
        rdna = self.kernel.rdna
        register, high = self.half_written(register)
        check_registers(self.kernel, register, 2 if self.d0_bits == 64 else 1)
        if "SDWA" in self.encoding and self.fields["dst_sel"] != 6:
            return self.write_subdword(register)
        if _is_half(form, bits) and not OPSEL_IS_ITS_OWN.match(mnemonic):
            if high or rdna or KEEPS_HIGH_HALF.match(mnemonic):
                return lambda state, rows, value, valid: write_half(state, rows, register, value, high, valid)
        if self.d0_bits == 64:
            return lambda state, rows, value, valid: write64(state, rows, register, value, valid)
        return lambda state, rows, value, valid: write_lanes(state, rows, register, value, valid)

    def write_subdword(self, register: int) -> Callable[[State, Rows, Array, Any], None]:
        select, unused = self.fields["dst_sel"], self.fields["dst_unused"]
        if self.d0_bits == 64:
            raise NotEmulated(f"{self.instruction.mnemonic} with a part of a register as its result is not emulated")
        width, place = (8, select) if select < 4 else (16, select - 4)
        mask, shift = U32((1 << width) - 1), U32(width * place)
        if unused == 1:
            raise NotEmulated(f"{self.instruction.mnemonic} with SDWA's sign extension of the result is not emulated")

        def write(state: State, rows: Rows, value: Array, valid: Any) -> None:
            part = (np.asarray(value) & mask) << shift
            if unused == 2:
                part = part | (state.vector[register, rows] & ~(mask << shift))
            write_lanes(state, rows, register, part, valid)

        return write


def _is_half(form: str, bits: int) -> bool:
    return bits == 16 and not form.startswith("FMT_NUM_PK2")


def _float_bits(bits: int, form: str) -> int:
    return 64 if bits == 64 else 16 if form.endswith("F16") else 32


def _lanes_of(state: State, register: int, rows: Rows) -> Array:
    from harness.emulator.state import lanes_of

    if register >= 128:
        value = operands.constant(register, 0, "FMT_NUM_B64", 64) or 0
        count = state.position[rows].shape[0]
        return lanes_of(np.full(count, value & ((1 << 64) - 1), U64), state.wave_size)
    return lanes_of(state.mask(register, rows), state.wave_size)
