"""The sections of documents that benchmarks write: between the lines "<!-- NAME begins -->" and "<!-- NAME ends
-->"."""


def write(path, name, text):
    """Replaces the section of the benchmark `name` in the document by `text`, whole lines. Nothing is written where a
    mark is missing."""
    begin, end = f"<!-- {name} begins -->\n", f"<!-- {name} ends -->\n"
    with open(path) as file:
        whole = file.read()
    before, rest = whole.split(begin)
    after = rest.split(end)[1]
    with open(path, "w") as file:
        file.write(before + begin + text + end + after)
