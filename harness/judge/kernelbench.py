"""A task of KernelBench: the outputs of its Model for secret inputs and secret weights are right.

    weights    from a seed of the run; the worker gets them (`setup`) and builds ModelNew with them
    inputs     get_inputs() with a seed of the call
    expected   Model's outputs; also in float64, if Model can be cast, to estimate the error of float32

An element may differ by KernelBench's tolerance, absolutely (less for outputs below 1) and relatively, plus twice the
error of Model itself against float64 in elements that are not much larger. When a task is opened, zeros and a copy of
an input must be refused; KernelBench's own comparison does not check this.
"""

from __future__ import annotations

import copy
import hashlib
import math
import secrets
import types
from pathlib import Path
from typing import Any

import torch

from harness.catalog import kernelbench, strict_yaml
from harness.errors import InfrastructureError, PodiumError, ProblemError
from harness.judge.canaries import same
from harness.judge.conditions import seed_everything
from harness.judge.copies import copied
from harness.judge.difference import float64, rel_l2
from harness.judge.gpumode import FolderReference
from harness.judge.opinion import Opinion
from harness.judge.reference import members
from harness.model import CHECKER, Case, Problem
from harness.wire.tree import flatten

INPUT_BITS = 31
"""The low bits of a call's seed give its inputs. The bits above give the weights of the run."""

DRAWN = 6
"""Number of inputs drawn to check that inputs and outputs differ. Two losses in float16 are equal once in some
hundreds."""

REPEATS = 1e-3
"""Two outputs within this relative L2 distance count as the same."""

NOISE = 2.0
"""Factor on Model's error against float64: another order of summation may have that error."""

ALIKE = 2
"""An element's error also counts for elements that are smaller by up to this many powers of two."""

MOST_NAMED = 6
"""Members of Model's state that a note names, at most."""

EXPONENTS = 1100
"""Exponents of float64 by torch.frexp lie within plus or minus this number."""


class TaskReference(FolderReference):
    """The reference of such a task. Raises ProblemError if the task's code fails or does not tell right from wrong."""

    _generator = "get_inputs"
    _weight_seed: int | None = None
    _draws = False

    @property
    def has_reference(self) -> bool:
        return True

    def admitted(self, seed: int) -> int:
        """Return the seed with the weights of the first admitted seed: all calls of a run have the same weights."""
        if self._weight_seed is None:
            self._weight_seed = seed >> INPUT_BITS
        return self._weight_seed << INPUT_BITS | seed & (1 << INPUT_BITS) - 1

    def generate(self, case: Case, seed: int) -> Any:
        """Return (inputs, seed of the numbers that forward draws, or None), a form that `expected` and the worker know.

        On a CPU the seed is a tensor, poured with the inputs: a submission that knew it earlier could draw untimed. On
        a GPU it is a number, because the host would have to wait for a tensor.
        """
        self._model_of(case, seed >> INPUT_BITS)
        with self._scope():
            module = self._module_of(case)
            seed_everything(seed & (1 << INPUT_BITS) - 1)
            try:
                with self._called("get_inputs"):
                    drawn = module.get_inputs()
                inputs = [self._cast(each) if isinstance(each, torch.Tensor) else each for each in drawn]
            except (Exception, SystemExit) as error:
                raise self._failed("get_inputs", error) from error
        of_forward = _hashed(seed) if self._draws else None
        return inputs, torch.tensor(of_forward) if self._draws and self._on_cpu else of_forward

    has_setup = True

    def setup(self) -> Any:
        """The data for building ModelNew: (constructor's arguments, state, seed of the weights, precision)."""
        init, model, seed = self._built
        return init, dict(model.state_dict()), seed, self._foreign.precision

    def _asked(self, data: Any, output: Any, limit_s: float, again: bool = False) -> Opinion:
        plain, exact = self._answers(data)
        outputs = members(output)
        if len(outputs) != len(plain):
            return Opinion(False, f"Model.forward gives {len(plain)} outputs; this one gives {len(outputs)}")
        for number, (want, truth, got) in enumerate(zip(plain, exact, outputs, strict=True)):
            which = f"output {number}" if len(plain) > 1 else "the output"
            if (got.shape, got.dtype) != (want.shape, want.dtype):
                due = f"{want.dtype} {tuple(want.shape)}"
                return Opinion(False, f"{which} is {got.dtype} {tuple(got.shape)}; expected {due}")
            far, worst = _far(want, truth, got)
            if far:
                return Opinion(False, f"{far:,} of {want.numel():,} elements of {which} are off, by most at {worst}")
        return Opinion(True, "")

    def reported(self, expected: list[torch.Tensor]) -> Problem:
        known = [(_bound(each), _usual(float64(each))) for each in expected if each.is_floating_point()]
        if not known:
            return self.problem
        bound, most = max(bound for bound, _ in known), max(bound * usual for bound, usual in known)
        shown = self.problem.tolerances[CHECKER][0].model_copy(update={"rtol": bound, "atol": most})
        return self.problem.model_copy(update={"tolerances": {CHECKER: (shown,)}})

    @property
    def _dtype(self) -> torch.dtype | None:
        return getattr(torch, self._foreign.precision) if self._foreign.precision else None

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move an input to the judge's device. Floating-point inputs get the requested precision."""
        return tensor.to(self.torch_device, self._dtype if tensor.is_floating_point() else None)

    @property
    def _source(self) -> Path:
        return self._foreign.path

    def _imported(self) -> Any:
        self._modules: dict[str, Any] = {}
        self._built: Any = None
        self._built_for: tuple[str, int] | None = None
        return None

    def _module_of(self, case: Case) -> Any:
        """The task's module with the case's constants."""
        if case.key not in self._modules:
            path = self._foreign.path
            tree = kernelbench.with_constants(strict_yaml.read_text(path), dict(case.parameters))
            module = types.ModuleType("kernelbench_task")
            module.__file__ = str(path)
            try:
                with self._called("the import"):
                    exec(compile(tree, str(path), "exec"), vars(module))
            except (Exception, SystemExit) as error:
                raise self._failed("the module", error) from error
            self._modules[case.key] = module
        return self._modules[case.key]

    def _model_of(self, case: Case, seed: int) -> None:
        if self._built_for == (case.key, seed):
            return
        with self._scope():
            module = self._module_of(case)
            try:
                torch.manual_seed(seed)
                with self._called("get_init_inputs"):
                    init = module.get_init_inputs()
                torch.manual_seed(seed)
                with self._called("Model"):
                    model = module.Model(*init).to(self.torch_device)
                model = model.to(self._dtype) if self._dtype is not None else model
            except (Exception, SystemExit) as error:
                raise self._failed("Model", error) from error
        self._built, self._built_for = (list(init), model, seed), (case.key, seed)

    def _answer(self, data: Any) -> Any:
        return self._forward(self._built[1], data)

    def _answers(self, data: Any) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Model's outputs, plain and in float64. Both are plain if Model cannot be cast or draws numbers, which differ
        in float64."""
        plain = members(self._forward(self._built[1], data))
        if self._draws:
            return plain, plain
        try:
            model = copy.deepcopy(self._built[1]).double()
            exact = members(self._forward(model, (copied(data[0], torch.float64), data[1]), keeps_state=True))
        except ProblemError:
            exact = plain
        cast = len(exact) == len(plain) and all(e.shape == p.shape for e, p in zip(exact, plain))
        return plain, exact if cast else plain

    def _forward(self, model: Any, data: Any, keeps_state: bool = False) -> Any:
        """Run Model on a copy of the inputs. Unless it `keeps_state`, the model is copied too, because it may change
        its buffers."""
        inputs, seed = copied(data)
        with self._scope(), torch.no_grad():
            if seed is not None:
                torch.manual_seed(int(seed))
            try:
                own = model if keeps_state else copy.deepcopy(model)
                with self._called("Model.forward"):
                    found = own(*inputs)
            except (Exception, SystemExit) as error:
                raise self._failed("Model.forward", error) from error
        if not all(isinstance(member, torch.Tensor) for member in members(found)):
            raise ProblemError(f"{self._foreign.path}: Model.forward returns something that is no tensor")
        if any(member.is_complex() for member in members(found)):
            raise ProblemError(f"{self._foreign.path}: Model.forward gives complex numbers, which are not judged")
        return found

    def _put_canaries(self) -> None:
        path, case = self._foreign.path, self._cases.test[0]
        seeds = [secrets.randbits(INPUT_BITS) for _ in range(DRAWN)]
        data, *others = (self.generate(case, seed) for seed in seeds)
        drawn = self.leaves(data[0])
        if not same(drawn, self.leaves(self.generate(case, seeds[0])[0])):
            raise ProblemError(f"{path}: get_inputs draws other inputs from the same seed: no run could be repeated")
        if all(same(drawn, self.leaves(other[0])) for other in others):
            raise ProblemError(f"{path}: get_inputs draws the same inputs from two seeds")
        try:
            flatten(self.setup(), ["argument", "state", "seed", "precision"])
        except TypeError as error:
            raise ProblemError(f"{path}: Model: {error}") from None
        self._note_what_is_constant()
        inputs = data[0]
        first, again, otherwise = (members(self._forward(self._built[1], (inputs, seed))) for seed in (1, 1, 2))
        if not _near(first, again):
            raise ProblemError(f"{path}: forward gives other outputs for the same inputs and the same seed")
        if not _near(first, self._twice(inputs)):
            raise ProblemError(f"{path}: forward gives other outputs in its second call: no call can be checked alone")
        elsewhere = (members(self._forward(self._built[1], (other[0], 1))) for other in others)
        if all(same(self.leaves(first), self.leaves(outputs)) for outputs in elsewhere):
            raise ProblemError(f"{path}: forward gives the same outputs for other inputs: a constant would be right")
        self._draws = not _near(first, otherwise) or (
            same(self.leaves(first), self.leaves(again)) and not same(self.leaves(first), self.leaves(otherwise))
        )
        fault = self._fault_of_checker(case, (inputs, 1))
        if fault is not None:
            raise ProblemError(f"{path}: {fault.replace('check_implementation', 'the comparison with Model')}")

    def _note_what_is_constant(self) -> None:
        """Note the weights that no seed changes, such as the initial ones of a LayerNorm: they are not secret."""
        state = self._built[1].state_dict()
        drawn = {name: t for name, t in state.items() if t.is_floating_point() and t.itemsize > 1 and t.numel() > 1}
        alike = [name for name, t in drawn.items() if bool((t == t.flatten()[0]).all())]
        if alike:
            more = f" and {len(alike) - MOST_NAMED} more" if len(alike) > MOST_NAMED else ""
            whatever = "begin with one value in all elements: a ModelNew that leaves them out may be right"
            self.notes += (f"In Model's state {', '.join(alike[:MOST_NAMED])}{more} {whatever}.",)

    def _twice(self, inputs: Any) -> tuple[torch.Tensor, ...]:
        """The outputs of a model's second call."""
        model = copy.deepcopy(self._built[1])
        return [members(self._forward(model, (inputs, 1), keeps_state=True)) for _ in range(2)][1]

    def _failed(self, what: str, error: BaseException) -> Exception:
        if isinstance(error, PodiumError):
            return error
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return InfrastructureError(f"{self.problem.name}: no memory left for {what}: {error}")
        return ProblemError(f"{self._foreign.path}: {what} failed: {type(error).__name__}: {error}")


def _hashed(seed: int) -> int:
    """A seed that does not reveal `seed`."""
    return int.from_bytes(hashlib.blake2b(f"forward {seed}".encode(), digest_size=7).digest(), "big")


def _near(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
    """Whether both are the same except for the order of summation."""
    if [t.shape for t in one] != [t.shape for t in other]:
        return False
    return all(rel_l2(a.contiguous(), b.contiguous()) < REPEATS for a, b in zip(one, other, strict=True))


def _bound(want: torch.Tensor) -> float:
    return kernelbench.TOLERANCE if want.itemsize >= 4 else kernelbench.HALF_TOLERANCE


def _usual(exact: torch.Tensor) -> float:
    """The root mean square of its elements, at most 1. The absolute part of the bound is scaled by it."""
    finite = exact.isfinite()
    return min(float(exact[finite].square().mean().sqrt()), 1.0) if bool(finite.any()) else 1.0


def _far(want: torch.Tensor, truth: torch.Tensor, got: torch.Tensor) -> tuple[int, str]:
    """The number of elements that differ by more than allowed, and the worst of them in words."""
    if not want.is_floating_point():
        wrong = want != got
        return int(wrong.sum()), _in_words(wrong, (got.double() - want.double()).abs(), got, want)
    exact, mine, theirs = float64(truth), float64(want), float64(got)
    bound, finite = _bound(want), exact.isfinite()
    allowed = bound * _usual(exact) + bound * exact.abs() + NOISE * _noise(exact, mine)
    same = (theirs == mine) | (theirs.isnan() & mine.isnan())
    near = finite & ((theirs - exact).abs() <= allowed)  # without `finite` any number would be within an infinite bound
    wrong = ~same & ~near
    times = ((theirs - exact).abs() / allowed).nan_to_num(nan=math.inf, posinf=math.inf)
    return int(wrong.sum()), _in_words(wrong, times, theirs, exact, allowed)


def _in_words(
    wrong: torch.Tensor,
    by: torch.Tensor,
    got: torch.Tensor,
    due: torch.Tensor,
    allowed: torch.Tensor | None = None,
) -> str:
    """Name the place and values of the `wrong` element with the largest `by`, and its bound."""
    if not bool(wrong.any()):
        return ""
    flat = int(torch.where(wrong, by.double(), -1.0).argmax())
    place = ", ".join(str(int(index)) for index in torch.unravel_index(torch.tensor(flat), wrong.shape))
    within = "" if allowed is None else f", within {float(allowed.flatten()[flat]):.3g}"
    values = (tensor.flatten()[flat].item() for tensor in (got, due))
    mine, right = (f"{value:.8g}" if isinstance(value, float) else str(value) for value in values)
    return f"[{place}]: got {mine}, due {right}{within}"


def _noise(exact: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
    """For each element, Model's largest error against `exact` (in float64) among elements of about its size or smaller.
    About its size: up to ALIKE powers of two above it or the median. So errors of a few large elements excuse no
    others."""
    off = (mine - exact).abs()
    known = off.isfinite()
    exponents = torch.where((exact != 0) & known, torch.frexp(exact).exponent, -EXPONENTS).long() + EXPONENTS
    worst = torch.zeros(2 * EXPONENTS, dtype=torch.float64, device=exact.device)
    worst = worst.scatter_reduce(0, exponents.flatten(), off.where(known, 0.0).flatten(), "amax").cummax(0).values
    nonzero = exponents[exponents > 0]
    middle = int(nonzero.median()) if nonzero.numel() else 0
    return worst[(exponents.clamp(min=middle) + ALIKE).clamp(max=2 * EXPONENTS - 1)]
