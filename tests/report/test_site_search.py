"""The search of the documentation works from the disk: a worker's script runs in a frame where there are no workers."""

from pathlib import Path

from browser import Tab

SHIM = Path(__file__).parents[2] / "docs/iframe-worker.js"
WORKER = """
addEventListener("message", async (event) => {
  if (event.data.load) await importScripts("more.js");
  event.data.heard = true;
  postMessage({ answer: event.data.text.toUpperCase(), more: typeof more });
});
"""
PAGE = """<!doctype html><body><script src="iframe-worker.js"></script><script>
const sent = { text: "parquet" }, answers = [];
const worker = new Worker("workers/search.js");
worker.addEventListener("message", (event) => answers.push(event.data));
worker.postMessage(sent);
worker.postMessage({ text: "arrow", load: true });
const both = new Promise((done) => worker.addEventListener("message", () => answers.length === 2 && done([answers, sent])));
</script>"""


def test_workers_answer_on_a_page_from_the_disk(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "iframe-worker.js").write_text(SHIM.read_text("utf-8"))
    (tmp_path / "workers/search.js").write_text(WORKER)
    (tmp_path / "more.js").write_text("var more = 1;")
    (tmp_path / "page.html").write_text(PAGE)
    tab.open(tmp_path / "page.html")
    answer = tab.call("Runtime.evaluate", expression="both", awaitPromise=True, returnByValue=True)

    assert [
        [{"answer": "PARQUET", "more": "undefined"}, {"answer": "ARROW", "more": "number"}],
        {"text": "parquet"},
    ] == answer["result"]["value"]
    assert [] == tab.complaints
