"""The functions that AMD's pseudocode calls, as Python terms."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.emulator.arithmetic import Type
from harness.emulator.terms import Term, Untranslatable, converted, raw, type_of

MINMAX = {}
for _kind in ("f16", "f32", "f64"):
    MINMAX[f"v_max_{_kind}"], MINMAX[f"v_min_{_kind}"] = "ar.largest", "ar.smallest"
    MINMAX[f"v_max3_{_kind}"], MINMAX[f"v_min3_{_kind}"] = "_largest3", "_smallest3"
for _kind in ("i16", "u16", "i32", "u32"):
    MINMAX[f"v_max_{_kind}"], MINMAX[f"v_min_{_kind}"] = "np.maximum", "np.minimum"
    MINMAX[f"v_max3_{_kind}"], MINMAX[f"v_min3_{_kind}"] = "_maximum3", "_minimum3"


def called(name: str, arguments: Sequence[Term]) -> Term:
    """The term of a call. Raises Untranslatable."""
    conversion = re.match(r"^([uif]|bf)(\d+)_to_([uif]|bf)(\d+)$", name)
    if conversion and (conversion[1] != "bf" or conversion[2] == "16") and conversion[4] != "8":
        source: Type = (conversion[1], int(conversion[2]))
        return Term(
            f"ar.cast({converted(arguments[0], source)}, {source}, {(conversion[3], int(conversion[4]))})",
            (conversion[3], int(conversion[4])),
        )
    texts = [one.text for one in arguments]
    kind = arguments[0].type if arguments else ("u", 32)
    if name == "signext":
        return Term(f"{texts[0]}.astype(np.int64)", ("i", 64))
    if name == "signext_from_bit":
        width = converted(arguments[1], ("u", 32))
        return Term(f"_sign_extended({raw(arguments[0], kind)}, {width}, {kind})", kind)
    if name == "fma":
        return Term(f"ar.fma({', '.join(texts)})", kind)
    if name == "ldexp":
        return Term(f"ar.ldexp({texts[0]}, {converted(arguments[1], ('i', 32))})", kind)
    if name in MINMAX and len(arguments) in (2, 3):
        return Term(f"{MINMAX[name]}({', '.join(texts)})", type_of(name.split("_")[-1]))
    simple = {
        "floor": "np.floor({})",
        "trunc": "np.trunc({})",
        "abs": "np.abs({})",
        "sqrt": "ar.exact(np.sqrt, {})",
        "log2": "ar.exact(np.log2, {})",
        "fract": "({0} - np.floor({0}))",
    }
    if name in simple:
        return Term(simple[name].format(*texts), kind)
    if name == "pow":
        return Term(f"ar.exact(np.exp2, {texts[1]})", arguments[1].type)
    if name == "exponent":
        return Term(f"ar.exponent({texts[0]})", ("i", 32))
    if name == "mantissa":
        return Term(f"ar.mantissa({texts[0]})", kind)
    if name == "sign":
        return Term(f"np.signbit({texts[0]})", ("bool", 1))
    if name == "isEven":
        return Term(f"(np.mod({texts[0]}, 2.0) == 0)", ("bool", 1))
    if name == "bitCount":
        return Term(f"ar.population({texts[0]})", ("i", 32))
    if name == "BYTE_PERMUTE":
        return Term(f"ar.byte_permute({texts[0]}, {texts[1]})", ("u", 8))
    if name == "ABSDIFF":
        return Term(f"(np.maximum({texts[0]}, {texts[1]}) - np.minimum({texts[0]}, {texts[1]}))", ("u", 32))
    raise Untranslatable(f"it calls {name}")
