"""Podium: a judge, a clock and a leaderboard for attention kernels.

Imports run downwards: what stands in a line uses the lines below, never its own or one above (tests/test_house.py).

    __main__                             python3 -m harness
      cli                                options and exit codes
       server                            a competition that others enter: its interface, queue and pages
       cluster                           evaluations on many machines: jobs on Ray, nodes, what is wrong with them
        render library                   what people see: a module a medium, or a verb's view; Podium from Python
          verbs                          what each verb does: a module a verb, under its name
            compile profiling            compilers for chips that are not here; the vendors' profilers
              judge worker               everything that decides; the process that runs the submission
                sandbox                  what stands around that process
                  machine ranking        the device, its gauges and its lock; statistics, boards, comparisons, floors
                    catalog records      what files say; runs on disk and the index over them
                    traces               FlashInfer's form: problems and runs in it, its Solutions as submissions
                    emulated             submissions on an AMD GPU in software, where `make setup-offline` was run
                    interpreter hip      Triton on a CPU; inline HIP and CUDA, which submissions import
                      chips wire         facts of chips; memory and messages between judge and worker
                      emulator           the GPU in software: runs code objects
                      progress           how an evaluation gets on, told to whoever listens
                        model            the words of the project, as values
                        custody            who answers for a process in which another project's code runs
                          errors temporary
                            command      what was typed, and whether Podium is installed

`bootstrap` makes .venv, with the standard library alone. Importing this package imports nothing: `evaluate` and
`evaluate_many` are of `library`, which is imported when they are asked for (their types: __init__.pyi). The verbs that
only read results import no torch.
"""

__version__ = "0.1.0"

_FOR_PROGRAMS = ("evaluate", "evaluate_many")


def __getattr__(name):
    if name not in _FOR_PROGRAMS:
        raise AttributeError("module 'harness' has no attribute " + repr(name))
    import importlib

    return getattr(importlib.import_module("harness.library"), name)
