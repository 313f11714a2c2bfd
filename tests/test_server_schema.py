"""Whatever the server's own OpenAPI document allows, and much that it does not, is answered without a 500."""

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("schemathesis")

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from served import TOKEN, Server


@pytest.mark.slow(ci=True)
def test_no_request_that_schemathesis_makes_ends_in_a_500(toy_root):
    server = Server(toy_root)
    client = server.person("ada")
    server.judged(client)
    headers = {"X-Popcorn-Cli-Id": client, "Authorization": f"Bearer {TOKEN}"}
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    tried, bad = 0, []
    try:
        for operation in schema.get_all_operations():
            operation = operation.ok()
            if "events" in operation.path or "live" in operation.path:  # a stream of events, which does not end
                continue

            @settings(
                max_examples=15, deadline=None, database=None, phases=[Phase.generate], derandomize=True,
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(case=operation.as_strategy())
            def attempt(case):
                nonlocal tried
                answer = case.call(headers=headers, timeout=60)
                tried += 1
                if answer.status_code >= 500 and answer.status_code != 503:
                    bad.append((case.method, case.formatted_path, answer.status_code, answer.text[:200]))

            attempt()
    finally:
        server.close()
    print(f"{tried} requests")
    assert tried > 100
    assert not bad, bad[:5]
