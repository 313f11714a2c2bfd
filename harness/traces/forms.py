"""Three of Podium's problems as Definitions.

A Definition is a function of tensors and numbers. Podium passes a tuple with a `config`, and one problem has caches
that are written in place. So each form has code that adapts one calling convention to the other:

    inwards   a Solution's function that calls a submission's custom_kernel(data)
    outwards  a custom_kernel that calls a Solution's function
"""

from __future__ import annotations

import json
import textwrap
import uuid
from dataclasses import dataclass
from typing import Any

from harness.model import Case

_NAMES = uuid.UUID("8f0f3a52-5d3c-4f0c-9c6e-3f3b0e0a7d11")
"""The namespace of workloads' ids, which are made from names. So the same case has the same id in each export."""

Shape = tuple[str, ...] | None


@dataclass(frozen=True)
class Form:
    """A problem's Definition.

    `inputs`, `outputs`: shape (None for a number) and dtype by name, in the order of the call. `axes`: each axis with
    the case's parameter that gives its length. `ones`: the axes of length 1. `scalars`: the inputs that are parameters
    of the case, each with the parameter's name. `lengths`: the input that holds one number per sequence, and its
    parameter.
    """

    problem: str
    name: str
    op_type: str
    description: str
    axes: dict[str, str]
    inputs: dict[str, tuple[Shape, str]]
    outputs: dict[str, tuple[Shape, str]]
    reference: str
    inwards: str
    outwards: str
    scalars: dict[str, str]
    ones: tuple[str, ...] = ()
    lengths: tuple[str, str] | None = None
    dtype: str | None = None

    def fits(self, case: Case) -> bool:
        """True if a workload can express `case`: plain inputs, one step, and this form's dtype."""
        plain = {
            "scores": ("plain", "mixed"),
            "values": ("normal",),
            "lengths": ("given",),
            "steps": (1,),
            "growth": (0, 0.0),
        }
        said = case.parameters
        if self.dtype is not None and said.get("dtype") != self.dtype:
            return False
        return all(said[name] in allowed for name, allowed in plain.items() if name in said)

    def definition(self) -> dict[str, Any]:
        """The Definition as JSON."""

        def tensors(named: dict[str, tuple[Shape, str]]) -> dict[str, Any]:
            return {name: {"shape": shape and list(shape), "dtype": dtype} for name, (shape, dtype) in named.items()}

        ones = {axis: {"type": "const", "value": 1} for axis in self.ones}
        return {
            "name": self.name,
            "op_type": self.op_type,
            "axes": {**{axis: {"type": "var"} for axis in self.axes}, **ones},
            "inputs": tensors(self.inputs),
            "outputs": tensors(self.outputs),
            "reference": self.reference,
            "tags": ["podium", f"podium:{self.problem}"],
            "description": self.description,
            "constraints": ["num_q_heads % num_kv_heads == 0"],
        }

    def lengths_of(self, case: Case) -> list[int] | None:
        """The content of the input `lengths` in `case`: one number per sequence. None for a form without it."""
        if self.lengths is None:
            return None
        said = case.parameters[self.lengths[1]]
        return said if isinstance(said, list) else [said] * int(case.parameters["batch_size"])  # type: ignore[arg-type, list-item, return-value]

    def workload(self, case: Case) -> dict[str, Any]:
        """`case` as JSON. The content of `lengths` is in the file `tensors_path(case)`."""
        inputs: dict[str, Any] = {}
        for name, (shape, _) in self.inputs.items():
            if shape is None:
                inputs[name] = {"type": "scalar", "value": self.scalar(name, case)}
            elif self.lengths is not None and name == self.lengths[0]:
                inputs[name] = {"type": "safetensors", "path": self.tensors_path(case), "tensor_key": name}
            else:
                inputs[name] = {"type": "random"}
        axes = {axis: case.parameters[parameter] for axis, parameter in self.axes.items()}
        return {"axes": axes, "inputs": inputs, "uuid": self.uuid(case)}

    def scalar(self, name: str, case: Case) -> float | bool:
        """The value of the number input `name` in `case`."""
        if name == "sm_scale":
            return float(case.parameters["head_dim"]) ** -0.5  # type: ignore[arg-type]
        return bool(case.parameters[self.scalars[name]])

    def uuid(self, case: Case) -> str:
        """The workload's id."""
        return str(uuid.uuid5(_NAMES, json.dumps([self.name, case.key])))

    def tensors_path(self, case: Case) -> str:
        """The path of the workload's tensors, relative to the export's folder."""
        return f"blob/workloads/{self.name}/{self.uuid(case)}.safetensors"


def of_problem(problem: str) -> list[Form]:
    """The forms of a problem, one for each dtype. Empty if it has no Definition."""
    return [form for form in FORMS if form.problem == problem]


def _text(source: str) -> str:
    return textwrap.dedent(source).lstrip("\n")


_PREFILL = Form(
    problem="prefill",
    name="podium_prefill",
    op_type="gqa_prefill",
    description="Attention of a whole prompt on itself, with grouped query heads, causal or not. Query head h reads KV "
    "head h // (num_q_heads // num_kv_heads). Exact: float64, rounded once.",
    axes={name: name for name in ("batch_size", "seq_len", "num_q_heads", "num_kv_heads", "head_dim")},
    inputs={
        "q": (("batch_size", "seq_len", "num_q_heads", "head_dim"), "bfloat16"),
        "k": (("batch_size", "seq_len", "num_kv_heads", "head_dim"), "bfloat16"),
        "v": (("batch_size", "seq_len", "num_kv_heads", "head_dim"), "bfloat16"),
        "causal": (None, "bool"),
        "sm_scale": (None, "float32"),
    },
    outputs={"out": (("batch_size", "seq_len", "num_q_heads", "head_dim"), "bfloat16")},
    reference=_text("""
        import torch


        ROWS = 1024  # at a time, for the memory that their scores take


        def run(q, k, v, causal, sm_scale):
            batch, length, q_heads, dim = q.shape
            group = q_heads // k.shape[2]
            out = torch.empty_like(q)
            for b in range(batch):
                for h in range(q_heads):
                    keys, values = k[b, :, h // group].double(), v[b, :, h // group].double()
                    for start in range(0, length, ROWS):
                        rows = q[b, start : start + ROWS, h].double()
                        scores = rows @ keys.T * dim**-0.5
                        if causal:
                            seen = torch.ones(scores.shape, dtype=torch.bool, device=q.device).tril(start)
                            scores = scores.masked_fill(~seen, -torch.inf)
                        out[b, start : start + ROWS, h] = (scores.softmax(dim=-1) @ values).to(q.dtype)
            return out
    """),
    inwards=_text("""
        def podium_run(q, k, v, causal, sm_scale):
            sizes = dict(zip(("batch_size", "seq_len", "num_q_heads", "head_dim"), q.shape))
            config = {**sizes, "num_kv_heads": k.shape[2], "causal": bool(causal), "sm_scale": q.shape[3] ** -0.5}
            return custom_kernel((q, k, v, config))
    """),
    outwards=_text("""
        def custom_kernel(data):
            q, k, v, config = data
            return podium_called([q, k, v, config["causal"], config["sm_scale"]], [q])[0]
    """),
    scalars={"causal": "causal"},
)

_FMHA = Form(
    problem="fmha",
    name="podium_fmha",
    op_type="gqa_decode",
    description="Attention of one query over 1 to 16 keys for many sequences, bfloat16 in and float16 out. Query head "
    "h reads KV head h // (num_q_heads // num_kv_heads). Exact: float64, rounded once.",
    axes={name: name for name in ("batch_size", "num_q_heads", "num_kv_heads", "head_dim", "kv_seq_len")},
    ones=("one",),
    inputs={
        "q": (("batch_size", "num_q_heads", "one", "head_dim"), "bfloat16"),
        "k": (("batch_size", "num_kv_heads", "kv_seq_len", "head_dim"), "bfloat16"),
        "v": (("batch_size", "num_kv_heads", "kv_seq_len", "head_dim"), "bfloat16"),
        "sm_scale": (None, "float32"),
    },
    outputs={"out": (("batch_size", "num_q_heads", "one", "head_dim"), "float16")},
    reference=_text("""
        import torch


        def run(q, k, v, sm_scale):
            group = q.shape[1] // k.shape[1]
            keys, values = (x.repeat_interleave(group, dim=1) for x in (k, v))
            out = torch.empty(q.shape, dtype=torch.float16, device=q.device)
            for b in range(len(q)):
                scores = q[b].double() @ keys[b].double().mT * q.shape[3] ** -0.5
                out[b] = (scores.softmax(dim=-1) @ values[b].double()).half()
            return out
    """),
    inwards=_text("""
        def podium_run(q, k, v, sm_scale):
            config = {"batch_size": q.shape[0], "num_q_heads": q.shape[1], "num_kv_heads": k.shape[1]}
            config |= {"head_dim": q.shape[3], "kv_seq_len": k.shape[2], "sm_scale": q.shape[3] ** -0.5}
            return custom_kernel((q, k, v, config))
    """),
    outwards=_text("""
        def custom_kernel(data):
            q, k, v, config = data
            return podium_called([q, k, v, config["sm_scale"]], [q.half()])[0]
    """),
    scalars={},
)


def _kv_decode(dtype: str) -> Form:
    cache = ("batch_size", "num_kv_heads", "cache_max_len", "head_dim")
    queries, new = (("batch_size", heads, "q_seq_len", "head_dim") for heads in ("num_q_heads", "num_kv_heads"))
    axes = ("batch_size", "num_q_heads", "num_kv_heads", "q_seq_len", "head_dim", "cache_max_len")
    return Form(
        problem="kv_decode",
        name=f"podium_kv_decode_{dtype}",
        op_type="gqa_decode",
        description="Attention with a KV cache and append. Sequence b holds seq_lens[b] keys; its queries see those "
        "and the new ones (causal: those up to their own). The caches and lengths after the append are outputs of "
        "their own, since a Definition writes nothing in place; in Podium they are written in place. Exact: float64, "
        "rounded once.",
        axes={axis: axis for axis in axes},
        inputs={
            "q": (queries, dtype),
            "k_new": (new, dtype),
            "v_new": (new, dtype),
            "k_cache": (cache, dtype),
            "v_cache": (cache, dtype),
            "seq_lens": (("batch_size",), "int32"),
            "is_causal": (None, "bool"),
            "update_cache": (None, "bool"),
        },
        outputs={
            "out": (queries, dtype),
            "k_cache_after": (cache, dtype),
            "v_cache_after": (cache, dtype),
            "seq_lens_after": (("batch_size",), "int32"),
        },
        reference=_text("""
            import torch


            def run(q, k_new, v_new, k_cache, v_cache, seq_lens, is_causal, update_cache):
                group, queries, dim = q.shape[1] // k_new.shape[1], q.shape[2], q.shape[3]
                out, k_after, v_after, lens_after = (x.clone() for x in (q, k_cache, v_cache, seq_lens))
                for b, length in enumerate(seq_lens.tolist()):
                    keys, values = (
                        torch.cat([old[b, :, :length], new[b]], dim=1).repeat_interleave(group, dim=0).double()
                        for old, new in ((k_cache, k_new), (v_cache, v_new))
                    )
                    scores = q[b].double() @ keys.mT * dim**-0.5
                    if is_causal:
                        seen = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).tril(length)
                        scores = scores.masked_fill(~seen, -torch.inf)
                    out[b] = (scores.softmax(dim=-1) @ values).to(q.dtype)
                    if update_cache:
                        k_after[b, :, length : length + queries] = k_new[b]
                        v_after[b, :, length : length + queries] = v_new[b]
                        lens_after[b] += queries
                return out, k_after, v_after, lens_after
        """),
        inwards=_text("""
            def podium_run(q, k_new, v_new, k_cache, v_cache, seq_lens, is_causal, update_cache):
                after = k_cache.clone(), v_cache.clone(), seq_lens.clone()
                config = {"is_causal": bool(is_causal), "update_cache": bool(update_cache)}
                return (custom_kernel((q, k_new, v_new, *after, config)), *after)
        """),
        outwards=_text("""
            def custom_kernel(data):
                *tensors, config = data
                q, _, _, *state = tensors
                out, *after = podium_called([*tensors, config["is_causal"], config["update_cache"]], [q, *state])
                if config["update_cache"]:
                    for old, new in zip(state, after):
                        old.copy_(new)
                return out
        """),
        scalars={"is_causal": "is_causal", "update_cache": "update_cache"},
        lengths=("seq_lens", "seq_lens"),
        dtype=dtype,
    )


FORMS = [_PREFILL, _FMHA, *map(_kv_decode, ("bfloat16", "float16", "float32"))]
