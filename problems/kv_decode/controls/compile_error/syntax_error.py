"""Does not parse once its generated part is put together."""

SOURCE = """
def custom_kernel(data)
    return data[0]
"""

exec(compile(SOURCE, "generated", "exec"))
