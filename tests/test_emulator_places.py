"""Flat addresses, and loads that go directly to shared memory: values, faults and races."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")
pytest.importorskip("triton")

from tests.assembled import BEGIN, END, launched

A, B, C = (np.arange(start, start + 128, dtype=np.uint32) * np.uint32(2654435761) for start in (1, 1000, 5000))


def left(body, lds=2048, block=64, scratch=64):
    """What a kernel of one workgroup stores from v5, and the kinds of what is found."""
    out = np.zeros(block, np.uint32)
    arrays = [one[:block].copy() for one in (A, B, C)]
    outcome = launched(BEGIN + body + END, [*arrays, out], block=block, lds=lds, scratch=scratch)
    assert outcome.not_emulated is None, outcome
    return out, [(one.kind, one.message, one.lane) for one in outcome.findings]


SHARED = "s_mov_b64 s[12:13], src_shared_base\nv_lshlrev_b32_e32 v6, 2, v0\nv_mov_b32_e32 v7, s13\n"
PRIVATE = "s_mov_b64 s[12:13], src_private_base\nv_mov_b32_e32 v6, 8\nv_mov_b32_e32 v7, s13\n"
WAIT = "s_waitcnt vmcnt(0) lgkmcnt(0)\n"


def test_a_flat_store_to_the_shared_aperture_is_what_ds_read_reads():
    out, found = left(
        SHARED + "flat_store_dword v[6:7], v2 offset:16\n" + WAIT + "ds_read_b32 v5, v6 offset:16\n" + WAIT
    )
    assert not found
    np.testing.assert_array_equal(out, A[:64])


def test_a_flat_load_reads_what_ds_write_wrote():
    out, found = left(SHARED + "ds_write_b32 v6, v3\n" + WAIT + "flat_load_dword v5, v[6:7]\n" + WAIT)
    assert not found
    np.testing.assert_array_equal(out, B[:64])


def test_a_flat_address_of_the_private_aperture_is_each_lanes_own_scratch():
    out, found = left(
        PRIVATE + "flat_store_dword v[6:7], v2\n" + WAIT + "scratch_load_dword v5, off, off offset:8\n" + WAIT
    )
    assert not found
    np.testing.assert_array_equal(out, A[:64])


def test_one_flat_load_serves_lanes_of_shared_memory_scratch_and_global_memory():
    body = SHARED + "ds_write_b32 v6, v2\nscratch_store_dword off, v3, off offset:8\n" + WAIT
    body += "v_lshl_add_u64 v[8:9], v[6:7], 0, 0\n"  # LDS
    body += "s_mov_b64 s[14:15], src_private_base\nv_mov_b32_e32 v10, 8\nv_mov_b32_e32 v11, s15\n"
    body += "v_mov_b32_e32 v12, s8\nv_mov_b32_e32 v13, s9\nv_mov_b32_e32 v14, v1\nv_mov_b32_e32 v15, 0\n"
    body += "v_lshl_add_u64 v[12:13], v[12:13], 0, v[14:15]\n"
    body += "v_cmp_gt_u32_e32 vcc, 20, v0\nv_cndmask_b32_e32 v8, v10, v8, vcc\nv_cndmask_b32_e32 v9, v11, v9, vcc\n"
    body += "v_cmp_gt_u32_e32 vcc, 40, v0\nv_cndmask_b32_e32 v8, v12, v8, vcc\nv_cndmask_b32_e32 v9, v13, v9, vcc\n"
    out, found = left(body + "flat_load_dword v5, v[8:9]\n" + WAIT)
    assert not found
    np.testing.assert_array_equal(out, np.concatenate([A[:20], B[20:40], C[40:64]]))


def test_a_flat_address_outside_shared_memory_is_named_with_its_lane():
    _, ((kind, message, lane),) = left(SHARED + "flat_store_dword v[6:7], v2\n", lds=128)
    assert (kind, lane) == ("out-of-range access", 32)
    assert message == "byte 128 of shared memory; the workgroup has 128"


def test_two_waves_race_through_flat_addresses_and_do_not_behind_a_barrier():
    body = SHARED + "v_xor_b32_e32 v8, 0x100, v6\nv_mov_b32_e32 v9, v7\nflat_store_dword v[6:7], v2\n" + WAIT
    read = "flat_load_dword v5, v[8:9]\n" + WAIT
    _, found = left(body + read, block=128)
    assert [one[0] for one in found] == ["race in shared memory"]
    out, found = left(body + "s_barrier\n" + read, block=128)
    assert not found
    np.testing.assert_array_equal(out, np.concatenate([A[64:128], A[:64]]))


DIRECT = "v_lshlrev_b32_e32 v6, 2, v0\ns_movk_i32 m0, 0x200\n"
GLOBAL_LDS = DIRECT + "global_load_lds_dword v6, s[4:5] offset:4\n" + WAIT


def test_a_global_load_to_shared_memory_puts_the_lanes_side_by_side_from_m0_on():
    body = DIRECT + "s_mov_b64 exec, 0xffff\nglobal_load_lds_dword v6, s[4:5] offset:4\n" + WAIT
    body += "ds_read_b32 v5, v6 offset:516\n" + WAIT
    body += "s_mov_b64 exec, -1\n"
    out, found = left("v_mov_b32_e32 v5, 9\n" + body)
    assert not found
    np.testing.assert_array_equal(out, np.concatenate([A[1:17], np.full(48, 9)]))  # the offset counts on both sides


def test_a_buffer_load_to_shared_memory_writes_zeros_for_lanes_out_of_range():
    body = DIRECT + "s_mov_b32 s12, s6\ns_and_b32 s13, s7, 0xffff\ns_movk_i32 s14, 100\ns_mov_b32 s15, 0x27000\n"
    body += "buffer_load_dword v6, s[12:15], 0 offen lds\n" + WAIT + "ds_read_b32 v5, v6 offset:512\n" + WAIT
    out, found = left(body)
    assert not found
    np.testing.assert_array_equal(out, np.concatenate([B[:25], np.zeros(39, np.uint32)]))


def test_a_direct_load_past_the_end_of_shared_memory_is_named():
    _, ((kind, message, lane),) = left(GLOBAL_LDS.replace(" offset:4", ""), lds=700)
    assert (kind, lane) == ("out-of-range access", 47)
    assert message == "byte 700 of shared memory; the workgroup has 700"


def test_a_direct_load_past_the_end_of_a_tensor_is_named():
    _, ((kind, message, lane),) = left(GLOBAL_LDS)
    assert (kind, lane) == ("out-of-range access", 63) and "0 bytes after the end of a" in message


@pytest.mark.slow
@pytest.mark.parametrize(("target", "load"), [("gfx950", "buffer_load_dwordx4"), ("gfx942", "buffer_load_dword")])
def test_tritons_loads_to_shared_memory_put_a_matrix_where_its_product_reads_it(target, load):
    """Triton's lowering and ours agree on where each lane's bytes go."""
    command = [sys.executable, "-m", "tests.emulated_direct", target]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert load in found["loads"] and found["error"] < 1e-3, found
