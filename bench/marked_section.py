"""The sections of documents that benchmarks write: between the lines "<!-- NAME begins -->" and "<!-- NAME ends
-->"."""


def split(path, name):
    """(text before the section of the benchmark `name` in the document, the section, text after it), with the marks in
    the outer ones. ValueError: a mark is missing."""
    begin, end = f"<!-- {name} begins -->\n", f"<!-- {name} ends -->\n"
    with open(path) as file:
        whole = file.read()
    before, rest = whole.split(begin)
    section, after = rest.split(end)
    return before + begin, section, end + after


def write(path, name, text):
    """Replaces the section of the benchmark `name` in the document by `text`, whole lines. Nothing is written where a
    mark is missing."""
    before, _, after = split(path, name)
    with open(path, "w") as file:
        file.write(before + text + after)
