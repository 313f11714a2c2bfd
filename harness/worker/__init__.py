"""The worker: the child process that runs a submission, and all that it may know.

    judge ══ wire ══► main ─► load            one file ─► its custom_kernel, or whose fault it is that there is none
                        │       gpumode         what files written for GPU MODE import
                        │       kernelbench     a class ModelNew in the place of custom_kernel
                        │       extensions      torch's builds of C++, without those that need a GPU ◄── cpp
                        └───► calls           one call: inputs ─► custom_kernel ─► outputs, described
                                transports    bytes between shared memory and what the submission sees
                                pool, gates   GPU memory that the judge has mapped too; words that its stream waits for
                                profiled      a call that torch's profiler looks at
                                timers        the worker's own time: a diagnosis, or all that there is (ROCm)

It imports torch, the standard library, `wire` and, on a CPU, `interpreter`, `emulated` and `hip`; nothing of the
judge.
It holds no seed, no expected output, no tolerance, no verdict. What it reports is a claim, which the judge checks.
"""
