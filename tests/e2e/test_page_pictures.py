# labels: cpu e2e
# timeout: 120
# python: plain
"""The page of `explain --html` in a browser: pictures, contrast and the search, narrow and wide, light and dark.

Headless Chromium draws the page. A script in a copy of the page measures the drawing: overflow, sizes of text, the
contrast of every text with its background (WCAG 2 AA), the boxes of the timeline, the bars of memory, and the rows that
a search leaves.
Without Chromium the test is shown as skipped.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_page_pictures.py`.
"""

import html
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import module, need_program, succeed

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
PLANS = {"one": ["--mesh", "data=2,model=2", "--baseline", "megatron"],
         "stages": ["--space", "pipeline", "--baseline", "even_pipeline", "--mesh", "data=2",
                    "--micro-batches", "4"]}  # fmt: skip
WIDTHS = (400, 1280)
SCHEMES = {"dark": 0, "light": 1}  # the numbers of Chromium's preferredColorScheme
MEASURE = """<script>{
const number = text => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map(x => x / 255)
  .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
  .reduce((sum, x, k) => sum + x * [0.2126, 0.7152, 0.0722][k], 0);
function behind(element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = number(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
}
function boxUnder(text) {
  const at = text.getBoundingClientRect(), x = at.left + at.width / 2, y = at.top + at.height / 2;
  for (const box of text.ownerSVGElement.querySelectorAll('rect')) {
    const r = box.getBoundingClientRect();
    const fill = getComputedStyle(box).fill;
    if (r.left <= x && x <= r.right && r.top <= y && y <= r.bottom && fill != 'none') return number(fill);
  }
  return behind(text.ownerSVGElement);
}
const texts = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const element = walk.currentNode.parentElement, style = getComputedStyle(element);
  if (!walk.currentNode.data.trim() || !element.getClientRects().length) continue;
  if (element.closest('script, style, title, option')) continue;
  const isDrawn = element.ownerSVGElement;
  const ink = light(number(isDrawn ? style.fill : style.color));
  const under = light(isDrawn ? boxUnder(element) : behind(element));
  texts.push({text: walk.currentNode.data.trim().slice(0, 40), size: parseFloat(style.fontSize),
              contrast: (Math.max(ink, under) + 0.05) / (Math.min(ink, under) + 0.05)});
}
const field = document.getElementById('find');
const visible = () => [...document.body.querySelectorAll('tr')].filter(row => row.getClientRects().length).length;
const counts = ['', 'bias', 'no such parameter'].map(word => {
  field.value = word;
  field.dispatchEvent(new Event('input', {bubbles: true}));
  return visible();
});
const boxes = [...document.querySelectorAll('svg rect.forward, svg rect.backward')]
  .map(box => box.getBoundingClientRect());
const edge = element => element.getBoundingClientRect();
const pictures = [...document.querySelectorAll('svg[role=img]')].map(svg => {
  const shown = [...svg.querySelectorAll('text')].filter(text => text.getClientRects().length).map(edge);
  const over = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const around = [];
  for (let at = svg.parentElement; at; at = at.parentElement) around.push(at.scrollWidth - at.clientWidth);
  const bars = [...svg.querySelectorAll('rect:not(.frame)')].map(edge).filter(box => box.height > 12);
  return {name: svg.getAttribute('aria-label'), scrolls: Math.max(...around), right: edge(svg).right,
          left: Math.min(...shown.map(box => box.left)), end: Math.max(...shown.map(box => box.right)),
          hidden: shown.filter((a, k) => shown.some((b, m) => m > k && over(a, b))).length,
          widest: Math.max(0, ...bars.map(box => box.width)) / edge(svg).width};
});
const report = {pictures, overflow: document.documentElement.scrollWidth - window.innerWidth, texts, counts,
                boxes: boxes.length, drawn: boxes.filter(box => box.width > 0 && box.height >= 8).length,
                background: number(getComputedStyle(document.body).backgroundColor)};
const written = document.createElement('pre');
written.id = 'report';
written.textContent = JSON.stringify(report);
document.body.append(written);
}</script>"""


def browse(browser, page, *words):
    done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *words,
                           page.as_uri()], capture_output=True, text=True, timeout=60, cwd=page.parent)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def pixels(path):
    """(width, height, {colour: number of pixels}) of a PNG of 8-bit RGB or RGBA."""
    data, at, packed = path.read_bytes(), 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", data[at + 8 : at + 18])
        if kind == b"IDAT":
            packed += data[at + 8 : at + 8 + size]
        at += size + 12
    assert depth == 8 and colour in (2, 6), (depth, colour)
    step = 3 if colour == 2 else 4
    rows, above, counts = zlib.decompress(packed), bytes(width * step), {}
    for y in range(height):
        start = y * (width * step + 1)
        row = unfilter(rows[start], bytearray(rows[start + 1 : start + 1 + width * step]), above, step)
        for x in range(0, len(row), 7 * step):  # a sample of the columns
            key = bytes(row[x : x + 3])
            counts[key] = counts.get(key, 0) + 1
        above = row
    return width, height, counts


def unfilter(kind, row, above, step):
    """A row of a PNG from its filtered form, by the row above it."""
    for x in range(len(row)):
        left, up = row[x - step] if x >= step else 0, above[x]
        corner = above[x - step] if x >= step else 0
        if kind == 1:
            row[x] = (row[x] + left) & 255
        elif kind == 2:
            row[x] = (row[x] + up) & 255
        elif kind == 3:
            row[x] = (row[x] + (left + up) // 2) & 255
        elif kind == 4:
            near = min((left, up, corner), key=lambda value: abs(left + up - corner - value))
            row[x] = (row[x] + near) & 255
    return row


def check_report(report, name, scheme, width):
    place = f"{name}, {width} px, {scheme}"
    assert report["overflow"] <= 0, f"{place}: the page is {report['overflow']} px wider than the window"
    assert len(report["texts"]) > 50, f"{place}: {len(report['texts'])} texts"
    for text in report["texts"]:
        assert text["contrast"] >= 4.5, f"{place}: contrast {text['contrast']:.2f} of {text['text']!r}"
        assert text["size"] >= 11, f"{place}: {text['size']} px of {text['text']!r}"
    check_charts(report["pictures"], place, width)
    everything, some, none = report["counts"]
    assert everything > some > none, f"{place}: rows of the searches {report['counts']}"
    assert report["boxes"] > 1 and report["drawn"] >= report["boxes"] / 2, f"{place}: {report['drawn']} boxes are drawn"
    assert (sum(report["background"][:3]) > 384) == (scheme == "light"), f"{place}: {report['background']}"


def check_charts(pictures, place, width):
    """The timeline and the bars of memory are whole in the window, and their texts do not cover one another."""
    assert [picture["name"] for picture in pictures] == ["timeline of the stages", "memory of the stages"], pictures
    for picture in pictures:
        what = f"{place}: {picture}"
        assert picture["scrolls"] <= 0 and picture["left"] >= 0, what
        assert max(picture["right"], picture["end"]) <= width and picture["hidden"] == 0, what
        assert picture["widest"] >= 0.05, f"{what}: bars are too narrow to see"


def check_picture(browser, page, words, width, background):
    picture = page.with_suffix(".png")
    browse(browser, page, *words, f"--screenshot={picture}", f"--window-size={width},900")
    seen, height, counts = pixels(picture)
    assert (seen, height) == (width, 900)
    most = max(counts, key=counts.get)
    assert list(most) == background[:3], f"most of the picture is {most}, the page is {background}"
    others = [colour for colour in counts if max(colour) - min(colour) > 60]
    assert len(others) >= 3, "the picture has no coloured boxes"


def main():
    need_program()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        print("skipped: no headless Chromium")
        return 77
    with tempfile.TemporaryDirectory() as name:
        folder, model = pathlib.Path(name), module("gpt2_tiny")
        for plan, words in PLANS.items():
            succeed("search", model, "--cluster", "nominal:4", *words, "-o", folder / "plan.json", "--quiet")
            page, measured = folder / f"{plan}.html", folder / f"{plan}_measured.html"
            succeed("explain", folder / "plan.json", model, "--html", page)
            measured.write_text(page.read_text().replace("</body>", MEASURE + "</body>"))
            assert MEASURE in measured.read_text(), "the page has no end of its body"
            for scheme, number in SCHEMES.items():
                for width in WIDTHS:
                    look = [f"--blink-settings=preferredColorScheme={number}"]
                    drawn = browse(browser, measured, *look, f"--window-size={width},900", "--dump-dom")
                    report = json.loads(html.unescape(re.search(r'<pre id="report">(.*?)</pre>', drawn, re.S)[1]))
                    check_report(report, plan, scheme, width)
                check_picture(browser, page, look, width, report["background"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
