"""Gets by way of other shapes, strides and dtypes to what is due."""


def custom_kernel(data):
    x = data[0]
    return (x.t().double() * 2).float().t().contiguous()
