"""Judging without the target device: interpretation on the CPU, and compilation for chips that are not here.

interpreter.py is the way in to interpretation; the modules it names each put one part of Triton's interpreter right.
Nothing is imported here: a caller that only compiles does not load the interpreter, and the other way round.
"""
