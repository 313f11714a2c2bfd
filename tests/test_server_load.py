"""Many submissions at once, and a server that is killed: a small form of bench/server_load.py."""

import random

import pytest

pytest.importorskip("fastapi")

from databases import Postgres, programs

from bench.server_load import load, prepare


@pytest.fixture
def root(tmp_path):
    prepare(tmp_path)
    return tmp_path


@pytest.mark.slow(ci=True)
def test_killed_at_random_moments_the_server_loses_nothing_and_stores_nothing_twice(root):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    found = load(root, 60, 4, kills=3, seed=seed)
    assert (len(found.accepted), found.kills) == (60, 3)


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_many_at_once_are_each_judged_once_and_in_everyones_order(root, database):
    if database == "sqlite":
        assert len(load(root, 60, 12).accepted) == 60
        return
    if programs() is None:
        pytest.skip("postgresql is not installed")
    pytest.importorskip("psycopg")
    postgres = Postgres()
    try:
        assert len(load(root, 60, 12, database=postgres.url).accepted) == 60
    finally:
        postgres.close()
