"""What the folders' checkers share."""


def close_to(reference, rtol, atol):
    """A checker that holds an output against `reference` of the same data: (right, why)."""

    def check(data, output):
        want = reference(data)
        if output.shape != want.shape:
            return False, f"the shape is {tuple(output.shape)}, not {tuple(want.shape)}"
        far = (output.double() - want.double()).abs() > atol + rtol * want.double().abs()
        far |= output.isnan()
        return not bool(far.any()), f"{int(far.sum())} elements are off" if far.any() else ""

    return check


def make_match_reference(reference, rtol=1e-5, atol=1e-8):
    return close_to(reference, rtol, atol)
