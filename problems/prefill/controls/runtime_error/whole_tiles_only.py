"""Refuses a sequence that is no whole number of tiles."""


def custom_kernel(data):
    q = data[0]
    if q.shape[1] % 64:
        raise NotImplementedError(f"{q.shape[1]} tokens are no multiple of 64")
    return q.clone()
