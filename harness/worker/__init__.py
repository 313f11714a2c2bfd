"""The worker: the child process that runs a submission.

    judge ══ wire ══► main ─► load            one file ─► its custom_kernel, or a failure with the right verdict
                        │       gpumode         the modules that files written for GPU MODE import
                        │       kernelbench     a class ModelNew in place of custom_kernel
                        │       switches_of_torch  what a GPU would compute less exactly
                        │       extensions      torch's builds of C++, without those that need a GPU ◄── cpp
                        └───► calls           one call: inputs ─► custom_kernel ─► outputs and their description
                                transports    bytes between shared memory and the submission's tensors
                                pool          GPU memory that the judge has mapped too
                                profiled      a call under torch's profiler
                                timers        the worker's own time: a diagnosis, or the only one (ROCm)

It imports torch, the standard library, `wire` and, on a CPU, `interpreter`, `emulated` and `hip`, but nothing of the
judge. It holds no seed, no expected output, no tolerance and no verdict. Its reports are claims, which the judge
checks.
"""
