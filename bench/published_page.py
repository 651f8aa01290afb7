#!/usr/bin/env python3
"""Tables and pictures of docs/published.md, from the predictions of a table of runs.

    python3 bench/published_page.py RUNS.csv [--predictions P.jsonl]

Runs `build/automap published RUNS.csv --json`, unless its output is given. Replaces the text between the marks
`<!-- NAME -->` and `<!-- end -->` of docs/published.md: errors by source, the same without the sources whose rows
decided about a constant, orders by width, the bias by stages, rows out of memory that are predicted to fit, and the
ten worst rows. Writes docs/published-light.svg and docs/published-dark.svg.
"""
import argparse
import collections
import csv
import json
import math
import pathlib
import re
import subprocess

HERE = pathlib.Path(__file__).resolve().parent.parent
PAGE = HERE / "docs" / "published.md"
COLOURS = {  # of sources, distinguishable without red and green
    "light": ("#ffffff", "#222222", "#cccccc", "#0072b2 #d55e00 #009e73 #cc79a7 #56b4e9 #e69f00 #8c6d31".split()),
    "dark": ("#0d1117", "#e6e6e6", "#444c56", "#58a6ff #ff9e64 #56d4a0 #e0a0cc #9ad1ff #ffd166 #c9b27c".split()),
}


def quantile(values, share):
    values = sorted(values)
    place = share * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])


def read_rows(runs, predictions):
    rows = []
    for run, text in zip(csv.DictReader(open(runs)), predictions, strict=True):
        row = {**run, **json.loads(text)}
        row["measured"] = float(run["step_seconds"]) if run["step_seconds"] else None
        row["relative"] = None
        if row["measured"] and row["predicted_seconds"]:
            row["relative"] = row["predicted_seconds"] / row["measured"] - 1
        rows.append(row)
    return [row for row in rows if row["data"]]  # the others have no strategy


def groups_of(rows):
    """Lists of the measured and predicted seconds of groups."""
    groups = collections.defaultdict(list)
    for row in rows:
        if row["relative"] is not None:
            groups[row["group"]].append((row["measured"], row["predicted_seconds"]))
    return groups


def signs_of(group):
    """1 for a pair of rows in the right order, -1 in the wrong one, 0 for equal predictions."""
    return [((a[0] > b[0]) - (a[0] < b[0])) * ((a[1] > b[1]) - (a[1] < b[1]))
            for k, a in enumerate(group) for b in group[:k] if a[0] != b[0]]  # fmt: skip


def pairs_of(rows):
    """Kendall's tau over pairs of groups, its median over groups of at least 8 rows, and the median regret."""
    total = unequal = 0
    large, regrets = [], []
    for group in groups_of(rows).values():
        if len(group) < 2:
            continue
        signs = signs_of(group)
        total += sum(signs)
        unequal += len(signs)
        if len(group) >= 8 and signs:
            large.append(sum(signs) / len(signs))
        best = min(group, key=lambda pair: pair[1])
        regrets.append(best[0] / min(pair[0] for pair in group) - 1)
    return (total / unequal if unequal else None, quantile(large, 0.5) if large else None,
            quantile(regrets, 0.5) if regrets else None)  # fmt: skip


def percent(value, sign=""):
    return "" if value is None else f"{100 * value:{sign}.1f} %"


def summary(name, rows):
    errors = [row["relative"] for row in rows if row["relative"] is not None]
    if not errors:
        return f"| {name} | " + " | " * 10 + "|"
    absolute = [abs(error) for error in errors]
    measured = sum(row["measured"] is not None for row in rows)
    failed = sum(row["predicted_seconds"] is None and (row["measured"] is not None or row["outcome"] == "oom")
                 for row in rows)  # fmt: skip
    tau, large, regret = pairs_of(rows)
    known = [row for row in rows if row["fits"] is not None]
    oom = [row for row in known if row["outcome"] == "oom"]
    fine = [row for row in known if row["outcome"] == "ok"]
    cells = [name, str(measured), str(failed), percent(quantile(absolute, 0.5)), percent(quantile(absolute, 0.9)),
             percent(sum(errors) / len(errors), "+"), "" if tau is None else f"{tau:.2f}",
             "" if large is None else f"{large:.2f}", percent(regret),
             f"{sum(row['fits'] for row in oom)} of {len(oom)}",
             f"{sum(not row['fits'] for row in fine)} of {len(fine)}"]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


COLUMNS = ["source", "measured", "failed", "median", "90th percentile", "bias", "tau", "tau, 8 and more", "regret",
           "oom missed", "false oom"]
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def by_source(rows):
    sources = list(dict.fromkeys(row["source"] for row in rows))
    lines = [summary(source, [row for row in rows if row["source"] == source]) for source in sources]
    lines.append(summary("all", rows))
    lines += [summary(f"all but {source}", [row for row in rows if row["source"] != source])
              for source in ("vTrain", "AlephAlpha", "llm-foundry") if source in sources]  # fmt: skip
    return "\n".join([HEAD, *lines])


def orders(rows):
    """Pairs of groups of at least 8 rows, by source and width; near pairs have measured steps within 1 %."""
    lines = ["| source | width | groups | pairs | wrong | near pairs | wrong | mean of tau |", "|---" * 8 + "|"]
    keys = dict.fromkeys((row["source"], int(row["hidden"])) for row in rows)
    for source, width in sorted(keys):
        mine = groups_of([row for row in rows if (row["source"], int(row["hidden"])) == (source, width)])
        large = [group for group in mine.values() if len(group) >= 8]
        if not large:
            continue
        signs = [signs_of(group) for group in large]
        near = [(a[0] - b[0]) * (a[1] - b[1]) < 0 for group in large for k, a in enumerate(group) for b in group[:k]
                if a[0] != b[0] and abs(a[0] - b[0]) < 0.01 * max(a[0], b[0])]  # fmt: skip
        tau = sum(sum(each) / len(each) for each in signs) / len(signs)
        lines.append(f"| {source} | {width} | {len(large)} | {sum(map(len, signs))} | "
                     f"{sum(each.count(-1) for each in signs)} | {len(near)} | {sum(near)} | {tau:.2f} |")  # fmt: skip
    return "\n".join(lines)


def stages(rows):
    """The bias of AlephAlpha's rows by size, tensor degree and stages."""
    cells = collections.defaultdict(list)
    for row in rows:
        if row["source"] == "AlephAlpha" and row["relative"] is not None:
            cells[int(row["layers"]), int(row["tensor"]), int(row["pipeline"])].append(row["relative"])
    counts = sorted({key[2] for key in cells})
    lines = ["| layers | tensor | " + " | ".join(f"stages {count}" for count in counts) + " |",
             "|---" * (2 + len(counts)) + "|"]  # fmt: skip
    for layers, tensor in sorted({key[:2] for key in cells}):
        of_counts = [cells.get((layers, tensor, count)) for count in counts]
        lines.append(f"| {layers} | {tensor} | " + " | ".join(
            percent(sum(each) / len(each), "+") if each else "" for each in of_counts) + " |")  # fmt: skip
    return "\n".join(lines)


def missed(rows):
    """Rows out of memory that are predicted to fit."""
    lines = ["| line | model | note | data x tensor x stages | micro-batch | recompute | predicted peak |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        if row["outcome"] == "oom" and row["fits"]:
            lines.append(f"| {row['line']} | {row['layers']} x {row['hidden']} | {row['note'].split(';')[0]} | "
                         f"{row['data']} x {row['tensor']} x {row['pipeline']} | {row['micro_batch']} | "
                         f"{row['recompute']} | {row['predicted_peak_gib']:.1f} GiB |")  # fmt: skip
    return "\n".join(lines)


def worst(rows):
    known = sorted((row for row in rows if row["relative"] is not None), key=lambda row: -abs(row["relative"]))
    lines = ["| line | source | model | data x tensor x stages | micro-batch | recompute | error |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in known[:10]:
        lines.append(f"| {row['line']} | {row['source']} | {row['model']} {row['layers']} x {row['hidden']} | "
                     f"{row['data']} x {row['tensor']} x {row['pipeline']} | {row['micro_batch']} | "
                     f"{row['recompute']} | {percent(row['relative'], '+')} |")  # fmt: skip
    return "\n".join(lines)


def picture(rows, theme):
    """Predicted over measured seconds, both in logarithms; lines at equal times and 20 % beside them."""
    ground, ink, grid, colours = COLOURS[theme]
    known = [row for row in rows if row["relative"] is not None]
    sources = list(dict.fromkeys(row["source"] for row in known))
    low, high = -1.3, 2.6

    def at(seconds):
        return 60 + (math.log10(seconds) - low) / (high - low) * 460

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 580" font-family="sans-serif" font-size="13">',
             f'<rect width="680" height="580" fill="{ground}"/>']  # fmt: skip
    for power in range(-1, 3):
        place = at(10**power)
        parts += [f'<path d="M{place:.1f} 60V520M60 {580 - place:.1f}H520" stroke="{grid}"/>',
                  f'<text x="{place:.1f}" y="540" text-anchor="middle" fill="{ink}">{10.0**power:g} s</text>',
                  # fmt: skip
                  f'<text x="54" y="{584 - place:.1f}" text-anchor="end" fill="{ink}">{10.0**power:g} s</text>']
    for factor in (0.8, 1, 1.2):
        shift = math.log10(factor) / (high - low) * 460
        dash = "" if factor == 1 else ' stroke-dasharray="4 4"'
        parts.append(f'<path d="M60 {520 - shift:.1f}L520 {60 - shift:.1f}" stroke="{ink}" fill="none"{dash}/>')
    for k, source in enumerate(sources):
        colour = colours[k % len(colours)]
        dots = "".join(f'<circle cx="{at(row["measured"]):.1f}" cy="{580 - at(row["predicted_seconds"]):.1f}" r="2.2"/>'
                       for row in known if row["source"] == source)  # fmt: skip
        parts += [f'<g fill="{colour}" fill-opacity="0.6">{dots}</g>',
                  f'<circle cx="545" cy="{80 + 22 * k}" r="5" fill="{colour}"/>',
                  f'<text x="556" y="{85 + 22 * k}" fill="{ink}">{source}</text>']  # fmt: skip
    parts += [f'<text x="290" y="566" text-anchor="middle" fill="{ink}">measured step</text>',
              f'<text x="20" y="290" text-anchor="middle" fill="{ink}" transform="rotate(-90 20 290)">predicted '
              f'step</text>',
              "</svg>"]  # fmt: skip
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs")
    parser.add_argument("--predictions")
    given = parser.parse_args()
    if given.predictions:
        lines = pathlib.Path(given.predictions).read_text().splitlines()
    else:
        done = subprocess.run([HERE / "build" / "automap", "published", given.runs, "--json"], check=True,
                              capture_output=True, text=True)  # fmt: skip
        lines = done.stdout.splitlines()
    rows = read_rows(given.runs, lines)
    text = PAGE.read_text()
    tables = {"sources": by_source(rows), "orders": orders(rows), "stages": stages(rows), "missed": missed(rows),
              "worst": worst(rows)}  # fmt: skip
    for name, table in tables.items():
        text, count = re.subn(rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m: m[1] + table + "\n" + m[2], text,
                              count=1, flags=re.S)
        if count != 1:
            raise SystemExit(f"{PAGE}: expected one mark <!-- {name} -->")
    PAGE.write_text(text)
    for theme in COLOURS:
        (HERE / "docs" / f"published-{theme}.svg").write_text(picture(rows, theme))
    print(by_source(rows))


if __name__ == "__main__":
    main()
