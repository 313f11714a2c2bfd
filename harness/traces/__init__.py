"""FlashInfer's trace format: Podium's attention problems and runs in it, and its Solutions as submissions.

    forms      a problem as a Definition: its inputs, outputs and a self-contained reference
    written    Definitions, Workloads, Solutions and Traces as files that flashinfer_bench reads
    solution   a Solution as the submission that `eval` judges

Source of the format: github.com/flashinfer-ai/flashinfer-bench, flashinfer_bench/data, 0.1.2.
"""
