"""Uses modes and defaults within its call, and sets those that are its own business for good."""

import torch

torch.set_num_threads(1)
torch.set_grad_enabled(False)
torch.set_float32_matmul_precision("high")
torch.backends.mkldnn.enabled = True


def custom_kernel(data):
    with torch.inference_mode():
        return data[0] * 2
