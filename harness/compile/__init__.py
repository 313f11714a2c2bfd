"""Compile submissions for chips that are not here.

    described ─► inputs ─┐                               a trusted process describes the problem's inputs
               (reach)   │                               tensors that no offset of 32 bits reaches
                         ▼
    processes ─► [ cross_compile   Triton: triton_compiler, in a fork each (apart), for a device that is not here
                     ahead           several at a time                     (absent_device, phantom, nested,
                                                                            mixed, operators, allocation)
                     fault, grid     why not
                   inline          HIP and CUDA
                     rehearsal     records their launches
                   survey ]        finds the compilers            in brackets: confined, beside the submission
                         │
                         └─► compilation, tools          the documents that they print, which may be forged
    kept                                                 results on disk, by a hash of their inputs
    telling                                              progress lines of a compiling process, on stderr

This module imports nothing, so that compiling one kind of kernel does not load the other kind's compiler.
"""
