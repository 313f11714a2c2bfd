"""Uses gc and frames for what they are for."""

import gc
import sys


def custom_kernel(data):
    gc.collect()
    assert sys._getframe().f_code.co_name == "custom_kernel"
    return data[0] * 2
