#!/usr/bin/env bash
# The wheel in a fresh environment: python/build_wheel.sh builds it, pip installs it without an index, and the
# program and the Python package search, simulate, explain, export and run from another folder, without the
# repository's files. automap_torch trains on two ranks. The platform tag is that of the glibc needed, and each
# bundled library has a licence. The cells of both example notebooks run with the packages of the wheel. With the
# extra `jax` the notebook of JAX runs in Jupyter, too, where a package index has them.
# labels: cpu e2e full
# timeout: 1800
# cost: 300
set -euo pipefail
if [ -n "${AUTOMAP_SANITIZE:-}" ]; then
  echo "skipped: a sanitized build has no wheel"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python/build_wheel.sh "$work/dist"
wheel=$(echo "$work"/dist/*.whl)
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check --no-index "$wheel"
model=$AUTOMAP_SOURCE/datasets/models/mlp_tiny
mkdir "$work/other"
cd "$work/other"
unset AUTOMAP_LIBRARY AUTOMAP PYTHONPATH LD_LIBRARY_PATH
PATH=$work/venv/bin:/usr/bin:/bin

# The program.
[ "$(command -v automap)" = "$work/venv/bin/automap" ]
automap search "$model/model.hlo.pb" --cluster nominal:4 --even --evaluations 20 -o plan.json --quiet
automap simulate plan.json "$model/model.hlo.pb" >/dev/null
automap explain plan.json "$model/model.hlo.pb" --evaluations 3 --html report.html >/dev/null
automap export plan.json "$model/model.hlo.pb" --format jax -o jax.json
automap run "$model/model.hlo.pb" --plan plan.json --state "$model/state.npz" --data "$model/data.npz" --steps 3 \
  --json -o run.jsonl
grep -q '"loss"' run.jsonl
AUTOMAP_LIBRARY=/no/such/file automap --version | grep -q '^automap '  # the program does not load it
python -I -m automap_hlo --version | grep -q '^automap '
status=0
automap search no_such_file --cluster C 2>/dev/null || status=$?
[ "$status" = 3 ]

# The package.
cat >use.py <<'PYTHON'
import importlib.metadata
import json
import pathlib
import sys

import automap_hlo as automap

model, venv = (pathlib.Path(argument) for argument in sys.argv[1:])
assert pathlib.Path(automap.__file__).is_relative_to(venv), automap.__file__
with open("/proc/self/maps") as maps:
    mapped = {line.split()[-1] for line in maps if ".so" in line and ("openblas" in line or "automap" in line)}
assert mapped and all(name.startswith(str(venv)) for name in mapped), mapped

plan = automap.Plan("plan.json", automap.Module(model / "model.hlo.pb"))
same = automap.search(plan.module, "nominal:4", even=True, evaluations=20)
assert same.step_seconds == plan.step_seconds and same.parameters == plan.parameters
assert automap.simulate(plan).step_seconds == plan.step_seconds
assert "<html" in automap.explain(plan, evaluations=3).to_html()
assert json.loads(automap.export(plan, "jax")) == json.loads(pathlib.Path("jax.json").read_text())
result = automap.run(plan.module, plan, state=model / "state.npz", data=model / "data.npz", steps=3)
reference = json.loads((model / "losses.json").read_text())
reference = next(value for value in reference.values() if isinstance(value, list))
assert abs(result.last_loss - reference[2]) <= 5e-6 * reference[2], (result, reference[2])

files = [str(file) for file in importlib.metadata.files("automap-hlo")]
bundled = {file.split("/")[1].rsplit("-", 1)[0] for file in files if file.startswith("automap_hlo.libs/")}
licences = {file.split("LICENSE.")[1][:-4] for file in files if "/LICENSE." in file}
assert len(bundled) > 5 and bundled <= licences, (bundled, licences)
print("the package works;", len(bundled), "libraries are bundled")
PYTHON
python -I use.py "$model" "$work/venv"

# No library of the build machine is needed beyond those of the platform tag.
for file in "$work"/venv/lib/python3*/site-packages/automap_hlo/{lib/libautomap.so,bin/automap}; do
  foreign=$(ldd "$file" | grep -vE 'automap_hlo\.libs/|^\s*(lib(c|m|z|expat|gcc_s|pthread|dl)\.so|linux-vdso|/lib)' ||
    true)
  [ -z "$foreign" ] || { echo "$file needs $foreign"; exit 1; }
done
case $wheel in *-py3-none-manylinux_2_*_*.whl) ;; *) echo "bad tag: $wheel"; exit 1 ;; esac
echo "$(basename "$wheel"): $(du -h "$wheel" | cut -f1)"

# automap_torch of the wheel, under the PyTorch of the tests: two ranks have the losses of one process.
torch=$AUTOMAP_SOURCE/.venv-torch/bin/python
cat >torch_step.py <<'PYTHON'
import json
import pathlib
import subprocess
import sys

import automap_torch
import torch

loss = lambda model, x, y: torch.nn.functional.cross_entropy(model(x), y)


def make():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    return model, (torch.randn(8, 16), torch.randint(0, 8, (8,)))


def train(step, update, batch):
    values = []
    for _ in range(3):
        values.append(float(step(*batch)))
        update.step()
        update.zero_grad()
    return values


def train_rank(rank, wanted):
    store = f"file://{pathlib.Path('store').resolve()}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    model, batch = make()
    training = automap_torch.parallelize(model, loss, json.loads(pathlib.Path("torch.json").read_text()))
    values = train(training.step, torch.optim.SGD(training.parameters(), lr=0.1), batch)
    assert max(abs(a - b) for a, b in zip(values, wanted)) < 1e-5, (values, wanted)
    torch.distributed.destroy_process_group()


def main():
    assert pathlib.Path(automap_torch.__file__).is_relative_to(sys.argv[1]), automap_torch.__file__
    model, batch = make()
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    automap_torch.export(model, loss, update, batch, "torch_model")
    subprocess.run(["automap", "search", "torch_model/model.hlo", "--cluster", "nominal:2", "--for", "torch",
                    "--stages", "2", "--micro-batches", "4", "-o", "torch_plan.json", "--quiet"], check=True)
    subprocess.run(["automap", "export", "torch_plan.json", "torch_model/model.hlo", "--format", "torch",
                    "-o", "torch.json"], check=True)

    def step(*batch):
        value = loss(model, *batch)
        value.backward()
        return value.detach()

    wanted = train(step, update, batch)
    torch.multiprocessing.start_processes(train_rank, (wanted,), nprocs=2, start_method="spawn")
    print("automap_torch works: two ranks, losses", wanted)


if __name__ == "__main__":
    main()
PYTHON
packages=$(echo "$work"/venv/lib/python3*/site-packages)
if "$torch" -c 'import torch' 2>/dev/null; then
  PYTHONPATH=$packages "$torch" torch_step.py "$work/venv"
else
  echo "automap_torch is skipped: no .venv-torch"
fi

# The cells of the notebooks, by the frameworks of the tests.
cat >cells.py <<'PYTHON'
import json
import pathlib
import sys

import automap_hlo

book, venv = (pathlib.Path(argument) for argument in sys.argv[1:])
assert pathlib.Path(automap_hlo.__file__).is_relative_to(venv), automap_hlo.__file__
cells = [cell for cell in json.loads(book.read_text())["cells"] if cell["cell_type"] == "code"]
names = {"__name__": "cells"}
for number, cell in enumerate(cells):
    exec(compile("".join(cell["source"]), f"{book.name}, cell {number}", "exec"), names)
print(f"{book.name}: {len(cells)} cells work")
PYTHON
for framework in jax torch; do
  python=$AUTOMAP_SOURCE/.venv/bin/python
  [ "$framework" = jax ] || python=$torch
  if "$python" -c "import $framework" 2>/dev/null; then
    PYTHONPATH=$packages "$python" cells.py "$AUTOMAP_SOURCE/examples/${framework}_plan.ipynb" "$work/venv"
  else
    echo "${framework}_plan.ipynb is skipped: no $framework"
  fi
done

# The notebook of JAX, in Jupyter's kernel.
if ! pip install -q --disable-pip-version-check \
  -c "$AUTOMAP_SOURCE/tests/requirements.txt" "$wheel[jax]" nbclient==0.11.0 ipykernel==7.4.0 \
  >pip.log 2>&1; then
  echo "the notebook is skipped: $(tail -1 pip.log)"
  exit 0
fi
python - "$AUTOMAP_SOURCE/examples/jax_plan.ipynb" <<'PYTHON'
import sys

import nbclient
import nbformat

book = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
print("the notebook works:", sum(cell.cell_type == "code" for cell in book.cells), "cells")
PYTHON
