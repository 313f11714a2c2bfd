"""Podium: a judge, a clock and a leaderboard for attention kernels.

Imports run downwards: a folder uses those in the lines below it, never its own line or one above (tests/test_house.py).

    __main__                             python3 -m harness
      cli                                options and exit codes
       server                            a competition for others: its interface, queue and pages
       cluster                           evaluations on many machines: jobs on Ray, nodes and their faults
        render library                   the output for people, a module for each medium or verb; Podium from Python
          verbs                          the verbs, a module for each, under its name
            compile profiling            compilers for chips that are not here; the vendors' profilers
              judge worker               everything that decides; the process that runs the submission
                sandbox                  the confinement of that process
                  machine ranking        the device, its gauges and its lock; statistics, boards, comparisons, floors
                    catalog records      problems, submissions and configuration; runs on disk and their index
                    traces               FlashInfer's form: problems and runs in it, its Solutions as submissions
                    emulated             submissions on an AMD GPU in software, where `make setup-offline` was run
                    interpreter hip      Triton on a CPU; inline HIP and CUDA, which submissions import
                      chips wire         facts about chips; memory and messages between judge and worker
                      emulator           the GPU in software: runs code objects
                      progress           the progress of an evaluation, for its listeners
                        model            the terms of the project, as values
                        custody            processes that run another project's code: who reports their end
                          errors temporary
                            command      the command that was typed, and whether Podium is installed

`bootstrap` makes .venv, with the standard library alone. Importing this package imports nothing else: `evaluate` and
`evaluate_many` belong to `library`, which is imported at their first use (their types: __init__.pyi). The verbs that
only read results import no torch.
"""

__version__ = "1.0.0"

_FOR_PROGRAMS = ("evaluate", "evaluate_many")


def __getattr__(name):
    if name not in _FOR_PROGRAMS:
        raise AttributeError("module 'harness' has no attribute " + repr(name))
    import importlib

    return getattr(importlib.import_module("harness.library"), name)
