"""Makes .venv: the Makefile runs this folder before any dependency exists.

    __main__   makes and fills .venv    packages   what is there and what is asked for    bytecode   made beside pip

Standard library only, and no syntax newer than Python 3.6, in here and in harness/__init__.py.
"""
