"""The live board: pages that need no script, obey nobody whose text is in them, and show each what they may see."""

import csv
import http.client
import io
import json
import re
import shutil
import time
import unicodedata
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

pytest.importorskip("fastapi")

import served
from boards import GPU, Browser, failed, store
from served import RIGHT, Server

from harness import catalog
from harness.model import Ending, Finding, Unranked, Verdict
from harness.server.board.site import HERE
from harness.server.events import Event

BOARD = "/board/double/test-1000"
PWNED = "</script></pre></title><script>pwned=1</script><img src=x onerror=pwned=1>\"'`{{7*7}}"
HOSTILE = f"{PWNED}\x1b[31m\u202etxt.\u200b\x00"
SECRET = "the_trick_of_ada"
DOUBLE = "title: Twice\nproblem: double\nlimits: {per_hour: 1000, waiting: 100}\n"


@pytest.fixture
def server(toy_root, monkeypatch):
    """One whose stand-in judge judges the present files of the problem, so that its runs are ranked."""
    sha256 = catalog.load_problem(toy_root, "double").sha256
    judged = served.run_of

    def run_of(request, times=0):
        run = judged(request, times)
        printed = f"printed {SECRET}" if SECRET in request.submission.text else ""
        ending = (
            run.ending if run.ending.verdict is Verdict.ACCEPTED else run.ending.model_copy(update={"detail": SECRET})
        )
        return run.model_copy(update={"problem_sha256": sha256, "output": printed, "ending": ending})

    monkeypatch.setattr(served, "run_of", run_of)
    server = Server(
        toy_root,
        double=DOUBLE,
        open=f"{DOUBLE}sources: always\n",
        over=f"{DOUBLE}sources: deadline\ncloses: 2999-01-01T00:00:00Z\n",
    )
    yield server
    server.close()


@pytest.fixture
def anybody(server):
    return Browser(server.port)


def shown(browser, address, wanted, **headers):
    """The page, as soon as it shows what it should: the boards look now and then."""
    until = time.monotonic() + 30
    while True:
        answer = browser.get(address, **headers)
        if answer.status == 200 and (wanted is None or wanted in answer.text):
            return answer
        assert time.monotonic() < until, (answer.status, answer.text)
        time.sleep(0.02)


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.text, self._inside = [], "", None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._inside = tag if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside is None:
            self.text += data
        else:
            assert not data.strip(), f"<{self._inside}> within the page"

    @property
    def words(self):
        return " ".join(self.text.split())


def rows_of(page):
    """The board's rows, as texts of their cells."""
    body = page.partition('class="board"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [
            re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", cell)).strip()
            for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)
        ]
        for row in body.split("<tr")[1:]
    ]


def every_page(root):
    """A store with a hostile text in each field that a stranger writes, and the addresses of all pages about it."""
    device = GPU.model_copy(update={"name": f"Test {HOSTILE}"})
    good = store(root, f"good {HOSTILE}", 1000.0, source=f"# {HOSTILE}\n", output=HOSTILE, device=device)
    other = store(root, f"other {HOSTILE}", 1500.0, source=f"#{HOSTILE}\n#\n", device=device)
    bad = store(root, f"bad {HOSTILE}", **failed(message=HOSTILE, detail=HOSTILE), device=device)
    odd = {"environment": {"python": HOSTILE, "packages": {HOSTILE: HOSTILE}, "isolation": HOSTILE}}
    odd |= {"unranked_because": HOSTILE, "tolerance": HOSTILE, "device": device}
    strange = store(root, f"strange {HOSTILE}", **odd)
    runs = [f"/run/{run.id}" for run in (good, other, bad, strange)]
    pages = ["/", BOARD, f"{BOARD}?q=%3Cscript%3E&tolerance=%22", *runs, f"/compare/{good.id}/{other.id}"]
    return [*pages, "/sign-in", "/run/<script>", "/board/<b>/x", "/sign-in?then=%22%3E%3Cscript%3E"]


def is_plain(text):
    return not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in text if c not in "\n\t")


def test_no_page_obeys_what_strangers_wrote(server, anybody):
    pages = every_page(server.root)
    shown(anybody, BOARD, "strange")
    for address in pages:
        page = anybody.get(address)
        found = Elements(page.text)
        assert not any("pwned" in str(value) and name != "title" for _, attributes in found.elements
                       for name, value in attributes.items() if name.startswith("on")), address  # fmt: skip
        assert not [tag for tag, a in found.elements if tag == "img" or (tag == "script" and "src" not in a)], address
        assert is_plain(page.text), address
        assert "49" not in re.findall(r"`(.*?)\\x1b", page.text), address
    text = anybody.get(BOARD).text
    assert "pwned=1" in Elements(text).text and "‹U+202E›" in text and "{{7*7}}" in text


def test_every_page_allows_no_script_style_or_request_but_this_servers_files(server, anybody):
    pages = every_page(server.root)
    shown(anybody, BOARD, "strange")
    for address in pages:
        page = anybody.get(address)
        policy = dict(part.split(" ", 1) for part in page.headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert {
            value for name, value in policy.items() if name not in ("default-src", "frame-ancestors", "base-uri")
        } == {"'self'"}
        for tag, attributes in Elements(page.text).elements:
            assert not [name for name in attributes if name.startswith("on") or name == "style"], (address, tag)
            for name in ("src", "href", "action"):
                if value := attributes.get(name):
                    assert value.startswith(("/", "?", "#")) and not value.startswith("//"), (address, value)
                    if tag in ("script", "link") and "/static/" in value:
                        assert anybody.get(value).status == 200


def test_all_scripts_together_are_below_200_lines():
    assert sum(len(path.read_text().splitlines()) for path in HERE.rglob("*.js")) < 200


def test_every_field_of_a_form_has_a_name_to_be_read_aloud(server):
    ada = Browser(server.port).sign_in(server.person("ada"))
    for address in (BOARD, "/submit", "/sign-in"):
        store(server.root, "mine")
        page = shown(ada, address, None) if address != BOARD else shown(ada, address, "mine")
        text = re.sub(r"<label>.*?</label>", "", page.text, flags=re.S)
        assert not re.search(r"<select|<input(?![^>]*type=.hidden)", text)


def test_the_board_shows_ranks_intervals_shares_errors_authors_and_ages(server, anybody):
    store(server.root, "close", 1005.0)
    store(server.root, "fast", 1000.0)
    store(server.root, "slow", 4000.0, error=0.5)
    page = shown(anybody, BOARD, "slow").text
    rows = rows_of(page)
    assert [row[:4] for row in rows] == [
        ["1–2", "fast", "1.000", "±1.0 %"], ["1–2", "close", "1.005", "±1.0 %"], ["3", "slow", "4.000", "±1.0 %"],
    ]  # fmt: skip
    assert [row[4] for row in rows] == ["50 %", "50 %", "12 %"]
    assert [row[5] for row in rows] == ["0.01", "0.01", "0.5"]
    assert all("days" in row[-1] for row in rows)


@pytest.mark.parametrize(("cards", "says"), [(("c0", "c1"), True), (("c0", "c0"), False)])
def test_a_board_s_page_says_what_several_cards_add_to_its_intervals(server, anybody, cards, says):
    for name, card in zip(("fast", "slow"), cards, strict=True):
        store(server.root, name, environment={"gpu": {"uuid": card}})
    page = shown(anybody, BOARD, "slow").text
    assert ("2 cards judged these runs: the intervals contain what a card adds" in page) is says


def test_the_heat_map_has_floor_over_latency_of_every_case_and_its_shade(server, anybody):
    store(server.root, "fast", 1000.0, floor_ns=500.0)
    page = shown(anybody, BOARD, "fast").text
    heat = page.partition('class="heat"')[2].partition("</table>")[0]
    cells = re.findall(r'<td class="(h\d)" title="(.*?)">(.*?)</td>', heat)
    assert [(shade, text.replace("\xa0", " ")) for shade, _, text in cells] == [("h5", "50 %"), ("h2", "25 %")]
    assert "floor 0.5000 µs (float32)" in cells[0][1] and "rows=4096" in cells[1][1]


def test_without_floors_the_heat_map_is_against_the_best_of_each_case(server, anybody):
    store(server.root, "fast", 1000.0, floor_ns=None)
    store(server.root, "half as fast", 2000.0, floor_ns=None)
    page = shown(anybody, BOARD, "half as fast").text
    heat = page.partition('class="heat"')[2].partition("</table>")[0].replace("\xa0", " ")
    assert re.findall(r">([\d.]+ %)</td>", heat) == ["100 %", "100 %", "50 %", "50 %"]
    assert "Every case against the best on this board" in page


def test_what_is_asked_of_a_board_stands_in_its_address(server, anybody):
    for number in range(60):
        store(
            server.root,
            f"name{number:02d}",
            1000.0 * 1.1**number,
            error=1 / (number + 1),
            tolerance="exact" if number % 2 else "close",
        )
    shown(anybody, BOARD, "60 ranked")

    def names(query):
        return [row[1] for row in rows_of(anybody.get(f"{BOARD}?{query}").text)]

    assert names("") == [f"name{n:02d}" for n in range(50)]
    assert names("page=2") == [f"name{n:02d}" for n in range(50, 60)]
    assert names("page=99") == names("page=2") and names("page=x") == names("")
    assert names("q=NAME1") == [f"name{n}" for n in range(10, 20)]
    assert names("q=name1&tolerance=exact") == ["name11", "name13", "name15", "name17", "name19"]
    assert names("sort=error")[0] == names("sort=age")[0] == "name59"
    assert names("sort=evil%22") == names("")
    filtered = anybody.get(f"{BOARD}?q=name5&sort=name").text
    assert [row[0] for row in rows_of(filtered)] == [str(n) for n in range(51, 61)]  # ranks of the whole board
    links = [
        a["href"]
        for tag, a in Elements(anybody.get(f"{BOARD}?q=name&sort=error").text).elements
        if a.get("rel") == "next"
    ]
    assert links == ["?q=name&sort=error&page=2"]


def test_a_page_that_has_not_changed_is_not_sent_again_and_one_that_has_is(server, anybody):
    store(server.root, "mine")
    first = shown(anybody, BOARD, "mine")
    again = anybody.get(BOARD, If_None_Match=first.headers["ETag"])
    assert (again.status, again.content) == (304, b"")
    assert anybody.get(f"{BOARD}?q=x", If_None_Match=first.headers["ETag"]).status == 200
    store(server.root, "theirs")
    assert shown(anybody, BOARD, "theirs", If_None_Match=first.headers["ETag"]).headers["ETag"] != first.headers["ETag"]
    ada = Browser(server.port).sign_in(server.person("ada"))
    assert ada.get(BOARD, If_None_Match=anybody.get(BOARD).headers["ETag"]).status == 200


def test_a_run_shows_its_cases_samples_clock_environment_report_and_source(server, anybody):
    run = store(server.root, "mine", output="it said this", tier="published")
    page = Elements(shown(anybody, f"/run/{run.id}", "mine").text).words
    for words in ("rows=64 cols=64", "process 3", "the judge's", "python", "3.12", "package torch", "it said this"):
        assert words in page
    assert "def custom_kernel(data): # mine" in page
    wrong = failed(detail="y: all elements are wrong; replay with --seed 7")
    assert "--seed 7" in anybody.get(f"/run/{store(server.root, 'wrong', tier='published', **wrong).id}").text


def test_of_a_run_of_eval_that_is_not_published_nobody_is_shown_the_source(server, anybody):
    run = store(server.root, "mine", output="it said this", **failed(detail="replay with --seed 7"))
    page = shown(anybody, f"/run/{run.id}", "mine").text
    assert "judged on the server itself" in page and "wrong answer" in page
    assert not any(secret in page for secret in ("def custom_kernel", "it said this", "--seed 7"))


def test_two_runs_are_compared_in_words_by_case_and_by_source(server, anybody):
    a, b = (store(server.root, name, ns, tier="published") for name, ns in (("old", 1000.0), ("new", 2000.0)))
    page = Elements(anybody.get(f"/compare/{a.id}/{b.id}").text).words
    assert "SLOWER: new is slower than old" in page
    assert "-def custom_kernel(data): # old" in page and "+def custom_kernel(data): # new" in page
    assert page.count("2.0000") >= 3  # each case and the score
    document = json.loads(anybody.get(f"/compare/{a.id}/{b.id}/compare.json").text)
    assert document["verdict"] == "slower" and len(document["cases"]) == 2


def test_runs_that_are_not_of_one_kind_are_refused_in_a_sentence(server, anybody):
    a, b = (
        store(server.root, "here"),
        store(server.root, "there", device=GPU.model_copy(update={"slug": "o", "name": "O"})),
    )
    answer = anybody.get(f"/compare/{a.id}/{b.id}")
    assert answer.status == 400 and "their latencies say nothing about the sources" in answer.text


# Who sees what.


def judged_run(server, client, source, **named):
    """The number of a submission that was judged, and its run's id."""
    number = server.sent(client, source, **named)
    server.over(client, number)
    return number, server.serving.database.queue.runs(number)[-1].id


def test_what_a_scanner_quotes_of_a_source_is_shown_with_the_source_alone(server, anybody):
    finding = Finding(rule="CLOCK", severity="high", what=SECRET)
    for tier, shown_to_all in (("local", False), ("published", True)):
        run = store(server.root, tier, tier=tier, triage=(finding,))
        answer = anybody.get(f"/run/{run.id}/run.json")
        assert (SECRET in answer.text) is shown_to_all and json.loads(answer.text)["triage"][0]["rule"] == "CLOCK"


def sees(browser, run):
    """Of a run's source, what it printed and what was seen: whether anything is shown anywhere."""
    answers = [browser.get(f"/run/{run}{kind}") for kind in ("", "/run.json")]
    return any(SECRET in answer.text for answer in answers)


def end(server, monkeypatch):
    """The deadline of the competition `over` passes."""
    over = server.serving.competition("over")
    monkeypatch.setitem(
        server.serving._open, "over", over.model_copy(update={"closes": over.closes.replace(year=2001)})
    )


def source_with(secret=SECRET, **words):
    return f"# {secret}\n{served.saying(**words) if words else RIGHT}"


def test_only_its_author_sees_a_source_and_what_it_printed_where_the_competition_says_so(server, anybody):
    client = server.person("ada")
    ada, eve = Browser(server.port).sign_in(client), Browser(server.port).sign_in(server.person("eve"))
    for source in (source_with(), source_with(verdict="wrong_answer")):
        _, run = judged_run(server, client, source)
        assert sees(ada, run) and not sees(eve, run) and not sees(anybody, run)
        assert eve.get(f"/run/{run}").status == 200
    other = judged_run(server, client, f"{source_with()}# other\n", name="other.py")[1]
    _, run = judged_run(server, client, source_with())
    for kind in ("", "/compare.json"):
        address = f"/compare/{run}/{other}{kind}"
        assert SECRET not in anybody.get(address).text and anybody.get(address).status == 200
    assert "# other" in ada.get(f"/compare/{run}/{other}").text


def test_a_competition_may_show_sources_always_or_after_the_deadline(server, anybody, monkeypatch):
    client = server.person("ada")
    _, always = judged_run(server, client, source_with(), board="open")
    _, after = judged_run(server, client, source_with(), board="over")
    assert sees(anybody, always) and not sees(anybody, after)
    end(server, monkeypatch)
    assert sees(anybody, after)


def test_a_competition_that_has_closed_leads_to_its_board_and_not_to_the_form(server, anybody, monkeypatch):
    judged_run(server, server.person("ada"), source_with(), board="over")
    device = next(server.root.glob("results/local/double/*/*.json")).parent.name
    board, form = f"/board/double/{device}", 'href="/submit?competition=over"'
    for address in ("/", board):
        assert form in shown(anybody, address, form).text
    end(server, monkeypatch)
    for address in ("/", board):
        text = anybody.get(address).text
        assert form not in text and 'href="/submit?competition=open"' in text and "competition=over" in text


def test_a_trial_is_its_authors_alone(server, anybody):
    client = server.person("ada")
    ada, eve = Browser(server.port).sign_in(client), Browser(server.port).sign_in(server.person("eve"))
    number, run = judged_run(server, client, source_with(), mode="benchmark")
    assert ada.get(f"/run/{run}").status == 200 and sees(ada, run)
    for other in (eve, anybody):
        for address in (f"/run/{run}", f"/run/{run}/run.json", f"/run/{run}/samples.csv", f"/submission/{number}"):
            assert other.get(address).status == 404


def test_a_source_is_not_shown_in_the_moment_before_the_database_knows_of_the_run(server, anybody):
    client = server.person("ada")
    _, run = judged_run(server, client, source_with())
    with server.serving.database.connections.writing() as rows:
        rows("DELETE FROM runs WHERE id = ?", (run,))
    assert anybody.get(f"/run/{run}").status == 200 and not sees(anybody, run)


def test_the_source_of_another_servers_run_is_shown_to_nobody(server, anybody):
    ada = Browser(server.port).sign_in(server.person("ada"))
    run = store(server.root, "bob.mine", source=source_with(), output=SECRET, id="20260101T000000-j1a1-bob.mine")
    assert anybody.get(f"/run/{run.id}").status == 200
    assert not sees(ada, run.id) and not sees(anybody, run.id)


def test_a_removed_submission_leaves_the_board_and_says_why_on_its_page(server, anybody):
    from harness.server import removal

    number, run = judged_run(server, server.person("ada"), source_with())
    board = f"/board/double/{server.serving.database.queue.run(run).device}"
    shown(anybody, board, "ada.mine")
    removal.remove(server.serving.database, server.root, number, "it copied <b>another</b>'s file")
    until = time.monotonic() + 30
    while (answer := anybody.get(board)).status == 200 and "ada.mine" in answer.text:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert anybody.get(f"/run/{run}").status == 404
    assert "Removed: it copied &lt;b&gt;another&lt;/b&gt;" in anybody.get(f"/submission/{number}").text


def test_only_the_competitions_problems_are_shown_unless_all_are_asked_for(server, anybody):
    folder = shutil.copytree(server.root / "problems" / "double", server.root / "problems" / "private")
    (folder / "problem.yml").write_text((folder / "problem.yml").read_text().replace("name: double", "name: private"))
    best, tried = store(server.root, "best"), store(server.root, "tried", problem="private")
    bad = store(server.root, "bad", problem="private", tier="published", **failed())
    addresses = [f"/run/{run.id}{kind}" for run in (tried, bad) for kind in ("", "/run.json", "/samples.csv")]
    addresses += ["/board/private/test-1000", "/board/private/test-1000/board.csv"]
    addresses += [f"/compare/{best.id}/{tried.id}", "/board/private/test-1000/badge/tried.svg"]
    server.serving.all_problems = True
    shown(anybody, "/", "private"), shown(anybody, "/feed.atom", "tried")
    assert anybody.get(f"/run/{tried.id}").status == 200 == anybody.get("/board/private/test-1000").status
    server.serving.all_problems = False
    shown(anybody, BOARD, "best")
    assert {anybody.get(address).status for address in addresses} == {404}
    assert not any("private" in anybody.get(page).text for page in ("/", "/feed.atom", f"/run/{best.id}"))


def test_of_a_competition_that_was_taken_down_each_sees_their_own_runs_alone(server, anybody):
    client = server.person("ada")
    ada = Browser(server.port).sign_in(client)
    _, run = judged_run(server, client, source_with())
    for name in list(server.serving.competitions()):
        server.serving.take_down(name)
    assert anybody.get(f"/run/{run}").status == 404 and ada.get(f"/run/{run}").status == 200


def test_a_board_names_authors_and_can_be_of_one_competition(server, anybody):
    client = server.person("ada")
    _, run = judged_run(server, client, source_with(), board="open", name="one.py")
    judged_run(server, server.person("eve"), served.saying(score_ns=500), name="two.py")
    board = f"/board/double/{server.serving.database.queue.run(run).device}"
    page = shown(anybody, board, "ada.one")
    page = shown(anybody, board, "eve.two")
    assert [(row[0], row[1], row[2]) for row in rows_of(page.text)] == [
        ("1", "eve.two", "eve"),
        ("2", "ada.one", "ada"),
    ]
    alone = anybody.get(f"{board}?competition=open").text
    assert [(row[0], row[1]) for row in rows_of(alone)] == [("1", "ada.one")]
    assert [row[1] for row in rows_of(anybody.get(f"{board}?q=eve").text)] == ["eve.two"]


# Forms.


def fields(browser, **changes):
    return {"csrf": browser.token(), "competition": "double", "gpu": "CPU", "mode": "leaderboard", **changes}


def test_a_file_goes_in_by_the_form_and_its_verdict_is_among_ones_own_submissions(server):
    client = server.person("ada")
    ada = Browser(server.port).sign_in(client)
    answer = ada.post("/submit", fields(ada), ("mine.py", RIGHT))
    assert answer.status == 303
    number = int(answer.headers["Location"].rpartition("/")[2])
    server.over(client, number)
    assert "Succeeded" in ada.get(f"/submission/{number}").text
    assert "mine.py" in ada.get("/mine").text
    assert ada.post(f"/submission/{number}/delete", {"csrf": ada.token()}).status == 303
    assert "mine.py" not in ada.get("/mine").text and ada.get(f"/submission/{number}").status == 404


def test_a_form_that_another_site_sends_does_nothing(server):
    client = server.person("ada")
    ada = Browser(server.port).sign_in(client)
    number = server.judged(client)["id"]
    forged = [
        {},
        {"csrf": ""},
        {"csrf": "0" * 64},
        {"csrf": Browser(server.port).sign_in(server.person("eve")).token()},
    ]
    for token in forged:
        asked = {key: value for key, value in fields(ada).items() if key != "csrf"} | token
        assert ada.post("/submit", asked, ("mine.py", RIGHT)).status == 403
        assert ada.post(f"/submission/{number}/delete", token).status == 403
        assert ada.post("/sign-out", token).status == 403
    for header in ({"Origin": "https://evil.example"}, {"Sec_Fetch_Site": "cross-site"}):
        assert ada.post("/submit", fields(ada), ("mine.py", RIGHT), **header).status == 403
        assert ada.post("/sign-in", {"client": client}, **header).status == 403
    assert len(server.serving.database.queue.of_user(1)) == 1 and ada.get("/mine").status == 200


REFUSED = [
    ("mine.py", b"", {}, 400, "The file is empty"),
    ("mine.py", b"\xff\xfe", {}, 400, "is not UTF-8 text"),
    ("mine.sh", RIGHT, {}, 400, "end in .py"),
    ("<b>.py", RIGHT, {}, 400, "The file's name must be"),
    ("mine.py", "x" * 1_000_001, {}, 413, "1,000,000 bytes"),
    ("mine.py", RIGHT, {"gpu": "<i>"}, 400, "is not judged on &lt;i&gt;"),
    ("mine.py", RIGHT, {"mode": "x"}, 400, "The mode is test"),
    ("mine.py", RIGHT, {"competition": "none"}, 404, "there is no competition"),
    ("", RIGHT, {}, 422, "Choose a file"),
]


def test_a_form_that_is_refused_says_why(server):
    ada = Browser(server.port).sign_in(server.person("ada"))
    for name, source, changes, status, sentence in REFUSED:
        answer = ada.post("/submit", fields(ada, **changes), (name, source))
        assert (answer.status, sentence.lower() in answer.text.replace("&#39;", "'").lower()) == (status, True), name
    assert not server.serving.database.queue.of_user(1)


def test_nobody_deletes_anothers_submission_or_ones_own_after_the_deadline(server, monkeypatch):
    client = server.person("ada")
    ada, eve = Browser(server.port).sign_in(client), Browser(server.port).sign_in(server.person("eve"))
    number, _ = judged_run(server, client, RIGHT, board="over")
    assert eve.post(f"/submission/{number}/delete", {"csrf": eve.token()}).status == 403
    token = ada.token()
    end(server, monkeypatch)
    answer = ada.post(f"/submission/{number}/delete", {"csrf": token})
    assert answer.status == 403 and "After the deadline nothing is taken back" in answer.text


def test_signing_in_takes_a_known_id_and_leads_to_a_page_of_this_server_alone(server, anybody):
    client = server.person("ada")
    assert anybody.post("/sign-in", {"client": "nobody's"}).status == 401
    for evil in ("https://evil.example", "//evil.example", "/\\evil.example", "/x\r\nSet-Cookie: a=b", "javascript:1"):
        assert Browser(server.port).post("/sign-in", {"client": client, "then": evil}).headers["Location"] == "/mine"
    server.serving.database.people.block("ada", "cheated")
    assert "this account is blocked: cheated" in anybody.post("/sign-in", {"client": client}).text.lower()
    assert anybody.get("/mine").status == anybody.get("/submit").status == 303


def test_an_address_that_tries_many_ids_has_to_wait(server, anybody):
    answers = [anybody.post("/sign-in", {"client": f"guess {number}"}) for number in range(25)]
    assert answers[0].status == 401 and answers[-1].status == 429 and int(answers[-1].headers["Retry-After"]) > 0


# Live.


class Stream:
    """An open stream of events."""

    def __init__(self, browser, path):
        self._connection = http.client.HTTPConnection("127.0.0.1", browser._port, timeout=30)
        self._connection.request("GET", path, headers={"Cookie": browser.cookie} if browser.cookie else {})
        self._answer = self._connection.getresponse()
        self.status = self._answer.status
        if self.status == 200:
            assert self._answer.readline() == b"retry: 5000\n"

    def next(self):
        while not (line := self._answer.readline().decode()).startswith("data: "):
            assert line
        return json.loads(line[6:])

    def close(self):
        self._answer.close()
        self._connection.close()


def test_streams_tell_what_happens_and_what_was_wrong_to_its_author_alone(server, anybody):
    client = server.person("ada")
    ada = Browser(server.port).sign_in(client)
    number = server.judged(client)["id"]
    everything, own, others = (
        Stream(anybody, "/live"),
        Stream(ada, f"/live/submission/{number}"),
        Stream(anybody, f"/live/submission/{number}"),
    )
    hub = server.serving.hub
    hub.publish(
        Event("step", "double", number, "ada", {"doing": "time", "case": "<b>", "done": 1, "total": 3, "line": SECRET})
    )
    hub.publish(Event("state", "double", number + 1, "eve", {"state": "running"}))
    hub.publish(Event("state", "double", number, "ada", {"state": "failed", "error": SECRET}))
    told = [everything.next() for _ in range(3)]
    assert [event["submission"] for event in told] == [number, number + 1, number] and SECRET not in json.dumps(told)
    assert SECRET not in json.dumps([others.next(), others.next()])
    assert [own.next()["data"]["line"], own.next()["data"]["error"]] == [SECRET, SECRET]
    for stream in (everything, own, others):
        stream.close()


def test_what_a_judge_says_besides_how_far_it_is_is_its_authors_alone(server, anybody):
    client = server.person("ada")
    ada = Browser(server.port).sign_in(client)
    server.judge.free.clear()
    number = server.sent(client)
    served.until(lambda: server.judge.judged)
    own, others = Stream(ada, "/live"), Stream(anybody, "/live")
    queue, job = server.serving.database.queue, server.serving.database.queue.submission(number)
    pages = ["/", f"/submission/{number}"]
    for said, seen in ((SECRET, ""), ("timing, case 2 of 3", "timing, case 2 of 3")):
        queue.heartbeat(job.job_id, job.attempt, said)
        assert all(SECRET not in page and seen in page for page in (anybody.get(each).text for each in pages))
        assert said in ada.get(pages[1]).text
    server.serving.hub.publish(Event("step", "double", number, "ada", {"line": SECRET}, True))
    server.serving.hub.publish(Event("state", "double", number, "ada", {"state": "running"}, True))
    assert own.next()["data"]["line"] == SECRET
    assert others.next()["data"] == {"state": "running"}, "a line alone leaves nothing to tell"
    server.judge.free.set()
    for stream in (own, others):
        stream.close()


def test_as_the_server_ends_so_do_its_streams(server, anybody):
    streams = [Stream(anybody, "/live"), Stream(anybody, "/live")]
    server.serving.close()
    served.until(lambda: not server.serving.hub.listeners)
    for stream in streams:
        assert "data:" not in stream._answer.read().decode()
        stream.close()


def test_a_trial_on_the_front_page_leads_its_author_alone_to_its_page(server, anybody):
    client = server.person("ada")
    ada = Browser(server.port).sign_in(client)
    stream = Stream(anybody, "/live")
    server.judge.free.clear()
    numbers = {mode: server.sent(client, source_with(), mode=mode) for mode in ("leaderboard", "test")}
    public = {}
    while len(public) < 2:  # two changes of one submission may be told as one
        event = stream.next()
        public[event["submission"]] = event["public"]
    assert public == {numbers["leaderboard"]: True, numbers["test"]: False}
    for browser, linked in ((ada, {"leaderboard", "test"}), (anybody, {"leaderboard"})):
        page = browser.get("/").text
        assert {mode for mode, n in numbers.items() if f'href="/submission/{n}"' in page} == linked
        assert all(f"#{number}" in page for number in numbers.values())
    server.judge.free.set()
    stream.close()


def test_a_stream_whose_client_has_gone_is_no_listener_any_more(server, anybody):
    streams = [Stream(anybody, "/live") for _ in range(5)]
    assert server.serving.hub.listeners == 5
    for stream in streams:
        stream.close()
    until = time.monotonic() + 30
    while server.serving.hub.listeners:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_streams_beyond_the_most_of_one_address_are_refused_in_a_sentence(server, anybody):
    streams = [Stream(anybody, "/live") for _ in range(20)]
    refused = anybody.get("/live")
    assert refused.status == 503 and "20 streams are open from your address" in refused.text
    for stream in streams:
        stream.close()


def test_the_front_page_has_competitions_what_runs_and_waits_and_the_latest_records(server, anybody):
    store(server.root, "best", 1000.0)
    shown(anybody, "/", "best")
    server.judge.free.clear()
    client = server.person("ada")
    numbers = [server.sent(client, served.saying(score_ns=1000 + n)) for n in range(3)]
    page = shown(anybody, "/", f"#{numbers[-1]}")
    words = Elements(page.text).words
    assert "Twice" in words and all(f"#{number} ada" in words for number in numbers)
    assert shown(anybody, f"/submission/{numbers[2]}", "number 2 in the queue")
    server.judge.free.set()


# Data.


def test_json_and_csv_hold_what_the_board_shows(server, anybody):
    for number in range(3):
        store(server.root, f"=s{number}", 1000.0 + 300 * number, error=float("inf") if number else 0.01)
    store(server.root, "bad", **failed())
    shown(anybody, BOARD, "bad")
    document = json.loads(anybody.get(f"{BOARD}/board.json").text, parse_constant=pytest.fail)
    assert [(e["submission"], e["first"]) for e in document["ranked"]] == [("=s0", 1), ("=s1", 2), ("=s2", 3)]
    assert [len(e["cases"]) for e in document["ranked"]] == [2, 2, 2] and document["ranked"][1]["error"] == "Infinity"
    assert [e["submission"] for e in document["unranked"]] == ["bad"]
    rows = list(csv.DictReader(io.StringIO(anybody.get(f"{BOARD}/board.csv").text)))
    assert [row["submission"] for row in rows] == ["'=s0", "'=s1", "'=s2", "bad"] and {
        row["device"] for row in rows
    } == {"test-1000"}
    cases = list(csv.DictReader(io.StringIO(anybody.get(f"{BOARD}/cases.csv").text)))
    assert [float(row["latency_ns"]) for row in cases][:2] == [1000.0, 2000.0] and len(cases) == 6
    records = list(csv.DictReader(io.StringIO(anybody.get(f"{BOARD}/records.csv").text)))
    assert [row["submission"] for row in records] == ["'=s0"]
    run = document["ranked"][0]["id"]
    assert json.loads(anybody.get(f"/run/{run}/run.json").text)["id"] == run
    assert len(anybody.get(f"/run/{run}/samples.csv").text.splitlines()) == 1 + 2 * 3 * 4


def test_the_feed_is_well_formed_and_has_each_new_best_once(server, anybody):
    store(server.root, f"first {HOSTILE}", 2000.0)
    store(server.root, "slower", 3000.0)
    store(server.root, "second", 1000.0)
    shown(anybody, f"{BOARD}/feed.atom", "second: 1.000")
    name = {"a": "http://www.w3.org/2005/Atom"}
    for address in ("/feed.atom", f"{BOARD}/feed.atom"):
        answer = anybody.get(address)
        assert answer.headers["Content-Type"].startswith("application/atom+xml")
        feed = ElementTree.fromstring(answer.content)
        titles = [entry.findtext("a:title", namespaces=name) for entry in feed.findall("a:entry", name)]
        assert len(titles) == 2 and titles[0].startswith("second: 1.000") and titles[1].startswith("first </script>")
        ids = [entry.findtext("a:id", namespaces=name) for entry in feed.findall("a:entry", name)]
        assert len(set(ids)) == 2 and all(each.startswith(server.url) for each in ids)
        assert anybody.get(address, If_None_Match=answer.headers["ETag"]).status == 304


def test_a_badge_says_a_submissions_rank(server, anybody):
    store(server.root, "fast", 1000.0)
    store(server.root, "slow", 2000.0)
    store(server.root, "noisy", unranked_because=Unranked.CROWDED)
    store(server.root, "<odd> & name", 3000.0)
    shown(anybody, BOARD, "&lt;odd&gt;")  # the last one stored
    for name, said in (("slow", "rank 2 of 3"), ("noisy", "not ranked"), ("%3Codd%3E%20&%20name", "rank 3 of 3")):
        answer = anybody.get(f"{BOARD}/badge/{name}.svg")
        drawing = ElementTree.fromstring(answer.content)
        assert said in drawing.get("aria-label") and answer.headers["Content-Type"] == "image/svg+xml"
    assert anybody.get(f"{BOARD}/badge/nobody.svg").status == 404


NOWHERE = [
    "/board/double/none",
    "/board/none/test-1000",
    "/run/none",
    "/compare/a/b",
    "/submission/99",
    "/submission/x",
    "/submission/99999999999999999999999",
    "/static/x/secret.py",
    "/mine?page=0",
    "/run/%00",
    "/run/..%2f..%2fx",
    "/board/double/%2e%2e",
]


def test_what_is_not_there_is_said_and_is_no_mistake_of_the_server(server, anybody):
    store(server.root, "mine")
    ada = Browser(server.port).sign_in(server.person("ada"))
    answers = {address: ada.get(address).status for address in NOWHERE}
    assert set(answers.values()) <= {404, 422}, answers


def test_an_address_that_is_none_is_a_page_for_a_browser_and_json_for_any_other_client(server, anybody):
    page = anybody.get("/nothing/here", Accept="text/html,application/xhtml+xml,*/*;q=0.8")
    assert page.status == 404 and "There is no such page." in Elements(page.text).words
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert json.loads(anybody.get("/nothing/here", Accept="*/*").text) == {"detail": "there is no such page"}


def test_an_error_page_does_not_say_that_nobody_has_signed_in(server):
    ada = Browser(server.port).sign_in(server.person("ada"))
    assert "Sign in" not in Elements(ada.get("/run/none").text).words


# Looks.


def test_every_shade_of_the_heat_map_keeps_4_5_to_1_under_its_text():
    colours = (HERE.parents[1] / "render" / "templates" / "report.css").read_text()
    pairs = {name: found for name, *found in re.findall(r"--(\w+): light-dark\((#\w+), (#\w+)\)", colours)}
    shades = re.findall(r"^\.h\d,.*--floor\) (\d+)%, var\(--paper\)", (HERE / "static" / "board.css").read_text(), re.M)
    assert len(shades) == 10
    for theme in (0, 1):
        floor, paper, ink = (_rgb(pairs[name][theme]) for name in ("floor", "paper", "ink"))
        for shade in shades:
            part = int(shade) / 100
            ground = [part * a + (1 - part) * b for a, b in zip(floor, paper)]
            assert _contrast(ground, ink) >= 4.5, (theme, shade)


def _rgb(text):
    return [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def _contrast(one, other):
    """WCAG 2.2's contrast ratio of two colours (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio)."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour):
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.slow(ci=True)
def test_no_page_is_wider_than_its_window_or_breaks_its_own_policy(server, chromium):
    client = server.person("ada")
    anybody, long = Browser(server.port), "long_name_" * 12
    run = store(server.root, long, 1000.0, output="x" * 300, ending=Ending(verdict=Verdict.ACCEPTED, message="y" * 300))
    other = store(server.root, "other", 2000.0)
    number = server.judged(client)["id"]
    shown(anybody, BOARD, "other")
    pages = ["/", BOARD, f"/run/{run.id}", f"/compare/{run.id}/{other.id}", "/mine", "/submit", f"/submission/{number}"]
    for width in (390, 1600):
        context = chromium.new_context(viewport={"width": width, "height": 800})
        page, complaints = context.new_page(), []
        page.on(
            "console", lambda message, said=complaints: said.append(message.text) if message.type == "error" else None
        )
        page.on("pageerror", lambda error, said=complaints: said.append(str(error)))
        page.goto(f"{server.url}/sign-in")
        page.fill("input[name=client]", client)
        page.click("main form button")
        for address in pages:
            page.goto(server.url + address)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (address, width)
        assert not complaints
        context.close()


@pytest.mark.slow(ci=True)
def test_the_page_of_a_submission_follows_it_live_and_writes_text_only(server, chromium):
    client = server.person("ada")
    server.judge.free.clear()
    number = server.sent(client)
    page = chromium.new_context().new_page()
    page.goto(f"{server.url}/submission/{number}")
    until = time.monotonic() + 30
    while not server.serving.hub.listeners:
        assert time.monotonic() < until
        page.wait_for_timeout(50)
    server.serving.hub.publish(Event("step", "double", number, "ada", {"line": "loading"}, True))
    data = {"doing": "time", "case": "<img src=x>", "done": 1, "total": 3, "line": None, "sample": [2, 5]}
    server.serving.hub.publish(Event("step", "double", number, "ada", data))
    wait_for(page, "case 2 of 3: <img src=x>, process 2 of 5")
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    server.judge.free.set()
    wait_for(page, "Succeeded")
    page.goto(server.url)
    served.until(lambda: server.serving.hub.listeners)
    server.sent(client, served.saying(score_ns=7))
    page.locator("[data-jobs] li", has_text="is the new best").wait_for()
    server.serving.close()
    served.until(lambda: not server.serving.hub.listeners)
    page.wait_for_timeout(200)
    assert "undefined" not in page.content() and "#0" not in page.content()


def wait_for(page, words):
    """Until the state on a submission's page says so. The page's policy lets no test's script in."""
    until = time.monotonic() + 30
    while words not in page.locator("[data-state]").text_content():
        assert time.monotonic() < until, page.locator("[data-state]").text_content()
        page.wait_for_timeout(50)
