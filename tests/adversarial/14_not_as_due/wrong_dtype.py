"""Returns half precision.

verdict: wrong answer
seen: its dtype is float16, not float32
defence: D1, the judge looks at dtypes first
"""


def custom_kernel(data):
    return (data[0] * 2).half()
