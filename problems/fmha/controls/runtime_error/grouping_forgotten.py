"""Has no notion of grouped heads: torch refuses the product where Hq is not Hkv."""


def custom_kernel(data):
    q, k, v, config = data
    weights = (q.float() @ k.float().mT * config["sm_scale"]).softmax(dim=-1)
    return (weights @ v.float()).half()
