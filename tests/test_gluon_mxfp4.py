"""What gluon_mxfp4's PTX makes of codes, without a GPU: its texts are read out of the file and carried out here."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import torch

from reference.quantization import dequantize_mxfp4

CHECKOUT = Path(__file__).resolve().parents[1]
SOURCE = (CHECKOUT / "submissions/mla/gluon_mxfp4.py").read_text()
TREE = ast.parse(SOURCE)
SPEC = importlib.util.spec_from_file_location("gluon_mxfp4", CHECKOUT / "submissions/mla/gluon_mxfp4.py")
SUBMISSION = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(SUBMISSION)
SHIFT = int(re.search(r"^SHIFT = gl.constexpr\((\d+)\)", SOURCE, re.MULTILINE)[1])
PLUS = int(re.search(r"plus_smem.store\(gl.full\(\[1\], (0x\w+)", SOURCE)[1], 16)


def assembly(function):
    """A function's call of `inline_asm_elementwise`."""
    [definition] = [node for node in ast.walk(TREE) if isinstance(node, ast.FunctionDef) and node.name == function]
    [call] = [
        node
        for node in ast.walk(definition)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "gl.inline_asm_elementwise"
    ]
    return call


def ptx(function):
    return ast.literal_eval(assembly(function).args[0])


def carried_out(text, operands):
    """The registers after the instructions of `text`, whose operands $n are given by their numbers."""
    registers = {f"${number}": value for number, value in operands.items()}

    def value(word):
        return registers[word] if word in registers else int(word, 0)

    for line in re.findall(r"^\s*([a-z][\w.]* .*);", text, re.MULTILINE):
        name, _, rest = line.partition(" ")
        target, *words = (word.strip() for word in rest.split(","))
        registers[target] = INSTRUCTIONS[name](*map(value, words)) & 0xFFFFFFFF
    return registers


def permuted(a, b, selector):
    """PTX ISA, prmt: each nibble takes a byte of b:a, or with its highest bit set that byte's sign eight times."""
    out = 0
    for place in range(4):
        nibble = selector >> 4 * place & 0xF
        byte = (b << 32 | a) >> 8 * (nibble & 7) & 0xFF
        out |= (byte if nibble < 8 else 0xFF * (byte >> 7)) << 8 * place
    return out


INSTRUCTIONS = {
    "and.b32": lambda a, b: a & b,
    "shr.u32": lambda a, b: a >> b,
    "max.u32": max,
    "min.u32": min,
    "mad.lo.u32": lambda a, b, c: a * b + c,
    "prmt.b32": permuted,
}


def decoded(word, e8m0):
    """The e5m2 bytes of eight codes."""
    tables = carried_out(ptx("tables"), {2: e8m0})
    found = carried_out(ptx("decoded"), {2: word, 3: tables["$0"], 7: tables["$1"], 11: PLUS})
    return found["$0"].to_bytes(4, "little") + found["$1"].to_bytes(4, "little")


def test_the_operands_are_those_that_are_given_here():
    """$2 are the codes. Four bytes of them come with four registers of either table and of `plus`: one is read."""
    call = assembly("decoded")
    operands = [ast.unparse(operand) for operand in call.args[2].elts]
    assert operands == ["codes", "for_each_byte(low, layout, spread)", "for_each_byte(high, layout, spread)", "plus"]
    assert {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}["pack"] == "4"
    assert ast.literal_eval(call.args[1]).split(",")[:2] == ["=&r", "=&r"]
    assert len(ast.literal_eval(call.args[1]).split(",")) == 2 + 1 + 3 * 4


@pytest.mark.parametrize("word", [0x76543210, 0xFEDCBA98, 0x8F19A2C7])
def test_each_code_becomes_minus_its_value_for_every_scale_in_the_range_that_is_said_to_be_exact(word):
    packed = torch.frombuffer(bytearray(word.to_bytes(4, "little") * 4), dtype=torch.uint8)[None]
    for e8m0 in range(110, 137):
        values = dequantize_mxfp4(packed, torch.tensor([[e8m0]], dtype=torch.uint8))[0, :8]
        got = torch.frombuffer(bytearray(decoded(word, e8m0)), dtype=torch.float8_e5m2).float()
        assert torch.equal(got, -values * 2.0**SHIFT), e8m0


def test_scales_outside_the_range_are_taken_as_2_to_minus_18_where_a_half_is_lost_and_as_2_to_9():
    lowest = torch.frombuffer(bytearray(decoded(0x76543210, 109)), dtype=torch.float8_e5m2).double()
    assert lowest.tolist() == [-(2.0 ** (SHIFT - 18)) * value for value in (0, 0, 1, 1.5, 2, 3, 4, 6)]
    for e8m0, end in [(0, 109), (108, 109), (137, 136), (254, 136), (255, 136)]:
        assert decoded(0x8F19A2C7, e8m0) == decoded(0x8F19A2C7, end)


def test_bytes_of_two_tokens_become_pairs_of_one_dim_the_even_dims_before_the_odd():
    bytes_of_token, bytes_of_other = b"\x10\x11\x12\x13", b"\x20\x21\x22\x23"  # four neighbouring dims
    operands = {2: int.from_bytes(bytes_of_token, "little"), 3: int.from_bytes(bytes_of_other, "little")}
    words = carried_out(ptx("store_values"), operands)
    assert words["$0"].to_bytes(4, "little") == b"\x10\x20\x12\x22"
    assert words["$1"].to_bytes(4, "little") == b"\x11\x21\x13\x23"


def test_the_kernel_for_short_caches_makes_the_same_tables_and_the_same_signs():
    short = SUBMISSION.SHORT
    [(least, most)] = re.findall(r"min\(max\(e8m0, (\d+)u\), (\d+)u\)", short)
    words = re.findall(r"(low|high) = e \* (0x\w+)u \+ (0x\w+)u;", short)
    other = re.findall(r"mad.lo.u32 \$\d, t, (0x\w+), (0x\w+);", ptx("tables"))
    assert re.findall(r"(max|min).u32 t, \S+, (\d+);", ptx("tables")) == [("max", least), ("min", most)]
    assert [name for name, *_ in words] == ["low", "high"]
    assert [tuple(constants) for _, *constants in words] == other
    assert int(re.search(r"#define PLUS (0x\w+)u", short)[1], 16) == PLUS
    assert int(re.search(r"#define SHIFT (\d+)", short)[1]) == SHIFT


@pytest.mark.parametrize(
    ("batch", "tiles", "chosen"),
    [(4, 128, (2, 32)), (32, 16, (2, 4)), (64, 16, (2, 2)), (64, 128, (3, 2)), (256, 128, (3, 1)), (256, 16, (1, 1))],
)
def test_for_ranked_cases_the_decoders_and_splits_are_chosen_that_took_the_least_time(batch, tiles, chosen):
    assert SUBMISSION.choose(batch, tiles, multiprocessors=132) == chosen


@pytest.mark.parametrize(("batch", "tiles", "rounds"), [(48, 32, 1), (150, 63, 4), (500, 11, 2)])
def test_small_programs_are_chosen_where_large_ones_would_leave_multiprocessors_without_work(batch, tiles, rounds):
    decoders, splits = SUBMISSION.choose(batch, tiles, multiprocessors=132)
    assert decoders == 1 and -(-batch * splits // (132 * SUBMISSION.FORMS[1][0])) == rounds


def test_no_program_is_without_tiles():
    for batch in range(1, 300):
        for tiles in (1, 2, 3, 17, 63, 64, 65, 130):
            _, splits = SUBMISSION.choose(batch, tiles, multiprocessors=132)
            assert 1 <= splits <= SUBMISSION.MAX_SPLITS
            assert (splits - 1) * -(-tiles // splits) < tiles
