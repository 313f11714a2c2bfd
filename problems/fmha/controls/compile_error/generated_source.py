"""Generates its source for a head dim, and what it generates does not parse."""

SOURCE = """
def custom_kernel(data):
    q, k, v, config = data
    return (q.float() @ k.float().mT * config["sm_scale"]
"""

exec(compile(SOURCE, "generated", "exec"))
