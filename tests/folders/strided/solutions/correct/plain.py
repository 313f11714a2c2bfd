"""By columns, as the strides say."""


def custom_kernel(data):
    a, b, scale, out = data
    assert a.stride() == (1, a.shape[0]) and b.stride() == (1, b.shape[0]) and scale.stride() == (2,)
    out[...] = ((a.float() * scale) @ b.float().T).bfloat16()
    return out
