"""The cases of a problem: the stated ones, and the secret ones that each run draws.

    {batch_size: 4, kv_seq_len: 1024}                                    Case: every run has it
    {count: 2, parameters: {batch_size: {least: 1, most: 4}, ...}}       SecretCases: every run draws two of its own

A submission that is right only for the stated shapes fails on the secret cases, because it cannot know their shapes.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pydantic import Field, model_validator

from harness.model.value import Value

CaseValue = bool | int | float | str | list[int]


class Case(Value):
    """One shape of a problem: every parameter of `generate_input` except the seed and the device."""

    parameters: dict[str, CaseValue]

    @property
    def label(self) -> str:
        """The case's name on boards and in messages: `batch_size=4 kv_seq_len=1024`."""
        return _label(self.parameters)

    @property
    def words(self) -> tuple[str, ...]:
        """The parameters' values that are strings, such as `float16`."""
        return tuple(value for value in self.parameters.values() if isinstance(value, str))

    @property
    def key(self) -> str:
        """The parameters as canonical JSON. Equal cases have equal keys, in whatever order the file lists the
        parameters."""
        return json.dumps(self.parameters, sort_keys=True)


def case_of(label: str) -> Case | None:
    """The case that has this label, or None if the text is not a label or gives a parameter twice. Commas between
    parameters, `true` for `True` and spaces in a list are understood as well."""
    within_lists = re.sub(r"\s+(?=[^\[\]]*\])|(?<=\[)\s+", "", label)
    pairs = [part.rstrip(",").partition("=") for part in within_lists.split()]
    if not pairs or not all(name and equals for name, equals, _ in pairs):
        return None
    if len({name for name, _, _ in pairs}) < len(pairs):
        return None
    return Case(parameters={name: _value(text) for name, _, text in pairs})


def told_apart(cases: Sequence[Case]) -> tuple[list[str], str]:
    """Each case's label without the parameters that all `cases` share, and the label of the shared ones: `q_seq_len=1`.

    If that would leave some case without any parameter, return whole labels and "".
    """
    shared = {
        key: value
        for key, value in (cases[0].parameters if len(cases) > 1 else {}).items()
        if all(key in case.parameters and _plain(case.parameters[key]) == _plain(value) for case in cases)
    }
    own = [_label({key: v for key, v in case.parameters.items() if key not in shared}) for case in cases]
    return (own, _label(shared)) if all(own) else ([case.label for case in cases], "")


class Draw(Value):
    """How to draw one parameter of a secret case. There are four forms:

    - `one_of`: one of these values;
    - `least` and `most`: a whole number from `least` to `most`, both included;
    - with `times`: such a number times the parameter that `times` names;
    - with `each`: a list of such numbers, as many as the value of the parameter that `each` names.
    """

    least: int | None = None
    most: int | None = None
    times: str | None = None
    each: str | None = None
    one_of: list[CaseValue] | None = None

    @model_validator(mode="after")
    def _of_one_kind(self) -> Draw:
        bounds, others = (self.least, self.most), (self.times, self.each)
        if self.one_of is not None:
            if not self.one_of or any(each is not None for each in (*bounds, *others)):
                raise ValueError("one_of lists the values, at least one, and stands alone")
        elif self.least is None or self.most is None or self.least > self.most:
            raise ValueError("give least and most, the bounds of a whole number, or one_of")
        elif all(each is not None for each in others):
            raise ValueError("times and each do not go together")
        return self

    @property
    def refers_to(self) -> str | None:
        """The parameter that must be drawn before this one."""
        return self.times or self.each

    def value(self, number: Callable[[int, int], int], drawn: Mapping[str, CaseValue]) -> CaseValue:
        """Draw a value. `number(n, i)` is the i-th secret number below n. `drawn` holds the parameters drawn before."""
        if self.one_of is not None:
            return self.one_of[number(len(self.one_of), 0)]
        assert self.least is not None and self.most is not None
        span = self.most - self.least + 1
        if self.each is not None:
            return [self.least + number(span, index) for index in range(_whole(drawn[self.each]))]
        factor = 1 if self.times is None else _whole(drawn[self.times])
        return factor * (self.least + number(span, 0))

    def allows(self, value: CaseValue, drawn: Mapping[str, CaseValue]) -> bool:
        """True if `value` could have been drawn."""
        if self.one_of is not None:
            return any(_same(value, each) for each in self.one_of)
        assert self.least is not None and self.most is not None
        if self.each is not None:
            numbers = value if isinstance(value, list) else []
            return len(numbers) == drawn[self.each] and all(self.least <= n <= self.most for n in numbers)
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        factor = 1 if self.times is None else _whole(drawn[self.times])
        return value % factor == 0 and self.least <= value // factor <= self.most

    def refusal(self, value: CaseValue, drawn: Mapping[str, CaseValue]) -> str | None:
        """Complete the sentence "`value` is not ..." for a value that could not have been drawn. None if it could."""
        if self.allows(value, drawn):
            return None
        if self.one_of is not None:
            return f"one of {', '.join(_plain(each) for each in self.one_of)}"
        numbers = f"{self.least} to {self.most}"
        if self.each is not None:
            return f"a list of {self.each} numbers, each {numbers}"
        if self.times is None:
            return f"a whole number from {numbers}"
        multiple = type(value) is int and value % _whole(drawn[self.times]) == 0
        return f"{numbers} times {self.times}" if multiple else f"a multiple of {self.times}"

    @property
    def label(self) -> str:
        """The range in short: `1..4`, `num_kv_heads×1..8`, `[0..200 each batch_size]` or `float32|bfloat16`."""
        if self.one_of is not None:
            return "|".join(_plain(value) for value in self.one_of)
        numbers = f"{self.least}..{self.most}"
        if self.each is not None:
            return f"[{numbers} each {self.each}]"
        return numbers if self.times is None else f"{self.times}×{numbers}"


class SecretCases(Value):
    """`count` cases that every run draws anew. A parameter is a fixed value or a `Draw`. Secret cases are checked,
    never timed."""

    count: int = Field(ge=1)
    parameters: dict[str, Draw | CaseValue]

    @model_validator(mode="after")
    def _drawn_in_order(self) -> SecretCases:
        numbers: set[str] = set()
        for name, given in self.parameters.items():
            wanted = given.refers_to if isinstance(given, Draw) else None
            if wanted is not None and wanted not in numbers:
                raise ValueError(
                    f"{name} is drawn from {wanted}, which must be a whole number above 0 and stand before it"
                )
            times = isinstance(given, Draw) and given.times is not None
            least = [given.least] if isinstance(given, Draw) and times else self.values(name)
            if least and all(type(value) is int and value > 0 for value in least):
                numbers.add(name)
        return self

    @property
    def label(self) -> str:
        """For example `2 x batch_size=1..4 dtype=float32|bfloat16`."""
        return f"{self.count} x {self._ranges(self.parameters)}"

    def _ranges(self, names: Iterable[str]) -> str:
        """For example `batch_size=1..4 dtype=float32|bfloat16`."""
        given = {name: self.parameters[name] for name in names}
        texts = {name: v.label if isinstance(v, Draw) else _plain(v) for name, v in given.items()}
        return " ".join(f"{name}={text}" for name, text in texts.items())

    def case(self, number: Callable[[str, int, int], int]) -> Case:
        """Draw a case. `number(parameter, n, i)` is the i-th secret number below n for `parameter`."""
        drawn: dict[str, CaseValue] = {}
        for name, given in self.parameters.items():
            if isinstance(given, Draw):
                drawn[name] = given.value(lambda n, i, name=name: number(name, n, i), drawn)  # type: ignore[misc]
            else:
                drawn[name] = given
        return Case(parameters=drawn)

    def allows(self, case: Case) -> bool:
        """True if `case` could have been drawn."""
        return case.parameters.keys() == self.parameters.keys() and not self.refusals(case)

    def refusals(self, case: Case) -> list[str]:
        """The reasons why `case` could not have been drawn; none if it could. `case` must have no other parameters than
        this family. Example: `num_q_heads=5 is not a multiple of num_kv_heads`."""
        values, found = case.parameters, []
        for name, given in self.parameters.items():
            other = given.refers_to if isinstance(given, Draw) else None
            if name not in values or (other is not None and other not in values):
                continue
            if isinstance(given, Draw):
                isnt = given.refusal(values[name], values)
            else:
                isnt = None if _same(values[name], given) else _plain(given)
            if isnt is not None:
                found.append(f"{name}={_plain(values[name])} is not {isnt}")
        return found

    def lack(self, case: Case) -> str | None:
        """What `case` must have besides to be one of this family: `scores=plain|large`. None if it lacks nothing, or
        has a parameter that this family has not."""
        if not case.parameters.keys() < self.parameters.keys():
            return None
        return self._ranges(name for name in self.parameters if name not in case.parameters)

    def surplus(self, case: Case) -> str | None:
        """What `case` has that this family has not: `values=outliers`. None if that is nothing, or if a parameter of
        this family is missing."""
        if not case.parameters.keys() > self.parameters.keys():
            return None
        return _label({name: value for name, value in case.parameters.items() if name not in self.parameters})

    def values(self, name: str) -> list[CaseValue]:
        """All values that `name` can have. Empty if they depend on another parameter."""
        given = self.parameters.get(name)
        if not isinstance(given, Draw):
            return [] if given is None else [given]
        if given.one_of is not None:
            return list(given.one_of)
        if given.refers_to is not None:
            return []
        assert given.least is not None and given.most is not None
        return list(range(given.least, given.most + 1))

    def corners(self, names: set[str]) -> Iterator[Case]:
        """Every combination of the values that the parameters `names` can have. A condition on these parameters is
        checked on them."""
        asked = [name for name in self.parameters if name in names]
        for values in itertools.product(*(self.values(name) for name in asked)):
            yield Case(parameters=dict(zip(asked, values, strict=True)))


class Cases(Value):
    """A problem's cases. `Problem.cases` holds those for GPUs; `Problem.cpu` those that a machine without a GPU can do
    in seconds.

    `probed` maps each parameter that test cases state and a benchmark case omits to its values in the test cases. In
    each process that times a benchmark case, one call at a secret place gets inputs with such a value.
    """

    test: tuple[Case, ...]
    benchmark: tuple[Case, ...]
    secret: tuple[SecretCases, ...] = ()
    probed: dict[str, tuple[CaseValue, ...]] = Field(default_factory=dict)

    @property
    def secret_count(self) -> int:
        """The number of secret cases that a run draws."""
        return sum(family.count for family in self.secret)

    def probes(self, benchmark: Case) -> list[Case]:
        """`benchmark` with other inputs of the same shape, such as `scores: large`."""
        own = benchmark.parameters
        values = [(name, value) for name, each in self.probed.items() if name not in own for value in each]
        return [Case(parameters={**own, name: value}) for name, value in values]


def _whole(value: CaseValue) -> int:
    assert isinstance(value, int)  # the catalog has checked it
    return value


def _same(one: CaseValue, other: CaseValue) -> bool:
    """True if the values are equal and of one type: True is not 1."""
    return type(one) is type(other) and one == other


def _label(parameters: Mapping[str, CaseValue]) -> str:
    return " ".join(f"{key}={_plain(value)}" for key, value in parameters.items())


def _plain(value: CaseValue) -> str:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list) else str(value)


def _value(text: str) -> CaseValue:
    """The value that `_plain` printed as this text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = json.loads(text)
    except ValueError:
        return text
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    numbers = isinstance(value, list) and all(type(each) is int for each in value)
    return value if plain or numbers else text
