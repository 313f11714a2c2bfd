"""Runs submissions in the emulator: launches of harness.hip and Triton, on CPU tensors.

hip             launches of harness.hip ──┬─► launches   the launches of one process, and their findings
triton_driver   kernels of Triton ────────┘
"""
