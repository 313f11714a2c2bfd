"""What a chip's instructions are, is what LLVM's assembler takes for it."""

import numpy as np
import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")
pytest.importorskip("triton")

from bench.opcodes import mnemonics_of, of_target
from harness.chips.targets import EMULATED_TARGETS, TARGETS
from harness.emulator import of_array, run
from harness.emulator.chips import CHIPS, lacks
from tests import test_emulator_conversions as conversions
from tests import test_emulator_floats as floats
from tests import test_emulator_integers as integers
from tests import test_emulator_lanes as lanes
from tests.assembled import code_object, refused

NOT_HERE = ("instruction not supported on this GPU", "invalid instruction")


def asked(mnemonic):
    """The mnemonic with an operand that no instruction takes: what LLVM says of it tells whether the chip has it."""
    return ("v_dual_mov_b32 v0, v1 :: " if mnemonic.startswith("v_dual_") else "") + f"{mnemonic} xyz"


def test_the_chips_that_are_emulated_are_those_that_are_offered_and_of_one_size():
    assert tuple(CHIPS) == EMULATED_TARGETS
    assert {name: chip.lds_bytes for name, chip in CHIPS.items()} == {name: TARGETS[name].lds_bytes for name in CHIPS}


@pytest.mark.parametrize("chip", CHIPS)
def test_a_chip_lacks_what_its_assembler_does_not_know(chip):
    known = {asked(name): name for name in mnemonics_of(CHIPS[chip].tables)}
    said = refused(list(known), chip)
    assert said.keys() <= known.keys() and len(said) > 1000  # branches take it for a label
    absent = {known[line] for line, error in said.items() if error.startswith(NOT_HERE)}
    assert absent == {name for name in known.values() if lacks(chip, name)}


@pytest.mark.parametrize(("chip", "count"), [("gfx942", 935), ("gfx950", 977), ("gfx1100", 906)])
def test_no_opcode_that_was_emulated_is_lost(chip, count):
    """The tests of single instructions leave out what is not emulated."""
    assert sum(of_target(chip).values()) >= count


def test_every_row_of_a_table_is_run_on_some_chip():
    tables = [*integers.TABLES.values(), *floats.TABLES.values(), conversions.PLAIN, conversions.DOTS, lanes.MIXED]
    emulated = {name for chip in CHIPS for name, is_emulated in of_target(chip).items() if is_emulated}
    assert [row.name for table in tables for row in table if row.name not in emulated] == []


def test_an_instruction_of_a_later_chip_is_none():
    image, _ = code_object("    s_nop 0\n    s_endpgm\n", target="gfx1100")
    add = (0xA0000100).to_bytes(4, "little")  # s_add_f32 s0, s0, s1 of RDNA 3.5
    nop = (0xBF800000).to_bytes(4, "little")
    assert image.count(nop) == 1
    out = np.zeros(64, np.uint32)
    outcome = run(image.replace(nop, add), "probe", (1, 1, 1), (32, 1, 1), [bytes(8)] * 4, [of_array(out, "out")])
    assert [one.kind for one in outcome.findings] == ["illegal instruction"]
    assert "gfx1100 has no such instruction" in outcome.findings[0].message
    assert not any(name.startswith("s_add_f") for name in of_target("gfx1100"))
