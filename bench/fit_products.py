#!/usr/bin/env python3
"""Fits of matrix products and fused attention to measured tables, with their leave-one-out errors.

    python3 bench/fit_products.py products.csv attention_and_grouped.csv operators.csv [--write] [--page]

A product of m x k and k x n takes, after its launch, 2 (m + a) (n + a) (k + b) / (peak e) seconds. The edge a is
work on tiles that are not full, b the start and end of a tile's sum. Fused attention of R rows (batch x heads x
sequence) and K keys takes c 2 (R + a) K (d + d') / (peak e), with c = 1 forward and 2.5 backward. Needs NumPy and
SciPy. --write writes cost/measured/device_fits.def and product_points.def, --page the tables of docs/cost-model.md.
"""
import argparse
import csv
import pathlib

import marked_section
import numpy as np
from scipy.optimize import least_squares

LAUNCH = 4e-6
PEAKS = {"A100-PCIe-80GB": 312e12, "B200": 2250e12, "V100": 125e12}
HERE = pathlib.Path(__file__).resolve().parent.parent


def product_seconds(fit, shapes, peak):
    share, edge, depth = fit
    return LAUNCH + 2 * (shapes[:, 0] + edge) * (shapes[:, 1] + edge) * (shapes[:, 2] + depth) / (peak * share)


def attention_seconds(fit, shapes, peak):
    share, edge = fit
    return LAUNCH + 2 * (shapes[:, 0] + edge) * shapes[:, 1] * shapes[:, 2] / (peak * share)


def fit_table(model, start, shapes, seconds, peak):
    """Returns the fit; residuals are logarithms, and large ones count less."""
    def residuals(x):
        return np.log(model(np.exp(x), shapes, peak)) - np.log(seconds)
    return np.exp(least_squares(residuals, np.log(start), loss="soft_l1", f_scale=0.1).x)


def left_out_errors(model, start, shapes, seconds, peak):
    errors = []
    for k in range(len(seconds)):
        kept = np.arange(len(seconds)) != k
        fit = fit_table(model, start, shapes[kept], seconds[kept], peak)
        errors.append(abs(model(fit, shapes[k:k + 1], peak)[0] / seconds[k] - 1))
    return np.array(errors)


def read_products(path, device, layout):
    """Mean seconds of each shape; weight gradients are the rows with a result in f32."""
    rows = {}
    for row in csv.DictReader(open(path)):
        if row["device"] != device or row["layout"] != layout or (layout == "NT" and row["out_dtype"] != "fp32"):
            continue
        shape = tuple(int(row[key]) for key in "mnk")
        flops = 2 * shape[0] * shape[1] * shape[2]
        rows.setdefault(shape, []).append(flops / (float(row["peak_tflops"]) * 1e12 * float(row["efficiency"])))
    shapes = sorted(rows)
    return np.array(shapes, float), np.array([np.mean(rows[shape]) for shape in shapes])


def read_v100(path, backward):
    """Products of GPT layers that are long enough for the host not to be seen, without those that hold an
    all-reduce. A backward time is that of two products of the same size."""
    forward_only = ("enc-MLP-GEMM-1", "enc-attention-qkv")
    rows = {}
    for row in csv.DictReader(open(path)):
        width, ways = int(row["hidden"]), int(row["tensor"])
        tokens = int(row["micro_batch"]) * int(row["sequence"])
        sizes = {"enc-MLP-GEMM-1": (4 * width // ways, width), "enc-attention-qkv": (3 * width // ways, width),
                 "enc-MLP-GEMM-2": (width, 4 * width // ways), "enc-attention-dense": (width, width // ways)}
        name = row["operator"]
        if name not in sizes or (ways > 1 and (name in forward_only) == backward):
            continue
        seconds = float(row["backward_seconds"]) / 2 if backward else float(row["forward_seconds"])
        if seconds > 3e-4:
            rows.setdefault((tokens, *sizes[name]), []).append(seconds)
    shapes = sorted(rows)
    return np.array(shapes, float), np.array([np.mean(rows[shape]) for shape in shapes])


def read_attention(path, device, kernel):
    shapes, seconds = [], []
    for row in csv.DictReader(open(path)):
        if row["device"] != device or row["kernel"] != kernel:
            continue
        given = dict(part.strip().split("=") for part in row["shape"].split(","))
        batch, length, heads, inner, outer = (
            int(given[key]) for key in ("batch", "seq_len", "head_num", "qk_head_dim", "v_head_dim"))
        work = (2.5 if kernel == "sdp_bwd" else 1) * (inner + outer)
        shapes.append((batch * heads * length, length, work))
        seconds.append(2 * batch * heads * length * length * work /
                       (float(row["peak_tflops"]) * 1e12 * float(row["efficiency"])))
    return np.array(shapes, float), np.array(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("products")
    parser.add_argument("attention")
    parser.add_argument("operators")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    tables, points = [], []
    for device, layouts in (("A100-PCIe-80GB", "NN TN NT"), ("B200", "NN TN NT")):
        for layout in layouts.split():
            table = read_products(given.products, device, layout)
            tables.append((device, layout, product_seconds, (0.7, 50, 50), table))
            points += [(device, layout, *shape, seconds) for shape, seconds in zip(*table)]
    forward, backward = read_v100(given.operators, False), read_v100(given.operators, True)
    tables += [("V100", layout, product_seconds, (0.7, 50, 50), forward if layout == "TN" else backward)
               for layout in ("NN", "TN", "NT")]
    for device in ("A100-PCIe-80GB", "B200"):
        tables += [(device, name, attention_seconds, (1, 1e4), read_attention(given.attention, device, kernel))
                   for name, kernel in (("FORWARD", "sdp_fwd"), ("BACKWARD", "sdp_bwd"))]
    lines, rows = [], {"products": [], "attention": []}
    print("device          kind       rows  share    edge   depth    leave one out: median   mean  90th percentile")
    for device, kind, model, start, (shapes, seconds) in tables:
        fit = fit_table(model, start, shapes, seconds, PEAKS[device])
        errors = left_out_errors(model, start, shapes, seconds, PEAKS[device]) * 100
        depth = fit[2] if len(fit) > 2 else 0
        print(f"{device:15} {kind:9} {len(seconds):5} {fit[0]:6.3f} {fit[1]:7.0f} {depth:7.0f} "
              f"{np.median(errors):24.1f} % {errors.mean():5.1f} % {np.quantile(errors, 0.9):8.1f} %")
        cells = [device.removesuffix("-80GB"), kind.lower() if model is attention_seconds else kind, f"{fit[0]:.2f}",
                 f"{fit[1]:.0f}", *([] if model is attention_seconds else [f"{depth:.0f}"]),
                 f"{np.median(errors):.1f} %", f"{np.quantile(errors, 0.9):.1f} %"]
        rows["attention" if model is attention_seconds else "products"].append(cells)
        name = device.split("-")[0]
        macro = "ATTENTION_FIT" if model is attention_seconds else "PRODUCT_FIT"
        sizes = f"{fit[0]:.4f}, {fit[1]:.1f}" + (f", {depth:.1f}" if macro == "PRODUCT_FIT" else "")
        lines.append(f"{macro}({name}, {kind}, {sizes})")
    heads = {"products": "layout | e | a | b", "attention": "pass | e | a"}
    for table, cells in rows.items() if given.page else ():
        head = f"| device | {heads[table]} | leave-one-out error: median | 90th percentile |\n"
        marked_section.write(HERE / "docs" / "cost-model.md", f"bench/fit_products.py, {table}",
                             head + "|---" * len(cells[0]) + "|\n" +
                             "".join("| " + " | ".join(row) + " |\n" for row in cells))
    if given.write:
        folder = HERE / "cost" / "measured"
        (folder / "device_fits.def").write_text(
            "/* Written by bench/fit_products.py:\n *   PRODUCT_FIT(device, layout, share of the peak, edge, depth)\n"
            " *   ATTENTION_FIT(device, pass, share of the peak, edge) */\n" + "\n".join(lines) + "\n")
        (folder / "product_points.def").write_text(
            "/* Written by bench/fit_products.py from measurements of SimuMax:\n"
            " *   PRODUCT_POINT(device, layout, rows, columns, depth, microseconds without launch) */\n" +
            "\n".join(f"PRODUCT_POINT({device.split('-')[0]}, {layout}, {m:.0f}, {n:.0f}, {k:.0f}, "
                      f"{(seconds - LAUNCH) * 1e6:.3f})" for device, layout, m, n, k, seconds in points) + "\n")


if __name__ == "__main__":
    main()
