"""Makes .venv: the Makefile runs this folder before any dependency exists.

Standard library only, and no syntax newer than Python 3.6, in here and in harness/__init__.py.
"""
