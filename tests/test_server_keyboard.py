"""The live board by the keyboard alone, in a real Chromium: all is reached, seen when it is, and stays where it is."""

import itertools
import re

import pytest

pytest.importorskip("fastapi")

import served
from boards import Browser, store
from test_server_board import BOARD, DOUBLE, shown

from harness import catalog
from harness.server.events import Event

pytestmark = pytest.mark.slow(ci=True)

CAN_BE_REACHED = """() => [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]')]
    .filter(part => part.checkVisibility() && part.type !== 'hidden').map(NAME)"""
HAS_FOCUS = """() => {
    const part = document.activeElement, box = part.getBoundingClientRect(), style = getComputedStyle(part);
    const x = Math.max(1, Math.min(box.left + box.width / 2, innerWidth - 1));
    const y = Math.max(1, Math.min(box.top + Math.min(box.height / 2, 8), innerHeight - 1));
    const there = document.elementFromPoint(x, y);
    return {
        name: (NAME)(part), body: part === document.body,
        ringed: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
        inWindow: box.width > 0 && box.right > 0 && box.bottom > 0 && box.left < innerWidth && box.top < innerHeight,
        onTop: part.contains(there) || (there !== null && there.contains(part)),
        lower: Math.round(box.top + scrollY),
    };
}"""
NAME = """part => [
    part.tagName, part.getAttribute('href') || part.getAttribute('name') || part.getAttribute('aria-label') || '',
    part.textContent.trim().slice(0, 40),
].join(' ')"""


@pytest.fixture
def server(toy_root, monkeypatch):
    sha256 = catalog.load_problem(toy_root, "double").sha256
    judged = served.run_of
    monkeypatch.setattr(
        served,
        "run_of",
        lambda request, times=0: judged(request, times).model_copy(update={"problem_sha256": sha256}),
    )
    started = served.Server(toy_root, double=DOUBLE)
    yield started
    started.close()


@pytest.fixture
def opened(server, chromium):
    """Somebody who has signed in, by the keyboard, in a window of a width."""

    def open_(width=1200):
        context = chromium.new_context(viewport={"width": width, "height": 800})
        page = context.new_page()
        page.goto(f"{server.url}/sign-in")
        tab_to(page, "INPUT client")
        page.keyboard.type(server.person("ada"))
        page.keyboard.press("Enter")
        page.wait_for_url(lambda address: "/sign-in" not in address)
        return page

    return open_


def focus(page):
    return page.evaluate(HAS_FOCUS.replace("NAME", NAME))


def tab_to(page, wanted):
    """Press Tab until what begins so has the focus."""
    seen = []
    for _ in range(200):
        page.keyboard.press("Tab")
        seen.append(focus(page)["name"])
        if seen[-1].startswith(wanted):
            return
    raise AssertionError((wanted, seen))


def scene(server):
    """Runs of every kind that pages show, and the addresses of all kinds of pages."""
    client = server.person("ada")
    run, other = store(server.root, "fast", 1000.0), store(server.root, "slow", 2000.0)
    for number in range(55):
        store(server.root, f"another_{number}", 3000.0 + number)
    number = server.judged(client)["id"]
    shown(Browser(server.port), BOARD, "Page 1 of 2")
    pages = ["/", BOARD, f"/run/{run.id}", f"/compare/{run.id}/{other.id}", "/mine", "/submit", f"/submission/{number}"]
    return [*pages, "/nothing"]


@pytest.mark.parametrize("width", [1200, pytest.param(390, marks=pytest.mark.slow)])
def test_tab_reaches_everything_in_the_order_of_the_page_and_shows_where_it_is(server, opened, width):
    addresses = scene(server)
    page = opened(width)
    for address in addresses:
        page.goto(server.url + address)
        due = page.evaluate(CAN_BE_REACHED.replace("NAME", NAME))
        reached = []
        for _ in due:
            page.keyboard.press("Tab")
            found = focus(page)
            assert found["ringed"] and found["inWindow"] and found["onTop"], (address, found)
            reached.append(found["name"])
        assert reached == due, address
        page.keyboard.press("Tab")
        assert focus(page)["body"] or focus(page)["name"] == due[0], address  # nothing holds the focus


@pytest.mark.parametrize("width", [1200, pytest.param(390, marks=pytest.mark.slow)])
def test_in_the_head_the_focus_never_goes_up_the_page(server, opened, width):
    page = opened(width)
    page.goto(server.url)
    tab_to(page, "A / Podium")
    heights = [focus(page)["lower"]]
    for _ in range(5):
        page.keyboard.press("Tab")
        heights.append(focus(page)["lower"])
    assert all(below >= above - 24 for above, below in itertools.pairwise(heights)), heights


def test_the_first_stop_skips_the_head(server, opened):
    page = opened()
    page.goto(server.url + "/submit")
    page.keyboard.press("Tab")
    assert focus(page)["name"] == "A #main Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert focus(page)["name"].startswith("SELECT competition")


def test_a_board_is_filtered_ordered_and_turned_over_without_a_mouse(server, opened):
    scene(server)
    page = opened()
    page.goto(server.url + BOARD)
    tab_to(page, "INPUT q")
    page.keyboard.type("slow")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=slow**")
    assert page.locator(".board tbody tr").count() == 1
    page.goto(server.url + BOARD)
    tab_to(page, "SELECT sort")
    page.keyboard.type("name")
    tab_to(page, "BUTTON")
    page.keyboard.press("Enter")
    page.wait_for_url("**sort=name**")
    assert page.locator("[aria-sort]").text_content() == "submission"
    page.goto(server.url + BOARD)
    tab_to(page, "A " + page.locator(".sort", has_text="age").get_attribute("href"))
    page.keyboard.press("Enter")
    page.wait_for_url("**sort=age**")
    tab_to(page, "A " + page.locator("[rel=next]").get_attribute("href"))
    page.keyboard.press("Enter")
    page.wait_for_url("**page=2**")
    assert "Page 2 of 2" in page.content()


def test_the_table_of_a_chart_opens_without_a_mouse(server, opened):
    scene(server)
    page = opened()
    page.goto(server.url + BOARD)
    tab_to(page, "SUMMARY  Table: best over time")
    page.keyboard.press("Enter")
    assert page.locator("figure details[open] table").first.is_visible()


def test_a_file_is_submitted_without_a_mouse_and_can_be_deleted(server, opened, tmp_path):
    (tmp_path / "mine.py").write_text(served.RIGHT)
    page, choosers = opened(), []
    page.on("filechooser", lambda chooser: choosers.append(chooser))
    page.goto(server.url + "/submit")
    tab_to(page, "SELECT mode")
    page.keyboard.type("leaderboard")
    tab_to(page, "INPUT file")
    page.keyboard.press("Enter")
    served.until(lambda: choosers or page.wait_for_timeout(50))
    choosers[0].set_files(tmp_path / "mine.py")
    tab_to(page, "BUTTON  Submit")
    page.keyboard.press("Enter")
    page.wait_for_url("**/submission/*")
    page.locator("[data-state]", has_text=re.compile("Succeeded")).wait_for()
    tab_to(page, "BUTTON  Delete")
    page.keyboard.press("Enter")
    page.wait_for_url(lambda address: "/submission/" not in address)
    assert server.ask("GET", "/user/submissions/1", server.person("ada"))[0] == 404


@pytest.mark.parametrize("held", ["BUTTON  Delete", "DIV What happened"])
def test_what_happens_live_leaves_the_focus_where_it_is(server, opened, held):
    client = server.person("ada")
    server.judge.free.clear()
    number = server.sent(client)
    page = opened()
    page.goto(server.url)
    served.until(lambda: server.serving.hub.listeners)
    tab_to(page, f"A /submission/{number}")
    server.serving.hub.publish(Event("queue", "double", number + 1, "bob", {"position": 2, "of": 2}, True))
    page.locator("[data-jobs] li", has_text="bob").wait_for()
    assert focus(page)["name"].startswith(f"A /submission/{number}")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/submission/{number}")
    served.until(lambda: server.serving.hub.listeners)
    tab_to(page, held)
    server.judge.free.set()
    page.locator("[data-state]", has_text=re.compile("Succeeded")).wait_for()
    page.locator(".facts-list a", has_text="accepted").wait_for()
    assert focus(page)["name"].startswith(held)
    assert page.locator("[role=status]").text_content()


def test_a_verdict_that_comes_before_the_stream_is_open_is_shown(server, opened):
    client = server.person("ada")
    page = opened()
    server.judge.free.clear()
    number = server.sent(client)
    held = []
    page.route("**/live/**", lambda route: held.append(route))
    page.goto(f"{server.url}/submission/{number}")
    served.until(lambda: page.wait_for_timeout(20) or held)
    server.judge.free.set()
    server.over(client, number)
    held[0].continue_()
    page.locator("[data-state]", has_text="Succeeded").wait_for()
    page.locator(".facts-list a", has_text="accepted").wait_for()


def test_a_verdict_that_comes_while_the_stream_is_cut_is_shown(server, opened):
    client = server.person("ada")
    page = opened()
    server.judge.free.clear()
    number = server.sent(client)
    held = []

    def cut_at_once_and_held_from_then_on(route):
        held.append(route)
        if len(held) == 1:
            route.fulfill(content_type="text/event-stream", body="retry: 100\n\n")

    page.route("**/live/**", cut_at_once_and_held_from_then_on)
    page.goto(f"{server.url}/submission/{number}")
    served.until(lambda: page.wait_for_timeout(20) or len(held) == 2)
    server.judge.free.set()
    server.over(client, number)
    assert "Succeeded" not in page.locator("[data-state]").text_content()
    held[1].continue_()
    page.locator("[data-state]", has_text="Succeeded").wait_for()
