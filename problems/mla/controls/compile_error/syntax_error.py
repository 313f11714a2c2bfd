"""Does not compile: a return outside of any function."""

return lambda data: data  # noqa: F706
