"""What is wrong with a YAML file is said in one ProblemError, with file, line or key, and the nearest one."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from harness.catalog import strict_yaml
from harness.catalog.config import load_config
from harness.errors import ProblemError
from harness.model import Tolerance


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    depth: int = Field(ge=0)


class Document(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str
    inner: Inner | None = None
    many: list[Inner] = []
    named: dict[str, Inner] = {}
    tolerances: dict[str, Tolerance | list[Tolerance]] = {}


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "some.yml"
        path.write_text(text)
        return strict_yaml.read(path, Document)

    return read


def complaint(read, text):
    with pytest.raises(ProblemError) as caught:
        read(text)
    message = str(caught.value)
    assert "some.yml" in message
    return message


def test_a_good_document_is_read(read):
    document = read("title: x\ninner: {depth: 3}\nmany: [{depth: 0}]")
    assert (document.title, document.inner.depth, document.many[0].depth) == ("x", 3, 0)


@pytest.mark.parametrize(
    "text, said",
    [
        ("title: x\nnamd: {}", ["unknown key namd", "did you mean named?"]),
        ("title: x\ninner: {depth: 1, dept: 1}", ["unknown key inner.dept", "did you mean depth?"]),
        ("title: x\nmany: [{depth: 1}, {depht: 1, depth: 1}]", ["unknown key many.1.depht", "did you mean depth?"]),
        ("title: x\nnamed: {a: {depthh: 1, depth: 1}}", ["unknown key named.a.depthh", "did you mean depth?"]),
        ("title: x\ntolerances: {a: {rel_l3: 1}}", ["unknown key tolerances.a.rel_l3", "did you mean rel_l2?"]),
        ("inner: {depth: 1}", ["title is missing"]),
        ("title: x\nmany: [5]", ["many.0: must be keys with values, such as {depth: ...}"]),
        ("title: x\nnamed: [5]", ["named: must be keys with values"]),
        ("[5]", ["the document: must be keys with values, such as {title: ...}"]),
        ("title: x\ninner: {depth: a}", ["inner.depth: must be a valid integer"]),
        ("title: x\ninner: {}", ["inner.depth is missing"]),
        ("title: x\ninner: {depth: -1}", ["inner.depth", "greater than or equal to 0"]),
        ("title: x\ntolerances: {a: {rtol: 1}}", ["tolerances.a", "limits nothing"]),
        ("title: x\ntolerances: {a: {bitwise: true, rel_l2: 1}}", ["tolerances.a", "bitwise allows no difference"]),
        ("title: x\ntolerances: {a: {rel_l2: .nan}}", ["tolerances.a.rel_l2", "finite"]),
        ("", ["title is missing"]),
        ("- 1", ["the document: must be keys with values"]),
        ("title: [", ["line 1"]),
        ("title: x\n\x00", ["special characters"]),
        ("title: *nowhere", ["line 1", "undefined alias"]),
        ("title: !!python/object:os.system x", ["line 1", "could not determine a constructor"]),
    ],
)
def test_a_fault_is_named(read, text, said):
    message = complaint(read, text)
    assert all(words in message for words in said), message


@pytest.mark.parametrize("text, key", [("titel: x", "titel"), ("title: x\ninner: {dept: 1}", "inner.dept")])
def test_a_misspelt_key_that_is_required_is_named_as_it_was_written(read, text, key):
    assert f"unknown key {key}" in complaint(read, text)


def test_an_unknown_key_with_nothing_near_it_gets_no_guess(read):
    assert "did you mean" not in complaint(read, "title: x\nqqqqqqqq: 1")


@pytest.mark.parametrize(
    "text, line, key", [("title: x\n\ntitle: y", 3, "title"), ("title: x\ninner:\n  depth: 1\n  depth: 2", 4, "depth")]
)
def test_a_key_given_twice_is_named_with_its_line(read, text, line, key):
    message = complaint(read, text)
    assert f"line {line}:" in message and f"'{key}' is given twice" in message


def test_the_same_key_in_two_mappings_is_not_twice(read):
    assert len(read("title: x\nmany: [{depth: 1}, {depth: 1}]").many) == 2


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ProblemError, match=r"nowhere\.yml is missing"):
        strict_yaml.read(tmp_path / "nowhere.yml", Document)


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "bytes.yml").write_bytes(b"title: \xff\xfe")
    with pytest.raises(ProblemError, match=r"bytes\.yml cannot be read: byte 7 is not UTF-8$"):
        strict_yaml.read(tmp_path / "bytes.yml", Document)


def test_a_directory_in_place_of_a_file_is_named(tmp_path):
    with pytest.raises(ProblemError, match=r"cannot be read: Is a directory$"):
        strict_yaml.read_text(tmp_path)


SAFE_YAML = st.text("ab:-{}[],#'\" \n", max_size=40)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SAFE_YAML)
def test_punctuation_raises_nothing_but_a_problem_error(tmp_path, text):
    path = tmp_path / "some.yml"
    path.write_text("title: x\n" + text.replace("? ", "").replace("{[", "{").replace("{{", "{"))
    try:
        strict_yaml.read(path, Document)
    except ProblemError as error:
        assert "some.yml" in error.message
    except TypeError as error:
        assert "unhashable" in str(error)  # the next test's fault, reported there


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{[1, 2]: 3}", id="a list as a key"),
        pytest.param("? {a: b}\n: 1", id="a mapping as a key"),
        pytest.param("title: 2026-99-99", id="a date that does not exist"),
        pytest.param("title: !!int x", id="a tag that does not fit"),
        pytest.param("title: " + "1" * 5000, id="a number of 5000 digits"),
        pytest.param("title: " + "[" * 1000, id="1000 brackets"),
    ],
)
def test_what_the_yaml_library_chokes_on_is_a_problem_error(read, text):
    complaint(read, text)


@pytest.mark.parametrize("entry, key", [("{rel_l3: 1}", "rel_l3"), ("{rel_l2: -1}", "rel_l2")])
def test_a_fault_in_a_list_of_tolerances_is_named(read, entry, key):
    assert key in complaint(read, f"title: x\ntolerances: {{a: [{entry}]}}")


def test_a_key_that_starts_with_bool_is_named_whole(read):
    assert "named.bool_mask.depth" in complaint(read, "title: x\nnamed: {bool_mask: {}}")


def test_the_shipped_configuration_is_good(pytestconfig):
    config = load_config(pytestconfig.rootpath)
    assert config.cpu.min_samples <= config.cpu.max_samples and config.gpu.min_samples <= config.gpu.max_samples


def test_a_misspelt_count_in_eval_yml_is_named(toy_root):
    path = toy_root / "configs" / "eval.yml"
    path.write_text(path.read_text().replace("warmup_calls", "warm_up_calls", 1))
    with pytest.raises(ProblemError, match=r"unknown key cpu\.warm_up_calls: did you mean warmup_calls\?|cpu\.warmup"):
        load_config(toy_root)


def test_quick_changes_the_processes_and_nothing_else(toy_root):
    config = load_config(toy_root)
    full, quick = config.sampling("cpu", quick=False), config.sampling("cpu", quick=True)
    assert full.processes == 2 and quick.processes == 1
    assert full.model_copy(update={"processes": 1}) == quick
    assert config.sampling("cuda", quick=False) == config.gpu == config.sampling("rocm", quick=False)


@pytest.mark.parametrize(
    "pilot_ns, judging_s, count",
    [
        *((pilot_ns, 1e-9, count) for pilot_ns, count in [(1, 3), (4e6, 2), (1e12, 2), (3.6e6, 2), (3.3e6, 3)]),
        *((1, judging_s, count) for judging_s, count in [(0.3, 3), (0.34, 2), (0.6, 2), (1e9, 2)]),
    ],
)
def test_a_case_is_sampled_as_often_as_its_budgets_allow_within_bounds(toy_root, pilot_ns, judging_s, count):
    assert load_config(toy_root).cpu.samples_for(pilot_ns, judging_s) == count


def test_a_minimum_above_the_maximum_is_refused(toy_root):
    path = toy_root / "configs" / "eval.yml"
    path.write_text(path.read_text().replace("min_samples: 2", "min_samples: 9"))
    with pytest.raises(ProblemError):
        load_config(toy_root)
