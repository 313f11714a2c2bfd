"""Every comparison, atomic, load and store that is emulated, against numpy: one instruction each, by its name alone."""

import functools
import re

import numpy as np
import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")
pytest.importorskip("triton")

from bench.opcodes import opcodes
from tests.assembled import launched
from tests.test_emulator_instructions import patterns

CHIPS = ["gfx942", "gfx1100"]
BEGIN = """
    s_load_dwordx8 s[4:11], s[0:1], 0x0
    s_waitcnt lgkmcnt(0)
    v_lshlrev_b32_e32 v62, 4, v0
    v_lshlrev_b32_e32 v59, 3, v0
    s_mov_b64 s[12:13], s[8:9]
    s_and_b32 s13, s13, 0xffff
    s_mov_b32 s14, 0x1000
    s_mov_b32 s15, 0x00027000
    v_mov_b32_e32 v60, s8
    v_mov_b32_e32 v61, s9
    v_add_co_u32_e32 v60, vcc, v60, v62
    v_addc_co_u32_e32 v61, vcc, 0, v61, vcc
    global_load_dwordx4 v[2:5], v62, s[4:5]
    global_load_dwordx4 v[8:11], v62, s[6:7]
    s_waitcnt vmcnt(0)
"""
"""v[2:5] and v[8:11] are a's and b's 16 bytes of a lane; v62 is where c's lie, v[60:61] the same as an address, v59 its
place in LDS, s[12:15] a buffer of c."""

OF_RDNA = {
    "s_load_dwordx8": "s_load_b256", "global_load_dwordx4": "global_load_b128", "ds_write_b64": "ds_store_b64",
    "global_store_dwordx4": "global_store_b128", "s_mov_b64 exec": "s_mov_b32 exec_lo", 
    "v_add_co_u32_e32 v60, vcc, v60, v62": "v_add_co_u32 v60, vcc_lo, v60, v62", "0x00027000": "0x31027000",
    "v_addc_co_u32_e32 v61, vcc, 0, v61, vcc": "v_add_co_ci_u32_e32 v61, vcc_lo, 0, v61, vcc_lo",
    "scratch_store_dwordx4": "scratch_store_b128", "scratch_load_dwordx4": "scratch_load_b128",
    "ds_write_b128": "ds_store_b128", "ds_read_b128": "ds_load_b128", "vcc\n": "vcc_lo\n", "e64 vcc,": "e64 vcc_lo,",
}  # fmt: skip


def ran(body: str, arrays: list[np.ndarray], chip: str) -> None:
    """One wave; what it changes is in the arrays afterwards."""
    text = BEGIN + body + "    s_endpgm\n"
    if chip == "gfx1100":
        for old, new in OF_RDNA.items():
            text = text.replace(old, new)
    outcome = launched(text, arrays, block=len(arrays[0]) // 4, lds=16 << 10, scratch=64, target=chip)
    assert outcome.clean, (body, outcome)


def lanes_of(chip: str) -> int:
    return 32 if chip == "gfx1100" else 64


@functools.cache
def emulated(chip: str, pattern: str) -> list[str]:
    table = "rdna3" if chip == "gfx1100" else "cdna"
    return sorted(name for name, has in opcodes(table).items() if has and re.match(pattern, name))


# Comparisons

TESTS = {
    "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "ne": np.not_equal,
    "lg": lambda a, b: (a < b) | (a > b), "o": lambda a, b: (a == a) & (b == b), "u": lambda a, b: (a != a) | (b != b),
    "f": lambda a, b: np.zeros(a.shape, bool), "t": lambda a, b: np.ones(a.shape, bool),
}  # fmt: skip
NEGATED = {"nlt": "lt", "neq": "eq", "nle": "le", "ngt": "gt", "nge": "ge", "nlg": "lg"}


def compared(word: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if word in NEGATED:
        return ~TESTS[NEGATED[word]](a, b)
    return TESTS["t" if word == "tru" else word](a, b)


def class_of(words: np.ndarray, bits: int, mask: np.ndarray) -> np.ndarray:
    """v_cmp_class: signalling and quiet NaN, -inf, -normal, -denormal, -0, +0, +denormal, +normal, +inf."""
    fraction = {16: 10, 32: 23, 64: 52}[bits]
    found = []
    for word, wanted in zip(words.tolist(), mask.tolist()):
        sign, low = word >> bits - 1, word & (1 << fraction) - 1
        exponent = word >> fraction & (1 << bits - 1 - fraction) - 1
        if exponent == (1 << bits - 1 - fraction) - 1 and low:
            place = low >> fraction - 1
        else:
            size = 3 if exponent == (1 << bits - 1 - fraction) - 1 else 2 if exponent else 1 if low else 0
            place = 5 - size if sign else 6 + size
        found.append(bool(wanted >> place & 1))
    return np.array(found)


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kind", ["f16", "f32", "f64", "i16", "i32", "i64", "u16", "u32", "u64"])
def test_every_comparison_is_numpys(kind, chip):
    names = emulated(chip, rf"v_cmpx?_\w+_{kind}$")
    assert len(names) >= 12
    bits, lanes = int(kind[1:]), lanes_of(chip)
    a = patterns(31)[-4 * lanes :].copy()  # among them every special value
    b = patterns(32)[-4 * lanes :].copy()
    kept = np.arange(4 * lanes) // 4 % 3  # of a third of the lanes all is equal, of another the upper half
    same = (kept == 0) | ((kept == 1) & (np.arange(4 * lanes) % 2 == 1))
    b = np.where(same, a, b)
    if bits == 16:
        a, b = (one >> 16 for one in (a, b))  # a special value's upper half is one of float16's, or nearly
    memory, out = np.zeros(4 * lanes, np.uint32), np.zeros(4 * lanes, np.uint32)
    dtype = np.dtype(f"{kind[0]}{bits // 8}")
    first, second = (
        np.ascontiguousarray(one.reshape(lanes, 4)[:, : max(bits // 32, 1)]).view(dtype)[:, 0] for one in (a, b)
    )
    for name in names:
        wide = "v[2:3]", "v[8:9]"
        left, right = wide if bits == 64 else ("v2", "v8")
        if "class" in name:
            right = "v8"
        if name.startswith("v_cmpx"):
            test = f"v_mov_b32_e32 v12, 0\n{name}_e32 {left}, {right}\nv_mov_b32_e32 v12, 1\ns_mov_b64 exec, -1\n"
            if chip != "gfx1100":
                test = test.replace(f"{name}_e32 ", f"{name}_e32 vcc, ")
        else:
            test = f"{name}_e64 vcc, {left}, {right}\nv_cndmask_b32_e64 v12, 0, 1, vcc\n"
        ran(test + "global_store_dwordx4 v62, v[12:15], s[10:11]\n", [a, b, memory, out], chip)
        word = re.match(r"v_cmpx?_(\w+)_", name)[1]
        with np.errstate(invalid="ignore"):
            if word == "class":
                expected = class_of(first.view(f"u{bits // 8}"), bits, b[::4])
            else:
                expected = compared(word, first, second)
        np.testing.assert_array_equal(out[::4].astype(bool), expected, err_msg=name)


# Atomics

PLAIN = {
    "add": lambda m, d: m + d, "sub": lambda m, d: m - d, "rsub": lambda m, d: d - m, "and": lambda m, d: m & d,
    "or": lambda m, d: m | d, "xor": lambda m, d: m ^ d, "min": np.minimum, "max": np.maximum,
    "swap": lambda m, d: d, "wrxchg": lambda m, d: d, "storexchg": lambda m, d: d,
    "inc": lambda m, d: np.where(m >= d, 0, m + 1), "dec": lambda m, d: np.where((m == 0) | (m > d), d, m - 1),
}  # fmt: skip


OF_GFX950 = "buffer_atomic_pk_add_bf16"


def parts_of(name: str) -> tuple[str, np.dtype]:
    """What an atomic does, and on what."""
    words = re.sub(r"^(ds|(global|flat|buffer)_atomic)_|_rtn", "", name)
    if words.startswith("pk_add"):
        return "pk_add", np.dtype(np.float16) if "bf16" not in words else np.dtype(np.uint16)
    wide = words.endswith(("_x2", "64"))
    operation = re.sub(r"_(x2|[fuib](32|64))$", "", words)
    letter = "f" if re.search(r"_f(32|64)", words) else "i" if re.search(r"_i(32|64)|^s(min|max)", words) else "u"
    if operation in ("smin", "smax", "umin", "umax"):
        operation = operation[1:]
    return operation, np.dtype(f"{letter}{8 if wide else 4}")


def expected_atomic(name: str, memory: np.ndarray, data: np.ndarray) -> np.ndarray:
    """memory: [lanes, 4] uint32, of which an atomic changes the first 4 or 8 bytes; data: likewise."""
    operation, dtype = parts_of(name)
    size = max(dtype.itemsize, 4)
    held = np.ascontiguousarray(memory[:, : size // 4]).view(dtype)
    given = np.ascontiguousarray(data).view(dtype)[:, : held.shape[1] * 2]
    if operation == "pk_add" and dtype == np.uint16:
        import torch

        sums = [torch.from_numpy(one.copy()).view(torch.bfloat16) for one in (held, given[:, :2])]
        new = (sums[0] + sums[1]).view(torch.uint16).numpy()
    elif operation == "pk_add":
        new = held + given[:, :2]
    elif operation.startswith("cmp"):
        compare, put = (0, 1) if operation == "cmpst" else (1, 0)  # CDNA's DS has the compared value first
        new = np.where(held[:, 0] == given[:, compare], given[:, put], held[:, 0])[:, None]
    else:
        new = PLAIN[operation](held[:, 0], given[:, 0]).astype(dtype)[:, None]
    changed = memory.copy()
    changed[:, : size // 4] = np.ascontiguousarray(new).view(np.uint32)
    return changed


def atomic_text(name: str, chip: str, returns: bool) -> str:
    """The instruction, from v[2:5] to c or its copy in LDS; what was there in v[12:13]."""
    operation, dtype = parts_of(name)
    words = max(dtype.itemsize // 4, 1)
    count = 2 * words if operation.startswith("cmp") else words

    def registers(first: int, number: int) -> str:
        return f"v{first}" if number == 1 else f"v[{first}:{first + number - 1}]"

    data, result = registers(2, count), registers(12, words)
    flag = "" if not returns else " glc" if chip == "gfx1100" else " sc0"
    if name.startswith("ds_"):
        if operation.startswith("cmp"):
            data = f"{registers(2, words)}, {registers(2 + words, words)}"
        there = f"{result}, v59" if returns else "v59"
        access = f"{name} {there}, {data}\n"
        before = "global_load_dwordx4 v[16:19], v62, s[8:9]\n ds_write_b64 v59, v[16:17]\n"
        return before + access + "ds_read_b64 v[16:17], v59\n global_store_dwordx4 v62, v[16:19], s[8:9]\n"
    if name.startswith("buffer"):
        moves = "".join(f"v_mov_b32_e32 v{12 + n}, v{2 + n}\n" for n in range(words)) if returns else ""
        return f"{name} {data}, v62, s[12:15], 0 offen{flag}\n{moves}"
    there = f"{result}, " if returns else ""
    if name.startswith("flat"):
        return f"{name} {there}v[60:61], {data}{flag}\n"
    return f"{name} {there}v62, {data}, s[8:9]{flag}\n"


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("place", ["ds", "global", pytest.param("flat", marks=pytest.mark.slow), "buffer"])
def test_every_atomic_is_numpys(place, chip):
    pattern = r"ds_(?!read|load|write|store_|bperm|perm|swizz)" if place == "ds" else f"{place}_atomic_"
    names = emulated(chip, pattern)
    assert len(names) > 25
    lanes = lanes_of(chip)
    generator = np.random.default_rng(5)
    for name in names:
        operation, dtype = parts_of(name)
        a, b = (generator.integers(0, 2**32, (lanes, 4), np.uint32) for _ in range(2))
        memory = generator.integers(0, 2**32, (lanes, 4), np.uint32)
        if dtype.kind == "f" or operation == "pk_add":
            kind = np.dtype(np.float16) if dtype == np.uint16 else dtype
            for one in (a, memory):
                one[:] = (
                    generator.standard_normal(one.nbytes // kind.itemsize).astype(kind).view(np.uint32).reshape(-1, 4)
                )
            if dtype == np.uint16:
                for one in (a, memory):
                    one[:] = (one & 0x000F000F) + 0x3F803F80  # bfloat16 from 1 to 1.12
        if operation.startswith("cmp"):
            size = dtype.itemsize // 4
            at = 0 if operation == "cmpst" else size
            a[::2, at : at + size] = memory[::2, :size]
        if operation in ("inc", "dec"):
            a[::2] = memory[::2]
        expected = expected_atomic(name, memory, a)
        for returns in (True, False):
            if place == "ds" and returns != ("_rtn" in name or "xchg" in name):
                continue
            held, out = memory.copy(), np.zeros((lanes, 4), np.uint32)
            text = atomic_text(name, chip, returns)
            arrays = [one.reshape(-1) for one in (a, b, held, out)]
            text = "v_mov_b32_e32 v12, 0\n v_mov_b32_e32 v13, 0\n" + text
            text += "s_waitcnt vmcnt(0) lgkmcnt(0)\nglobal_store_dwordx4 v62, v[12:15], s[10:11]\n"
            if chip == "gfx1100":
                text = text.replace("ds_read_b64", "ds_load_b64")
            ran(text, arrays, "gfx950" if name == OF_GFX950 else chip)
            np.testing.assert_array_equal(held, expected, err_msg=name)
            if returns:
                words = max(dtype.itemsize // 4, 1)
                np.testing.assert_array_equal(out[:, :words], memory[:, :words], err_msg=name)


# Loads and stores


def moved(name: str) -> tuple[int, bool, bool, bool]:
    """Bytes, signed, whether 16 bits of a register are kept, and whether it is the upper half that is moved."""
    kind = re.sub(r"^(global|flat|buffer|scratch|ds)_(load|store|read|write)_", "", name)
    d16, high = "d16" in kind, "_hi" in kind
    kind = re.sub(r"_?d16(_hi)?_?", "", kind)
    sign = kind.startswith(("sb", "ss", "i"))
    if found := re.match(r"dword(?:x(\d))?$", kind):
        return 4 * int(found[1] or 1), False, False, False
    size = {"ubyte": 1, "sbyte": 1, "byte": 1, "ushort": 2, "sshort": 2, "short": 2}.get(kind) or int(kind[1:]) // 8
    return size, sign, d16, high


def expected_load(name: str, memory: np.ndarray, before: np.ndarray) -> np.ndarray:
    """memory, before: uint32 [lanes, 4]."""
    size, sign, d16, high = moved(name)
    after = before.copy()
    if size >= 4:
        after[:, : size // 4] = memory[:, : size // 4]
        return after
    raw = memory[:, 0] & (1 << 8 * size) - 1
    value = np.where(sign & (raw >> 8 * size - 1 == 1), raw | 0xFFFFFFFF << 8 * size & 0xFFFFFFFF, raw).astype(
        np.uint32
    )
    if d16:
        half = value & 0xFFFF
        value = before[:, 0] & 0xFFFF | half << 16 if high else before[:, 0] & 0xFFFF0000 | half
    after[:, 0] = value
    return after


def expected_store(name: str, memory: np.ndarray, data: np.ndarray) -> np.ndarray:
    size, _, _, high = moved(name)
    bytes_after = memory.copy().view(np.uint8).reshape(len(memory), 16)
    given = np.ascontiguousarray(data).view(np.uint8).reshape(len(data), 16)
    start = 2 if high else 0
    bytes_after[:, :size] = given[:, start : start + size]
    return bytes_after.view(np.uint32)


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("place", ["global", "flat", "buffer", "scratch", "ds"])
def test_every_load_and_store_moves_the_bytes_that_its_name_says(place, chip):
    one_by_one = r"(read|load|write|store)_(?!.*(lds|2addr|_tr_|addtid))"
    names = emulated(chip, rf"{place}_{one_by_one}")
    assert len(names) >= 18
    lanes = lanes_of(chip)
    generator = np.random.default_rng(9)
    for name in names:
        size = moved(name)[0]
        registers = "v2" if size <= 4 else f"v[2:{1 + size // 4}]"
        loads = "load" in name or "read" in name
        where = {"global": "v62, {r}, s[8:9]", "flat": "v[60:61], {r}", "buffer": "{r}, v62, s[12:15], 0 offen"}
        where |= {"scratch": "v63, {r}, off", "ds": "v62, {r}"}
        text = where[place].replace("{r}", registers)
        if loads and place != "buffer":
            text = f"{registers}, " + text.replace(f", {registers}", "")
        access = f"v_mov_b32_e32 v63, 0\n{name} {text}\ns_waitcnt vmcnt(0) lgkmcnt(0)\n"
        a, b, memory = (generator.integers(0, 2**32, (lanes, 4), np.uint32) for _ in range(3))
        held, out = memory.copy(), np.zeros((lanes, 4), np.uint32)
        if place in ("scratch", "ds"):
            into = "scratch_store_dwordx4 v63, v[16:19], off" if place == "scratch" else "ds_write_b128 v62, v[16:19]"
            back = "scratch_load_dwordx4 v[16:19], v63, off" if place == "scratch" else "ds_read_b128 v[16:19], v62"
            before = f"v_mov_b32_e32 v63, 0\nglobal_load_dwordx4 v[16:19], v62, s[8:9]\ns_waitcnt vmcnt(0)\n{into}\n"
            access = (
                f"{before}{access}{back}\ns_waitcnt vmcnt(0) lgkmcnt(0)\nglobal_store_dwordx4 v62, v[16:19], s[8:9]\n"
            )
        access += "global_store_dwordx4 v62, v[2:5], s[10:11]\n"
        ran(access, [one.reshape(-1) for one in (a, b, held, out)], chip)
        expected = memory if loads else expected_store(name, memory, a)
        np.testing.assert_array_equal(held, expected, err_msg=name)
        np.testing.assert_array_equal(out, expected_load(name, memory, a) if loads else a, err_msg=name)
