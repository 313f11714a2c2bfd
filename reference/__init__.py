"""The mathematics that the problems share.

    attention.py      attention in float64: the oracle every problem is checked against
    quantization.py   fp8 per tensor and mxfp4 per block of 32, with their inverses
    aiter.py          the adapter to AMD's aiter, the MLA decode reference on ROCm machines

Everything here is correct before it is fast, and nothing here imports the harness: torch alone.
"""
