"""Draws docs/quality-*.svg from what bench_quality left in build/quality.json.

    python3 bench/quality/curves.py [build/quality.json]

One picture for each kind of problem and axis: mean gap to the exact optimum, in
percent, by evaluations (linear) or by seconds (logarithmic).
"""

import json
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 60, 250, 34, 44
LOWEST = 0.05  # percent; what is below is drawn there
COLOURS = ["#888888", "#b8860b", "#1f5fa8", "#c0392b", "#d9b35c", "#7aa6d6", "#e58a80",
           "#123f73", "#7b1fa2", "#2e8b57", "#e67e22", "#000000", "#00838f", "#9e9d24", "#6d4c41"]
SHOWN = {
    "evaluations": ["restart 1-opt", "annealing", "annealing, seed and polish", "dqn", "dqn, polish",
                    "dqn, seed and polish", "dqn, its kind or model held out", "dqn, untrained network",
                    "dqn's ranks without a network"],
    "seconds": ["restart 1-opt", "annealing", "dqn", "dqn, polish", "dqn, its kind or model held out",
                "dqn, untrained network", "annealing, 100,000 evaluations"],
}


def ticks(axis, least, most):
    if axis == "evaluations":
        return [(value, str(value)) for value in range(0, int(most) + 1, 200)]
    first, last = math.ceil(math.log10(least)), math.floor(math.log10(most))
    return [(10.0**power, f"{10.0**power:g} s") for power in range(first, last + 1)]


def draw(curves, kind, axis):
    shown = [curve for curve in curves if curve["kind"] == kind and curve["name"] in SHOWN[axis]]
    places = [x for curve in shown for x, _ in curve[axis]]
    gaps = [100 * gap for curve in shown for _, gap in curve[axis]]
    least, most, top = min(places), max(places), max(10.0, min(max(gaps), 1000.0))
    if axis == "evaluations":
        least = 0

    def x_of(value):
        if axis == "seconds":
            share = math.log(value / least) / math.log(most / least)
        else:
            share = (value - least) / (most - least)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y_of(percent):
        share = math.log(min(max(percent, LOWEST), top) / LOWEST) / math.log(top / LOWEST)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="13">{kind}: mean gap to the optimum by {axis}</text>',
    ]
    for percent in (0.05, 0.1, 0.5, 1, 5, 10, 50, 100, 500, 1000):
        if LOWEST <= percent <= top:
            y = y_of(percent)
            lines.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
            lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{percent:g} %</text>')
    for value, label in ticks(axis, least, most):
        x = x_of(value)
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#eeeeee"/>')
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{label}</text>')
    for number, curve in enumerate(shown):
        colour = COLOURS[SHOWN[axis].index(curve["name"])]
        points = " ".join(f"{x_of(x):.1f},{y_of(100 * gap):.1f}" for x, gap in curve[axis])
        y = TOP + 14 * number + 8
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        lines.append(f'<rect x="{WIDTH - RIGHT + 12}" y="{y - 8}" width="12" height="3" fill="{colour}"/>')
        lines.append(f'<text x="{WIDTH - RIGHT + 30}" y="{y - 3}">{curve["name"]}</text>')
    return "\n".join(lines + ["</svg>", ""])


def main():
    with open(sys.argv[1] if len(sys.argv) > 1 else "build/quality.json", encoding="utf-8") as file:
        curves = json.load(file)["curves"]
    for kind in ("planted", "windows"):
        for axis in ("evaluations", "seconds"):
            with open(f"docs/quality-{kind}-{axis}.svg", "w", encoding="utf-8") as file:
                file.write(draw(curves, kind, axis))


if __name__ == "__main__":
    main()
