"""Submissions run in the emulator: harness.hip's launches and Triton's, on tensors of the CPU."""
