"""Returns a tensor without memory, on the device `meta`.

verdict: wrong answer
seen: it is on meta
defence: D1, the judge looks at devices first
"""


def custom_kernel(data):
    return (data[0] * 2).to("meta")
