"""The page in a real browser: every view, every action, a controller that dies."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from kvferry.sharing.controller.page import routes
from kvferry.sharing.membership import WorkDone
from support.browser import Browser, browsing
from support.holdings import tokens
from support.page_cluster import PageCluster, page_cluster
from support.processes import Process
from support.views import ask

pytestmark = pytest.mark.skipif(
    not routes._files(), reason="npm was not there when the package was built: no page"
)
TOKEN = "t0ken-t0ken-t0ken"
VIEWS = {
    "overview": "Hit share",
    "nodes": "2 that live",
    "memory": "By model",
    "prefixes": "Look-ups",
    "transfers": "All pairs",
    "explain": "Models",
    "jobs": "Jobs",
    "events": "has joined",
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def cluster(browser: Browser) -> Iterator[PageCluster]:
    browser.leave()
    with page_cluster() as found:
        found.works(2)
        found.beats()
        ask(f"{found.url}/v1/lookup", "POST", {"tokens": tokens(9)})
        yield found
        browser.leave()  # else its console tells of a controller that is gone


def shows(browser: Browser, cluster: PageCluster, view: str, text: str) -> None:
    browser.driver.get(f"{cluster.url}/?view={view}")
    browser.says(text, "main")
    browser.says("live", "#link")


def test_the_page_is_live_and_its_console_is_silent(browser: Browser, cluster: PageCluster) -> None:
    browser.size(1440, 900)
    shows(browser, cluster, "overview", "50.0 %")  # 2000 of 4000 tokens
    cluster.caches[0].done = WorkDone(8000, 20.0)
    browser.says("20.0 %", "main")  # 2000 of 10 000: it changes by itself
    assert browser.wrong() == []


@pytest.mark.full
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("wide", "high"), [(1440, 900), (390, 844)])
def test_every_view_fits_and_loads_nothing_from_elsewhere(
    browser: Browser, cluster: PageCluster, view: str, wide: int, high: int
) -> None:
    browser.size(wide, high)
    for dark in (False, True):
        browser.dark(dark)
        shows(browser, cluster, view, VIEWS[view])
        browser.shot(f"{view}-{wide}-{'dark' if dark else 'light'}")
        assert browser.run("return document.documentElement.scrollWidth") <= wide
    urls = browser.run("return performance.getEntriesByType('resource').map(one => one.name)")
    assert all(url.startswith(cluster.url) for url in urls)
    assert browser.wrong() == []


@pytest.mark.full
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_can_be_had_with_curl(browser: Browser, cluster: PageCluster, view: str) -> None:
    shows(browser, cluster, view, VIEWS[view])
    browser.run("window.prompt = (_, text) => { window.copied = text; }")
    browser.click("#curl")
    browser.until("it is copied", "return document.getElementById('curl').dataset.copied")
    copied = browser.run("return document.getElementById('curl').dataset.copied")
    assert copied.startswith(f"curl -s '{cluster.url}/v1/")
    if view != "events":  # which goes on for ever
        assert ask(copied.split("'")[1])[0] == 200


@pytest.mark.full
def test_tables_are_saved_as_csv_and_json(browser: Browser, cluster: PageCluster) -> None:
    save = "HTMLAnchorElement.prototype.click = function () { window.saved = this.download; }"
    for view, selector, name in (
        ("nodes", ".choices .load", "kvferry-nodes.csv"),
        ("nodes", ".choices .load:nth-of-type(2)", "kvferry-nodes.json"),
        ("memory", "main h2:last-of-type .load", "kvferry-prefixes.csv"),
    ):
        shows(browser, cluster, view, VIEWS[view])
        browser.run(save)
        browser.click(selector)
        browser.until("it is saved", "return window.saved")
        assert browser.run("return window.saved") == name
    assert browser.wrong() == []


@pytest.mark.full
def test_rows_are_filtered_by_node_and_name_and_stay_so(
    browser: Browser, cluster: PageCluster
) -> None:
    shows(browser, cluster, "nodes", "2 that live")
    browser.write("#filter", "two")
    browser.says("1 that live", "main")
    assert "one/0" not in browser.text("main")
    assert "q=two" in browser.driver.current_url
    browser.driver.refresh()
    browser.says("1 that live", "main")
    assert browser.wrong() == []


@pytest.mark.full
def test_explain_says_of_each_chunk_where_it_is_or_why_not(
    browser: Browser, cluster: PageCluster
) -> None:
    shows(browser, cluster, "explain", "Models")
    browser.write("[name=prompt]", " ".join(map(str, tokens(9))))
    browser.click("form button")
    browser.says("7 of 9 chunks can be given", "#explained")
    said = browser.text("#explained")
    assert "no instance holds it" in said
    assert "one/0, two/0" in said
    browser.write("[name=prompt]", "What is a cache?")
    browser.click("form button")
    browser.says("this controller has no tokenizer", "#explained")
    wrong = [one for one in browser.wrong() if "400" not in one]  # which the browser reports
    assert wrong == []


@pytest.mark.full
def test_jobs_and_pins_are_begun_and_undone_once_actions_are_on(
    browser: Browser, cluster: PageCluster
) -> None:
    shows(browser, cluster, "jobs", "No job was begun")
    visible = "return document.querySelector('form.acting').checkVisibility()"
    assert browser.run(visible) is False
    browser.click("#act")
    assert browser.run(visible) is True

    def start(action: str, **fields: str) -> None:
        browser.run(f"document.querySelector('[name=action]').value = {action!r}")
        for name in ("instance", "to", "prompt"):
            browser.write(f"form.acting [name={name}]", fields.get(name, ""))
        browser.click("form.acting button[type=submit]")
        browser.says(f"{action} ", "#said")

    prompt = " ".join(map(str, tokens(2)))
    start("pin", instance="one", prompt=prompt)
    browser.says("Unpin", "main")
    browser.click("main button.acting")
    browser.says("Nothing is pinned", "main")
    for action in ("prefetch", "copy", "move"):
        start(action, instance="two", to="one", prompt=prompt)
    start("delete", instance="one", prompt=prompt)
    start("clear", instance="one")
    done = "return document.querySelectorAll('main .job-done').length"
    browser.until("all are done", f"{done} >= 7")
    obeyed = {one.action for cache in cluster.caches for one in cache.obeyed}
    assert obeyed == {"pin", "unpin", "prefetch", "delete", "clear"}
    start_failed = {"instance": "nobody", "prompt": prompt}
    browser.write("form.acting [name=instance]", start_failed["instance"])
    browser.click("form.acting button[type=submit]")
    browser.says("no instance 'nobody'", "#said")
    wrong = [one for one in browser.wrong() if "404" not in one]
    assert wrong == []


@pytest.mark.full
def test_keys_choose_views_and_the_theme_stays(browser: Browser, cluster: PageCluster) -> None:
    def press(key: str) -> None:
        browser.run(
            "document.body.dispatchEvent(new KeyboardEvent('keydown',"
            "{key: arguments[0], bubbles: true}))",
            key,
        )

    browser.dark(False)
    shows(browser, cluster, "overview", "Hit share")
    press("2")
    browser.says("2 that live", "main")
    press("/")
    assert browser.run("return document.activeElement.id") == "filter"
    press("t")
    back = "return getComputedStyle(document.body).backgroundColor"
    dark = browser.run(back)
    browser.driver.refresh()
    browser.says("2 that live", "main")
    assert browser.run(back) == dark
    press("t")
    assert browser.run(back) != dark
    press("?")
    assert browser.run("return document.getElementById('keys').open") is True
    browser.run("localStorage.clear()")
    assert browser.wrong() == []


@pytest.mark.full
def test_a_token_is_asked_for_and_then_serves_everything(browser: Browser) -> None:
    with page_cluster(http_token=TOKEN) as cluster:
        browser.driver.get(f"{cluster.url}/?view=nodes")
        browser.until("it asks", "return document.getElementById('ask').open")
        assert "one/0" not in browser.text("main")
        browser.write("#token", TOKEN)
        browser.click("#ask button")
        browser.says("2 that live", "main")
        browser.run("sessionStorage.clear()")


@pytest.mark.full
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_dead_controller_is_shown_within_three_seconds(
    browser: Browser, how: signal.Signals
) -> None:
    ports = '{"pull": 0, "reply": 0, "heartbeat": 0}'
    with Process("controller", "--port", 0, "--monitor-ports", ports) as controller:
        url = controller.says(r"controller at (http\S+);")[1]
        browser.driver.get(f"{url}/?view=events")
        browser.says("live", "#link")
        controller.process.send_signal(how)
        browser.says("The controller is silent", "#dead")
        # From its last word on, which it speaks twice a second, on the clock of the page.
        after_ms = browser.run("return Number(document.getElementById('dead').dataset.afterMs)")
        assert after_ms <= 3000
        if how is signal.SIGSTOP:
            controller.process.send_signal(signal.SIGCONT)
            browser.until("it is back", "return document.getElementById('dead').hidden")
