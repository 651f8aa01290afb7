"""The share of XLA's own propagation tests that `propagate --keep-shardings` passes.

usage: xla_propagation_share.py SHARDING_PROPAGATION_TEST.cc AUTOMAP [-v] [--only PATTERN]

The file is xla/service/sharding_propagation_test.cc of XLA, which is not part of this repository. For
every test the module is taken from its text, and the expected shardings of named instructions from
its statements. Shapes that a text leaves out are filled in. LEFT_OUT names the tests
that need something other than a propagation over one module, with the reason.
"""

import argparse
import collections
import re
import subprocess
import sys

import hlo_shardings as hlo

LEFT_OUT = [
    ("an option of XLA's pass for parameters and results", r"PropagateToOutput|PropagateToParameters|PropagateToTuple"),
    ("an option of XLA's pass for parameters and results", r"DoNotPropagateTo\w+IfNotDivisible"),
    ("a mode against common subexpressions between passes", r"CSEPrevention"),
    ("one device of several, its errors included", r"RecvInBody|WhileConflicting|ShardedDimMaximalOperand"),
    ("the propagation without SPMD partitioning", r"^MaximalReduceForwardPass$|^ConcatFromUserShardedDim$"),
    ("conversions between manual and automatic parts", r"WithManualConversion|SplitConstant"),
    ("a barrier inside a shard_as group", r"ShardAsWithShardBarrier"),
]


class Unreadable(Exception):
    pass


def tests_of(source):
    """Returns (name, statements and texts) of every test."""
    starts = [(m.start(), m.group(1)) for m in re.finditer(r"^TEST_[PF]\(\s*\w+,\s*(\w+)\)\s*\{", source, re.M)]
    ends = [start for start, _ in starts[1:]] + [len(source)]
    return [(name, source[start:end]) for (start, name), end in zip(starts, ends)]


def with_shapes(text):
    """Fills in the shapes of results that a text leaves out."""
    shapes, lines = {}, []
    for line in text.split("\n"):
        found = re.match(r"^(\s*(?:ROOT\s+)?%?([\w.\-]+)\s*=\s*)(.*)$", line)
        if found:
            head, name, rest = found.groups()
            bare = re.match(r"(tuple|while|or|add|copy)\(([^)]*)\)", rest)
            if bare:
                operands = [shapes.get(part.split()[-1].lstrip("%"), "") for part in bare.group(2).split(",")]
                shapes[name] = f"({', '.join(operands)})" if bare.group(1) == "tuple" else operands[0]
                line = f"{head}{shapes[name]} {rest}"
            else:
                shapes[name] = rest[: hlo.closing(rest, 0) if rest.startswith("(") else rest.find(" ")]
        lines.append(line)
    return "\n".join(lines)


def find(expression, variables, module):
    """Returns the instruction, computation name or sharding that an expression of a test denotes."""
    expression = re.sub(r"\s+", "", expression)
    for pattern, make in (
        (r'FindInstruction\(module(?:\.get\(\))?,"([^"]*)"\)', lambda m: module.find(m.group(1))),
        (r"module->entry_computation\(\)", lambda m: module.entry),
        (r"(\w+)", lambda m: variables.get(m.group(1))),
    ):
        start = re.match(pattern, expression)
        if start:
            break
    value = make(start) if start else None
    if value is None:
        raise Unreadable(expression)
    at = start.end()
    steps = (
        (r"->root_instruction\(\)", lambda v, m: module.root(v)),
        (r"->parameter_instruction\((\d+)\)", lambda v, m: module.parameter(v, int(m.group(1)))),
        (r"->(?:mutable_)?operand\((\d+)\)", lambda v, m: module.operand(v, int(m.group(1)))),
        (r"->while_(body|condition)\(\)", lambda v, m: re.search(m.group(1) + r"=%?([\w.\-]+)", v.attributes).group(1)),
        (r"->sharding\(\)", lambda v, m: ("sharding", v.sharding)),
        (r"\.tuple_elements\(\)\[(\d+)\]", lambda v, m: ("sharding", hlo.split_list(v[1][1:-1])[int(m.group(1))])),
    )
    while at < len(expression):
        for pattern, step in steps:
            found = re.compile(pattern).match(expression, at)
            if found:
                value, at = step(value, found), found.end()
                break
        else:
            raise Unreadable(expression)
    return value


def with_free_root(body):
    """Keeps what holds where shardings may reach the root of the module."""
    kept, at = "", 0
    condition = re.compile(r"if \((!?)GetParam\(\)\.allow_root_sharding_propagation\) \{")
    for start in iter(lambda: condition.search(body, at), None):
        end = hlo.closing(body, start.end() - 1)
        kept += body[at : start.start()] + ("" if start.group(1) else body[start.end() : end - 1])
        other = re.match(r"\s*else \{", body[end:])
        if other:
            behind = hlo.closing(body, end + other.end() - 1)
            kept += body[end + other.end() : behind - 1] if start.group(1) else ""
            end = behind
        at = end
    return kept + body[at:]


def expectations(body, module):
    """Returns (expression, sharding or None, variables) of every statement about a sharding."""
    body = re.sub(r'"\s*\n\s*"', "", re.sub(r"//[^\n]*\n", "\n", with_free_root(body)))
    variables, lists, found = {}, {}, []
    for name, sharding in re.findall(r'\{"([\w.]+)",\s*"(\{.*?\})"\}', body):
        found.append((f'FindInstruction(module.get(), "{name}")', sharding, {}))
    for statement in re.split(r";\s*", body):
        for item, names in re.findall(r"for \([^()]*?(\w+)\s*:\s*\{([\w,\s]*)\}\)", statement):
            lists[item] = [name.strip() for name in names.split(",")]
        known = re.search(r"(?:Instruction|Computation|auto|^|\})\s*[*&]?\s*(\w+)\s*=\s*"
                          r"((?:FindInstruction|module->|\w+->).*)$", statement, re.S)
        if known and "ShardingPropagation(" not in statement:
            try:
                variables[known.group(1)] = find(known.group(2), variables, module)
            except (Unreadable, AttributeError, StopIteration):
                variables.pop(known.group(1), None)
            continue
        for match in re.finditer(r'EXPECT_THAT\(\s*(.*?),\s*op::Sharding\(\s*"(.*?)"\s*\)', statement, re.S):
            subject = match.group(1).strip()
            for each in lists.get(subject, [subject]) if subject not in variables else [subject]:
                found.append((each, match.group(2), dict(variables)))
        for match in re.finditer(r"EXPECT_FALSE\(\s*(.*?)->has_sharding\(\)\)|EXPECT_THAT\(\s*(.*?),\s*op::NoSharding",
                                 statement, re.S):
            found.append((match.group(1) or match.group(2), None, dict(variables)))
        for left, right in re.findall(r"EXPECT_EQ\(\s*(\w+)->sharding\(\),\s*(\w+)->sharding\(\)\)", statement):
            found.append((left, ("as", right), dict(variables)))
    return found


def propagate(automap, text):
    done = subprocess.run(
        [automap, "propagate", "-", "--keep-shardings"], input=with_shapes(text), capture_output=True, text=True,
        timeout=60
    )
    return done.returncode, done.stdout, done.stderr.strip()


def loop_notes(automap, text, body):
    """The test that sets shardings by statements and expects one of all parts of a loop."""
    notes, parts = [], re.sub(r'"\s*\n\s*"', "", body).split("while_is_sharded(")
    for before, behind in zip(parts, parts[1:]):
        setting, changed = before.split("ParseAndReturnVerifiedModule(")[-1], text
        parsed = r'ParseSharding\(\s*"(.*?[^\\])"\s*\)'
        named = dict(re.findall(r'(\w+) = FindInstruction\(module\.get\(\), "([\w.]+)"\)', setting))
        variable = re.search(r"(\w+)->set_sharding\(sharding\)", setting)
        settings = re.findall(r"(\w+)->set_sharding\(\s*" + parsed, setting)
        settings += [(variable.group(1), re.search(parsed, setting).group(1))] if variable else []
        is_same = behind.lstrip().startswith("module.get(), sharding")
        expected = settings[0][1] if is_same else re.search(parsed, behind).group(1)
        for variable, sharding in settings:
            sharding = re.sub(r"\s*metadata=\{.*?\}", "", sharding)
            changed = re.sub(rf"(%{re.escape(named[variable])} = .*)", rf"\1, sharding={sharding}", changed)
        expected = re.sub(r"\s*metadata=\{.*?\}", "", expected)
        code, out, error = propagate(automap, changed)
        if code != 0:
            return [error]
        module = hlo.Module(out)
        loop = module.find("while")
        for expression in ("", "->while_body()->root_instruction()", "->while_body()->parameter_instruction(0)",
                           "->while_condition()->parameter_instruction(0)"):
            have = find("loop" + expression, {"loop": loop}, module).sharding
            if not hlo.same(hlo.canonical(have), hlo.canonical(expected)):
                notes.append(f"loop{expression}: expected {expected}, got {have}")
    return notes


def leaves(sharding):
    return hlo.split_list(sharding[1:-1]) if sharding.startswith("{{") else [sharding]


def judge(automap, body):
    """Returns the differences of a test, empty if it passes."""
    texts = re.findall(r'R"\((.*?)\)"', body, re.S)
    text, statements = texts[0], re.sub(r'R"\((.*?)\)"', '""', body, flags=re.S)
    if "while_is_sharded(" in statements and "set_sharding(" in statements:
        return loop_notes(automap, text, statements)
    code, out, error = propagate(automap, text)
    if code != 0:
        return [error]
    module, notes = hlo.Module(out), []
    expected = expectations(statements, module)
    for expression, sharding, variables in expected:
        try:
            value = find(expression, variables, module)
            have = value[1] if isinstance(value, tuple) else value.sharding
            wanted = find(sharding[1], variables, module).sharding if isinstance(sharding, tuple) else sharding
        except (Unreadable, AttributeError, StopIteration) as problem:
            notes.append(f"not read: {problem!r}")
            continue
        if not hlo.same(hlo.canonical(have), hlo.canonical(wanted)):
            notes.append(f"{expression}: expected {wanted}, got {have}")
    everywhere = re.search(r'ParseSharding\("(\{.*?\})"\)',
                           statements) if "module->computations()" in statements else None
    wanted = everywhere.group(1) if everywhere else "{manual}" if "hlo->sharding().IsManual()" in statements else None
    for each in module.all() if wanted else []:
        if any(hlo.canonical(leaf) != hlo.canonical(wanted) for leaf in leaves(each.sharding)):
            notes.append(f"{each.name}: expected {wanted}, got {each.sharding}")
    unchanged = not expected and not wanted and "EXPECT_FALSE(changed)" in statements
    given = {each.name: each.sharding for each in hlo.Module(with_shapes(text).replace(",\n", ", ")).all()}
    for each in module.all() if unchanged else []:
        if each.opcode != "parameter" and not hlo.same(hlo.canonical(each.sharding),
                                                       hlo.canonical(given.get(each.name))):
            notes.append(f"{each.name}: expected {given.get(each.name)}, got {each.sharding}")
    return notes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("automap")
    parser.add_argument("-v", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    left_out, passed, failed = collections.Counter(), 0, []
    for name, body in tests_of(open(options.source, encoding="utf-8").read()):
        if not re.search(options.only, name):
            continue
        reason = next((reason for reason, pattern in LEFT_OUT if re.search(pattern, name)), None)
        if reason:
            left_out[reason] += 1
            continue
        notes = judge(options.automap, body)
        passed += not notes
        if notes:
            failed.append(name)
            print("\n  ".join([name, *(notes if options.v else [])]))
    total = passed + len(failed) + sum(left_out.values())
    for reason, count in left_out.items():
        print(f"left out {count:3}: {reason}")
    print(f"{passed} of {passed + len(failed)} tests pass ({100 * passed / max(1, passed + len(failed)):.1f} %); "
          f"{sum(left_out.values())} of {total} are left out ({100 * sum(left_out.values()) / max(1, total):.1f} %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
