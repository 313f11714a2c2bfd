"""Judging without the target device: compiling for chips that are not here.

    described ─► inputs ─┐                               whoever knows the problem says what the inputs are
                         ▼
    processes ─► [ cross_compile   Triton: triton_compiler, in a fork each (apart), for a device that is not here
                   inline          HIP and CUDA          (absent_device, phantom, nested); fault: why not
                     rehearsal     whose launches are noted
                   survey ]        what compilers there are       in brackets: confined, beside the submission
                         │
                         └─► compilation, tools          the documents that they print, read as strangers' words
    kept                                                 results on disk, by all that they depend on
    telling                                              what a process is at, said on stderr and found there again

Nothing is imported here: who compiles one kind does not load the other's compiler.
"""
