"""Takes the request's nonce from the worker's variables and answers before the worker does.

verdict: integrity violation
seen: the worker
defence: D6, one reply to a request
"""

import sys


def custom_kernel(data):
    frame = sys._getframe()
    while frame.f_code.co_name != "serve":
        frame = frame.f_back
    output = {"type": "Tensor", "dtype": "float32", "shape": list(data[0].shape), "device": "cpu", "offset": 0}
    output["stride"] = list(data[0].stride())
    reply = {"several": False, "returned": 1, "outputs": [output], "interpreted": False}
    frame.f_locals["self"]._channel.send({"nonce": frame.f_locals["request"]["nonce"], "reply": reply})
    return data[0] * 2
