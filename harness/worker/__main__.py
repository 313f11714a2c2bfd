"""Confine this process first, and then become the worker: its imports start threads, which later confinement misses.

python3 -m harness.worker --channel FD --stack FD --device cpu|cuda|rocm --threads N --flush-bytes N      < policy
"""

import gc

from harness.sandbox.confinement import confine_as_told


def main() -> None:
    confine_as_told(hidden=True)  # until it loads a submission; on a GPU until it is prepared
    gc.disable()  # torch's import makes no garbage, and collecting takes a seventh of its time
    from harness.worker.main import main as serve

    gc.freeze()
    gc.enable()
    serve()


if __name__ == "__main__":
    main()
