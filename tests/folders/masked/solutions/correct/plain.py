"""Weights by their dotted names."""


def custom_kernel(data):
    x, mask, weights, config = data
    assert config["bias"] is None and isinstance(config["nomask"], bool)
    return x.mul(mask.unsqueeze(-1)).mul(weights["norm.weight"]).matmul(weights["to_out.weight"])
