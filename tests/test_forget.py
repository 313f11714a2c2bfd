"""`forget` removes what is named or old, with its sources, and nothing else; published runs stay."""

import json

import pytest

from harness.cli import main
from harness.errors import UsageError
from harness.records.store import Store
from harness.verbs import forget as forgetting
from tests.test_store import SUBMISSION, make_run

SHAS = {name: (hex(number)[2:] * 64)[:64] for number, name in enumerate(("mine", "other", "tried"), 10)}


@pytest.fixture
def root(tmp_path):
    """Runs of three submissions: `mine` has two of one source, one of them published as well as local."""
    for number, (name, date, tier) in enumerate(
        [
            ("mine", "2020-01-01", "local"),
            ("mine", "2020-01-02", "published"),
            ("mine", "2099-01-01", "local"),
            ("other", "2020-01-01", "local"),
            ("tried", "2099-01-02", "local"),
        ]
    ):
        run = make_run(
            f"{date.replace('-', '')}T000000-{number:06}-{name}",
            submission=name,
            submission_path=f"{name}.py",
            submission_sha256=SHAS[name],
            started_at=f"{date}T00:00:00.000+00:00",
        )
        Store(tmp_path).write(run, SUBMISSION.model_copy(update={"sha256": SHAS[name]}), tier)
    return tmp_path


@pytest.fixture
def podium(root, capsys):
    def run(*arguments):
        code = main(["--root", str(root), *arguments])
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return run


def stored(root, tier="local"):
    """The numbers of the runs that are there, and the sources."""
    runs = sorted(int(path.stem.split("-")[1]) for path in root.glob(f"results/{tier}/double/test-1000/*.json"))
    sources = {path.stem for path in root.glob(f"results/{tier}/double/sources/*.py")}
    return runs, {name for name, sha256 in SHAS.items() if sha256 in sources}


@pytest.mark.parametrize(
    ("arguments", "left", "sources"),
    [
        (["20200101T000000-000003-other"], [0, 2, 4], {"mine", "tried"}),
        (["20200101T000000-000003"], [0, 2, 4], {"mine", "tried"}),
        (["20200101T000000-000000-mine"], [2, 3, 4], {"mine", "other", "tried"}),
        (["mine"], [3, 4], {"mine", "other", "tried"}),  # the published run has that source, too
        (["other", "tried"], [0, 2], {"mine"}),
        (["--older-than", "52w"], [2, 4], {"mine", "tried"}),
        (["mine", "--older-than", "30d"], [2, 3, 4], {"mine", "other", "tried"}),
        (["tried", "--older-than", "1h"], [0, 2, 3, 4], {"mine", "other", "tried"}),
    ],
)
def test_what_is_named_and_old_enough_is_removed_and_nothing_else(podium, root, arguments, left, sources):
    published = stored(root, "published")
    before = set(root.rglob("*.json"))
    code, out, err = podium("forget", *arguments, "--dry-run")
    assert code == 0 and stored(root) == ([0, 2, 3, 4], {"mine", "other", "tried"})
    assert f"{len(out.splitlines())} run" in err and "would be removed" in err
    assert podium("forget", *arguments)[:2] == (0, out)
    assert stored(root) == (left, sources) and stored(root, "published") == published
    assert {str(path.relative_to(root)) for path in before - set(root.rglob("*.json"))} == set(out.splitlines())
    assert not any(name in podium("show")[1] for name in out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "forget what?"),
        (["20200102T000000-000001-mine"], "came with the checkout, in results/published"),
        (["20200101"], "could be any of 2 runs"),
        (["mien"], "did you mean mine?"),
        ([""], "one of the words is empty"),
        (["202"], "202 is too short to name a run"),
        (["2020"], "could be any of 3 runs"),  # one of them published
        (["mine", "--older-than", "soon"], "'soon' is not an age"),
        (["mine", "nobody"], "there is no run nobody"),
    ],
)
def test_a_name_that_stands_for_no_run_of_one_s_own_removes_nothing(podium, root, arguments, said):
    code, out, err = podium("forget", *arguments)
    assert (code, out) == (2, "") and said in err
    assert stored(root)[0] == [0, 2, 3, 4] and stored(root, "published")[0] == [1]


def test_a_run_that_a_server_judged_stays_and_it_is_said_what_removes_it(podium, root):
    run = make_run("20200101T000000-j7a1-ada.mine", submission="ada.mine", submission_path="kv/ada/mine.py")
    Store(root).write(run, SUBMISSION, "local")
    (stored_as,) = root.glob("results/local/*/*/20200101T000000-j7a1-ada.mine.json")
    for name in ("ada.mine", run.id, "20200101T000000-j7"):
        code, out, err = podium("forget", name, "other")
        assert (code, out) == (2, "") and "`user remove NUMBER --reason TEXT`" in err
    assert stored_as.exists() and list(root.glob("results/local/*/*/*-other.json")), "nothing is removed"
    code, out, _ = podium("forget", "--older-than", "52w")
    assert code == 0 and "j7a1" not in out and stored_as.exists() and "-other" in out


def test_a_file_that_is_no_run_any_more_is_forgotten_by_what_it_is_called(podium, root):
    (spoilt,) = root.glob("results/local/double/test-1000/*-other.json")
    spoilt.write_text("{")
    assert podium("forget", "--older-than", "1d")[1].count("\n") == 1 and spoilt.exists()
    assert podium("forget", "other")[1] == f"{spoilt.relative_to(root)}\n" and not spoilt.exists()
    assert "Left alone" not in podium("show")[1]


def test_of_a_submission_all_runs_are_forgotten_with_those_that_were_spoilt(podium, root):
    spoilt = sorted(root.glob("results/local/double/test-1000/*-mine.json"))[0]
    spoilt.write_text("{")
    assert podium("forget", "mine")[0] == 0
    assert not spoilt.exists() and not list(root.glob("results/local/double/test-1000/*-mine.json"))


@pytest.mark.parametrize("name", ["e", "evil", "evidence-of-everythin"])
def test_a_beginning_takes_no_file_that_is_no_run(podium, root, name):
    evidence = next(root.glob("results/local/double/test-1000")) / "evidence-of-everything.json"
    evidence.write_text("{}")
    code, out, err = podium("forget", name)
    assert (code, out) == (2, "") and f"there is no run {name}" in err and evidence.exists()
    assert podium("forget", evidence.stem)[0] == 0 and not evidence.exists(), "its whole name means it"


def test_a_submission_s_file_stands_for_all_of_its_runs_wherever_its_path_is_written_from(podium, root, monkeypatch):
    (root / "mine.py").write_text("its source may have changed since")
    monkeypatch.chdir(root.parent)
    assert podium("forget", f"{root.name}/other.py")[0] == 2
    assert podium("forget", f"{root.name}/mine.py")[1].count("\n") == 4 - 2
    assert stored(root)[0] == [3, 4] and stored(root, "published")[0] == [1]


def test_ages_are_hours_days_or_weeks():
    hours = {text: forgetting.age(text).total_seconds() / 3600 for text in ("30d", "12h", "2w")}
    assert hours == {"30d": 720, "12h": 12, "2w": 336}
    for text in ("", "d", "-1d", "1.5d", "1m", "999999d", "3 d", "3"):
        with pytest.raises(UsageError):
            forgetting.age(text)


def test_an_age_without_a_unit_is_refused_by_a_sentence_that_names_them_and_nothing_is_lost(podium, root):
    before = stored(root)
    code, out, err = podium("forget", "--older-than", "3")
    assert (code, out) == (2, "") and "3 has no unit" in err and "3d means days, 3h hours, 3w weeks" in err
    assert stored(root) == before


def test_a_run_that_says_it_is_of_a_folder_elsewhere_takes_no_source_from_there(podium, root):
    (path,) = root.glob("results/local/double/test-1000/*-000004-*.json")
    said = json.loads(path.read_text()) | {"problem": "../published/double", "submission_sha256": SHAS["mine"]}
    path.write_text(json.dumps(said))
    assert podium("forget", "tried")[0] == 0 and not path.exists()
    assert (root / f"results/published/double/sources/{SHAS['mine']}.py").exists()


def test_beside_a_file_that_cannot_be_read_no_source_goes(podium, root):
    (path,) = root.glob("results/local/double/test-1000/*-000003-*.json")
    path.with_name("20990101T000000-000009-newer.json").write_text(path.read_text().replace(":2,", ":99,", 1))
    assert podium("forget", "20200101T000000-000003")[0] == 0 and not path.exists()
    assert "other" in stored(root)[1]
