"""Create .venv. The Makefile runs this folder before any dependency exists.

    __main__     creates and fills .venv             packages   installed and required packages
    torch_build  which build of torch to install     bytecode   compiled beside pip

Code here and in harness/__init__.py uses only the standard library, and no syntax newer than Python 3.6.
"""
