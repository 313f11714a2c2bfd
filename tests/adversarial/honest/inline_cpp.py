"""Builds C++ with load_inline, which starts compilers, in every fresh directory once.

timed: true
slow: true
needs: compiler
"""

from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/extension.h>
torch::Tensor twice(torch::Tensor x) { return x * 2; }
"""
built = load_inline("twice", SOURCE, functions=["twice"])


def custom_kernel(data):
    return built.twice(data[0])
