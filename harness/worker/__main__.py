"""Confine this process, and only then become the worker: its imports start threads, which no later confinement reaches.

python3 -m harness.worker --channel FD --stack FD --device cpu|cuda|rocm --threads N --flush-bytes N      < policy
"""

import gc

from harness.sandbox.confinement import confine_as_told


def main() -> None:
    confine_as_told()
    gc.disable()  # what torch's import makes is no garbage, and to look for some takes a seventh of the time
    from harness.worker.main import main as serve

    gc.freeze()
    gc.enable()
    serve()


if __name__ == "__main__":
    main()
