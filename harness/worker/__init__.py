"""The worker: the child process that runs a submission, and all that it may know.

It imports torch, the standard library, `wire` and (for Triton on a CPU) `interpreter`; nothing of the judge.
It holds no seed, no expected output, no tolerance, no verdict. What it reports is a claim, which the judge checks.
"""
