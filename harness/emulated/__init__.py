"""Submissions run in the emulator: harness.hip's launches and Triton's, on tensors of the CPU.

hip             launches of harness.hip ──┬─► launches   those of one process, and what is to be said of them
triton_driver   kernels of Triton ────────┘
"""
