"""Many submissions at once, and a server that is killed: a small form of bench/server_load.py."""

import random

import pytest

pytest.importorskip("fastapi")

from bench.server_load import load, prepare


@pytest.fixture
def root(tmp_path):
    prepare(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_killed_at_random_moments_the_server_loses_nothing_and_stores_nothing_twice(root):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    found = load(root, 60, 4, kills=3, seed=seed)
    assert (len(found.accepted), found.kills) == (60, 3)


def test_many_at_once_are_each_judged_once_and_in_everyones_order(root):
    assert len(load(root, 60, 12).accepted) == 60
