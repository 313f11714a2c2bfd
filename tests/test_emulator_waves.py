"""What a wave does as a whole in the emulator: lane masks, words of 64 bits, immediates, loads, jumps and hints."""

import random

import numpy as np
import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")
pytest.importorskip("triton")

from bench.opcodes import of_target
from tests.assembled import launched
from tests.test_emulator_scalars import s

ALL, LONG = (1 << 32) - 1, (1 << 64) - 1
CHIPS = ["gfx942", "gfx950", "gfx1100"]
BEGIN = ["s_load_dwordx8 s[4:11], s[0:1], 0x0", "s_waitcnt lgkmcnt(0)", "v_mov_b32_e32 v1, 0"]
OF_RDNA = {"s_load_dwordx8": "s_load_b256", "store_dwordx4": "store_b128", "v_add_u32": "v_add_nc_u32"}


def has(name, chip):
    return bool(of_target(chip).get(name))


def left(bodies, chip, memory=None):
    """Run each body, which leaves its words in s[20:22] and SCC: uint32 [bodies, 4], SCC last."""
    lines = list(BEGIN)
    for body in bodies:
        lines += [*body, "s_cselect_b32 s23, 1, 0", *(f"v_mov_b32_e32 v{2 + n}, s{20 + n}" for n in range(4))]
        lines += ["global_store_dwordx4 v1, v[2:5], s[10:11]", "v_add_u32_e32 v1, 16, v1"]
    text = "\n".join([*lines, "s_endpgm\n"])
    if chip == "gfx1100":
        for old, new in OF_RDNA.items():
            text = text.replace(old, new)
    out = np.zeros((len(bodies), 4), np.uint32)
    given = memory if memory is not None else out.reshape(-1)
    outcome = launched(text, [given, given, given, out.reshape(-1)], block=1, target=chip)
    assert outcome.clean, outcome
    return out


def words(register, value, count=2):
    return [f"s_mov_b32 s{register + n}, 0x{value >> 32 * n & ALL:x}" for n in range(count)]


def scc_to(value):
    return [f"s_cmp_eq_u32 {1 - value}, 0"]


# Lane masks

MASKS = {
    "and": lambda a, e: a & e, "or": lambda a, e: a | e, "xor": lambda a, e: a ^ e, "nand": lambda a, e: ~(a & e),
    "nor": lambda a, e: ~(a | e), "xnor": lambda a, e: ~(a ^ e), "andn2": lambda a, e: a & ~e,
    "orn2": lambda a, e: a | ~e, "andn1": lambda a, e: ~a & e, "orn1": lambda a, e: ~a | e,
}  # fmt: skip
OF_RDNA_MASKS = {"andn2": "and_not1", "orn2": "or_not1", "andn1": "and_not0", "orn1": "or_not0"}


@pytest.mark.parametrize("chip", CHIPS)
def test_every_saveexec_keeps_the_mask_and_makes_another(chip):
    bits = 32 if chip == "gfx1100" else 64
    exec_, source, result = ("exec_lo", "s16", "s20") if bits == 32 else ("exec", "s[16:17]", "s[20:21]")
    pick, bodies, expected = random.Random(4), [], []
    for word, function in MASKS.items():
        name = f"s_{OF_RDNA_MASKS.get(word, word) if bits == 32 else word}_saveexec_b{bits}"
        assert has(name, chip)
        for a, mask in ((pick.getrandbits(bits), pick.getrandbits(bits)), (0, 0), ((1 << bits) - 1,) * 2):
            moves = [*words(16, a), *words(18, mask), *words(20, 0), f"s_mov_b{bits} {exec_}, s[18:19]"]
            moves = [line.replace("exec_lo, s[18:19]", "exec_lo, s18") for line in moves]
            bodies.append(
                [*moves, f"{name} {result}, {source}", "s_cselect_b32 s24, 1, 0", f"s_mov_b{bits} s[16:17], {exec_}",
                 f"s_mov_b{bits} {exec_}, 1", "s_mov_b32 s22, s16", "s_cmp_eq_u32 s24, 1"]
            )  # fmt: skip
            if bits == 32:
                bodies[-1] = [line.replace("s[16:17]", "s16") for line in bodies[-1]]
            else:
                bodies[-1][-2] = "s_xor_b32 s22, s16, s17"
            new = function(a, mask) & (1 << bits) - 1
            kept = new if bits == 32 else new & ALL ^ new >> 32
            expected.append((name, mask & ALL, mask >> 32, kept, int(new != 0)))
    wrong = [(one, row.tolist()) for one, row in zip(expected, left(bodies, chip)) if tuple(row) != one[1:]]
    assert not wrong, "\n".join(map(str, wrong))


# Words of 64 bits, and immediates


def first_zero(a, bits):
    return next((n for n in range(bits) if not a >> n & 1), -1)


def overflows(exact):
    return exact, int(not -(1 << 31) <= exact < 1 << 31)


WORDS = {
    "s_cselect_b64": ("UU>U", lambda a, b, c: (a if c else b, c)),
    "s_cselect_b32": ("uu>u", lambda a, b, c: (a if c else b, c)),
    "s_cmov_b64": ("U>U", lambda a, old, c: (a if c else old, c)),
    "s_cmov_b32": ("u>u", lambda a, old, c: (a if c else old, c)),
    "s_bfm_b64": ("uu>U", lambda a, b, c: ((1 << a % 64) - 1 << b % 64, c)),
    "s_bitset0_b64": ("u>U", lambda a, old, c: (old & ~(1 << a % 64), c)),
    "s_bitset1_b64": ("u>U", lambda a, old, c: (old | 1 << a % 64, c)),
    "s_bitreplicate_b64_b32": ("u>U", lambda a, old, c: (sum((a >> n & 1) * 3 << 2 * n for n in range(32)), c)),
    "s_ff0_i32_b32": ("u>u", lambda a, old, c: (first_zero(a, 32), c)),
    "s_ff0_i32_b64": ("U>u", lambda a, old, c: (first_zero(a, 64), c)),
    "s_brev_b64": ("U>U", lambda a, old, c: (int(f"{a:064b}"[::-1], 2), c)),
    "s_mov_b64": ("U>U", lambda a, old, c: (a, c)),
    "s_pack_hl_b32_b16": ("uu>u", lambda a, b, c: (a >> 16 | (b & 0xFFFF) << 16, c)),
    "s_bitcmp0_b64": ("Uu>", lambda a, b, c: int(not a >> b % 64 & 1)),
    "s_bitcmp1_b64": ("Uu>", lambda a, b, c: a >> b % 64 & 1),
}
"""A model is given two operands, or one and what the result held, and SCC; it gives the result and SCC."""


def register(number, letter):
    return f"s[{number}:{number + 1}]" if letter == "U" else f"s{number}"


@pytest.mark.parametrize("chip", CHIPS)
def test_every_scalar_word_is_what_python_says(chip):
    pick, bodies, expected = random.Random(5), [], []
    for name, (signature, model) in WORDS.items():
        if not has(name, chip):
            continue
        kinds, result = signature.split(">")
        for number in range(8):
            given = [pick.getrandbits(64 if kind == "U" else 32) for kind in kinds]
            if number < 4:
                given = [pick.choice([0, 1, 31, 32, 63, 64, ALL if kind == "u" else LONG]) for kind in kinds]
            scc, old = number % 2, 0x5A5A5A5AC3C3C3C3
            body = [line for place, value in zip((16, 18), given) for line in words(place, value)]
            operands = [register(place, kind) for place, kind in zip((16, 18), kinds)]
            target = [register(20, result)] if result else []
            bodies.append(
                [*body, *words(20, old), "s_mov_b32 s22, 0", *scc_to(scc), f"{name} {', '.join(target + operands)}"]
            )
            last = given[1] if len(given) > 1 else old if result == "U" else old & ALL
            value, after = model(given[0], last, scc) if result else (old, model(given[0], last, scc))
            kept = value & LONG if result != "u" else value & ALL | old >> 32 << 32
            expected.append((name, given, scc, kept & ALL, kept >> 32, 0, after))
    wrong = [(one, row.tolist()) for one, row in zip(expected, left(bodies, chip)) if tuple(row) != one[3:]]
    assert not wrong, "\n".join(map(str, wrong))


IMMEDIATE = {
    "s_movk_i32": lambda a, k, c: (k, c),
    "s_cmovk_i32": lambda a, k, c: (k if c else a, c),
    "s_addk_i32": lambda a, k, c: overflows(s(a) + k),
    "s_mulk_i32": lambda a, k, c: (s(a) * k, c),
}
for _word, _test in (("eq", "eq"), ("lg", "ne"), ("gt", "gt"), ("ge", "ge"), ("lt", "lt"), ("le", "le")):
    IMMEDIATE[f"s_cmpk_{_word}_i32"] = lambda a, k, c, t=_test: (a, int(getattr(int, f"__{t}__")(s(a), k)))
    IMMEDIATE[f"s_cmpk_{_word}_u32"] = lambda a, k, c, t=_test: (a, int(getattr(int, f"__{t}__")(a, k & 0xFFFF)))


@pytest.mark.parametrize("chip", CHIPS)
def test_every_scalar_instruction_with_an_immediate_is_what_python_says(chip):
    pick, bodies, expected = random.Random(6), [], []
    for name, model in IMMEDIATE.items():
        assert has(name, chip)
        for number in range(8):
            k = pick.choice([0, 1, -1, 32767, -32768, 5])
            a = (pick.getrandbits(32), k & ALL, k & 0xFFFF, 0x7FFFFFFF, 1 << 31, 0, ALL, k - 1 & ALL)[number]
            spelt = k & 0xFFFF if name.endswith("u32") else k
            bodies.append([*words(20, a, 1), *words(21, 0), *scc_to(number % 2), f"{name} s20, {spelt}"])
            value, after = model(a, k, number % 2)
            expected.append((name, a, k, value & ALL, 0, 0, after))
    wrong = [(one, row.tolist()) for one, row in zip(expected, left(bodies, chip)) if tuple(row) != one[3:]]
    assert not wrong, "\n".join(map(str, wrong))


# Loads

SIZES = {
    1: ("dword", "b32"),
    2: ("dwordx2", "b64"),
    4: ("dwordx4", "b128"),
    8: ("dwordx8", "b256"),
    16: ("dwordx16", "b512"),
}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kind", ["load", "buffer_load"])
def test_every_scalar_load_reads_as_many_words_as_its_name_says(kind, chip):
    memory = np.arange(64, dtype=np.uint32) * np.uint32(2654435761)
    buffer = [
        "s_mov_b64 s[12:13], s[4:5]",
        "s_and_b32 s13, s13, 0xffff",
        "s_movk_i32 s14, 0x100",
        "s_mov_b32 s15, 0x27000",
    ]
    bodies, expected = [], []
    for count, names in SIZES.items():
        name = f"s_{kind}_{names[chip == 'gfx1100']}"
        assert has(name, chip)
        target = f"s[24:{23 + count}]" if count > 1 else "s24"
        base = "s[4:5]" if kind == "load" else "s[12:15]"
        load = [*buffer, "s_movk_i32 s3, 8", f"{name} {target}, {base}, 0x10", "s_waitcnt lgkmcnt(0)"]
        sums = ["s_mov_b32 s20, 0", *(f"s_mul_i32 s20, s20, 3\ns_add_u32 s20, s20, s{24 + n}" for n in range(count))]
        bodies.append([*load, *sums, f"s_mov_b32 s21, s{23 + count}", "s_mov_b32 s22, 0", *scc_to(0)])
        total = 0
        for word in memory[4 : 4 + count].tolist():
            total = total * 3 + word & ALL
        expected.append((total, int(memory[3 + count]), 0, 0))
    np.testing.assert_array_equal(left(bodies, chip, memory), np.array(expected, np.uint32))


# Jumps, branches, and what changes nothing


@pytest.mark.parametrize("chip", CHIPS)
def test_every_jump_goes_where_it_says_and_tells_from_where(chip):
    there = ["s_mov_b32 s20, 1", "s_getpc_b64 s[24:25]", "s_add_u32 s24, s24, 16", "s_addc_u32 s25, s25, 0"]
    jumped = [*there, "s_setpc_b64 s[24:25]", "s_mov_b32 s20, 2", "s_mov_b32 s21, 3", "s_mov_b32 s22, 0", *scc_to(0)]
    swapped = [*there, "s_swappc_b64 s[26:27], s[24:25]", "s_mov_b32 s20, 2", "s_sub_u32 s21, s24, s26",
               "s_mov_b32 s22, 0", *scc_to(0)]  # fmt: skip
    called = ["s_mov_b32 s20, 1", "s_getpc_b64 s[24:25]", "s_call_b64 s[26:27], called_here", "s_mov_b32 s20, 2",
              "called_here:", "s_sub_u32 s21, s26, s24", "s_mov_b32 s22, 0", *scc_to(0)]  # fmt: skip
    found = left([jumped, swapped, called], chip)
    np.testing.assert_array_equal(found, [[1, 3, 0, 0], [1, 4, 0, 0], [1, 4, 0, 0]])


BRANCHES = {
    "s_branch": (["s_nop 0"], ["s_nop 0"]),
    "s_cbranch_scc0": (scc_to(0), scc_to(1)),
    "s_cbranch_scc1": (scc_to(1), scc_to(0)),
    "s_cbranch_vccz": (["s_mov_b64 vcc, 0"], ["s_mov_b64 vcc, 2"]),
    "s_cbranch_vccnz": (["s_mov_b64 vcc, 2"], ["s_mov_b64 vcc, 0"]),
    "s_cbranch_execz": (["s_mov_b64 exec, 0"], ["s_nop 0"]),
    "s_cbranch_execnz": (["s_nop 0"], ["s_mov_b64 exec, 0"]),
}


@pytest.mark.parametrize("chip", CHIPS)
def test_every_branch_is_taken_when_its_name_says(chip):
    bodies, expected = [], []
    for name, sides in BRANCHES.items():
        for taken, side in zip((1, 0), sides):
            label = f"after_{name}_{taken}"
            body = ["s_mov_b32 s20, 1", "s_mov_b32 s21, 0", "s_mov_b32 s22, 0", *side, f"{name} {label}",
                    "s_mov_b32 s20, 0", f"{label}:", "s_mov_b64 exec, 1", *scc_to(0)]  # fmt: skip
            if chip == "gfx1100":
                body = [
                    line.replace("_b64 exec,", "_b32 exec_lo,").replace("_b64 vcc,", "_b32 vcc_lo,") for line in body
                ]
            bodies.append(body)
            expected.append((int(taken or name == "s_branch"), 0, 0, 0))
    np.testing.assert_array_equal(left(bodies, chip), expected)


HINTS = {
    "s_nop": "3", "s_waitcnt": "0", "s_sleep": "1", "s_setprio": "1", "s_sethalt": "0", "s_icache_inv": "",
    "s_dcache_inv": "", "s_dcache_wb": "", "s_ttracedata": "", "s_incperflevel": "1", "s_decperflevel": "1",
    "s_delay_alu": "instid0(VALU_DEP_1)", "s_clause": "0x1\ns_nop 0\ns_nop 0", "s_wait_idle": "",
    "s_wait_event": "0x0", "s_set_inst_prefetch_distance": "0x1", "s_waitcnt_depctr": "0xfffe",
    "s_waitcnt_vscnt": "null, 0x0", "s_waitcnt_vmcnt": "null, 0x0", "s_waitcnt_expcnt": "null, 0x0",
    "s_waitcnt_lgkmcnt": "null, 0x0", "s_sendmsg": "sendmsg(MSG_INTERRUPT)", "s_gl1_inv": "", "buffer_inv": "sc0 sc1",
    "buffer_wbl2": "sc0 sc1", "buffer_gl0_inv": "", "buffer_gl1_inv": "", "v_nop": "", "v_clrexcp": "", "s_barrier": "",
    "v_pipeflush": "", "ds_nop": "", "s_wakeup": "",
}  # fmt: skip


@pytest.mark.parametrize("chip", CHIPS)
def test_a_hint_changes_neither_registers_nor_scc(chip):
    names = [name for name in HINTS if has(name, chip)]
    bodies = [
        [*words(20, 0x0123456789ABCDEF), "s_mov_b32 s22, 7", *scc_to(number % 2), f"{name} {HINTS[name]}"]
        for number, name in enumerate(names)
    ]
    expected = [(0x89ABCDEF, 0x01234567, 7, number % 2) for number in range(len(names))]
    np.testing.assert_array_equal(left(bodies, chip), expected)
