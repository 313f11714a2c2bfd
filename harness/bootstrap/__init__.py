"""Makes .venv: the Makefile runs this folder before any dependency exists. Each module knows those to its right.

    __main__ ─► virtualenv ─► packages ─► command

Standard library only, and no syntax newer than Python 3.6, in here and in harness/__init__.py.
"""
