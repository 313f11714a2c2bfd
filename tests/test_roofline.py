"""A floor is the least time that a datasheet allows, over every format that may be read; unknown peaks give none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.machine.device import DeviceFile
from harness.model import Device
from harness.ranking.roofline import floor


def device(bandwidth=1e12, **peaks):
    return Device(
        kind="cuda",
        name="Test",
        slug="test",
        arch="sm_90",
        torch_device="cuda:0",
        memory_bytes=1,
        flush_bytes=1,
        bandwidth_bytes_per_s=bandwidth,
        peak_flops_per_s=peaks,
    )


def test_the_bytes_bind_where_they_take_longer():
    found = floor({"bf16": {"bytes": 2_000_000, "flops": {"bf16": 10**6}}}, device(bf16=1e15))
    assert (found.latency_ns, found.binds, found.format) == (pytest.approx(2000), "bandwidth", "bf16")


def test_the_flops_bind_where_they_take_longer():
    found = floor({"bf16": {"bytes": 2, "flops": {"bf16": 5 * 10**9}}}, device(bf16=1e15))
    assert (found.latency_ns, found.binds) == (pytest.approx(5000), "flops")


def test_the_flops_of_several_dtypes_add_up():
    found = floor({"x": {"bytes": 0, "flops": {"bf16": 10**9, "fp8": 10**9}}}, device(bf16=1e15, fp8=2e15))
    assert found.latency_ns == pytest.approx(1500)


def test_the_floor_is_that_of_the_cheapest_format():
    cost = {
        "bf16": {"bytes": 4000, "flops": {"bf16": 1}},
        "fp8": {"bytes": 2000, "flops": {"bf16": 1}},
        "wide": {"bytes": 9000, "flops": {"bf16": 1}},
    }
    assert floor(cost, device(bf16=1e15)).format == "fp8"


def test_a_device_without_known_bandwidth_has_no_floor():
    assert floor({"bf16": {"bytes": 10, "flops": {"bf16": 1}}}, device(bandwidth=None, bf16=1.0)) is None


def test_a_device_without_the_peak_that_every_format_needs_has_no_flops_bound_floor():
    found = floor({"fp4": {"bytes": 1, "flops": {"fp4": 10**9}}}, device(bf16=1e15))
    assert found is None or found.binds == "bandwidth"


def test_work_without_arithmetic_needs_no_peaks():
    assert floor({"copy": {"bytes": 1000, "flops": {}}}, device()).latency_ns == pytest.approx(1.0)


def test_a_case_that_costs_nothing_has_no_floor():
    assert floor({"x": {"bytes": 0, "flops": {}}}, device()) is None


formats = st.dictionaries(
    st.sampled_from(["bf16", "fp8", "mxfp4"]),
    st.fixed_dictionaries({"bytes": st.integers(1, 10**9), "flops": st.just({"bf16": 10**6})}),
    min_size=1,
)


@given(formats)
def test_no_allowed_format_is_faster_than_the_floor(cost):
    here = device(bf16=1e15)
    found = floor(cost, here)
    assert all(found.latency_ns <= floor({name: entry}, here).latency_ns for name, entry in cost.items())


def test_a_format_of_unknown_peak_never_raises_the_floor():
    """A latency below the floor is an integrity violation: a floor must hold for every format that may be read."""
    cost = {"bf16": {"bytes": 8000, "flops": {"bf16": 1}}, "fp8": {"bytes": 4000, "flops": {"fp8": 1}}}
    found = floor(cost, device(bf16=1e15))
    assert found is None or found.latency_ns <= 4.0


def test_a_peak_of_nothing_is_no_peak():
    with pytest.raises(ValidationError):
        DeviceFile(matches=("x",), flush_bytes=1, peak_flops_per_s={"bf16": 0.0})
