"""The reference, by hand."""


def custom_kernel(data):
    image, out = data
    out[...] = 0.25 * image[..., 0] + 0.5 * image[..., 1] + 0.25 * image[..., 2]
    return out
