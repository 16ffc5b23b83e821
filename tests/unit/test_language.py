"""The language of the code: openings and sections of docstrings, plain words, terms, and the length of messages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

OPENINGS = re.compile(r"\s*(What|Who|How|Whether|Where|Which|Say)\b")
WORDS = re.compile(r"\b(nobody|somebody|everybody|whoever|told)\b", re.IGNORECASE)
PARAMETERS = re.compile(r"^Parameters\n-+\n(.*?)(?=\n\n[A-Z][A-Za-z ]+\n-+\n|\Z)", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(rf"#.*{WORDS.pattern}", re.IGNORECASE)

TERMS = {
    "attendance": "availability",
    "border": "snapshot",
    "census": "client status",
    "ceremony": "secret exchange",
    "consent": "trust limits",
    "conversation": "client stream",
    "crossed": "socket bytes",
    "enrolment": "registration",
    "entrance": "admission",
    "expectation": "schema",
    "folding": "weighted sum",
    "gate": "rate limiter",
    "holdings": "local data",
    "member": "client record",
    "members": "client records",
    "newcomer": "late joiner",
    "newcomers": "late joiners",
    "obfuscator": "blinding factor",
    "obfuscators": "blinding factors",
    "outlets": "exporters",
    "pace": "token bucket",
    "punctuality": "availability",
    "recycler": "buffer pool",
    "remarks": "throttled log",
    "spending": "privacy budget",
    "standing": "client status",
    "supports": "index sets",
    "wording": "formatting",
}
"""Retired terms that have no other meaning in the name of a module, class or function, and what to write instead."""

SENTENCES, WORDS_A_SENTENCE = 3, 40


class Finding(NamedTuple):
    """One place that breaks a rule."""

    rule: str
    line: int
    text: str


def openings(tree: ast.Module) -> Iterator[Finding]:
    """Find docstrings, also those of attributes, that begin with a clause without a head."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if found := OPENINGS.match(text):
                yield Finding("opening", node.lineno, found[1])


def words(tree: ast.Module, source: str) -> Iterator[Finding]:
    """Find persons where a thing should be named, in literals (also in f-strings) and comments."""
    texts = [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    if COMMENT.search(source):  # tokens take long, and few files need them
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        texts += [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    for line, text in texts:
        yield from (Finding("word", line, found[0]) for found in WORDS.finditer(text))


def terms(tree: ast.Module, module: str) -> Iterator[Finding]:
    """Find retired terms in the names of a module, its classes and its functions."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    named = [(module, 1), *((node.name, node.lineno) for node in ast.walk(tree) if isinstance(node, kinds))]
    for name, line in named:
        for term in re.findall("[A-Z]?[a-z]+", name):
            if instead := TERMS.get(term.lower()):
                yield Finding("term", line, f"{name}: write {instead}")


def sections(tree: ast.Module) -> Iterator[Finding]:
    """Find entries of a docstring's ``Parameters`` that are no parameters of the function, or fields of the class."""
    own: list[ast.FunctionDef | ast.AsyncFunctionDef]
    known: set[str]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            own = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
            known = {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
            if not own and not any("dataclass" in ast.unparse(each) for each in node.decorator_list):
                continue  # the parameters are those of a base class
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own, known = [node], set()
        else:
            continue
        for each in own:
            given = each.args
            known |= {argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
            known |= {f"*{given.vararg.arg}"} if given.vararg else set()
            known |= {f"**{given.kwarg.arg}"} if given.kwarg else set()
        if entries := PARAMETERS.search(ast.get_docstring(node) or ""):
            lines = (line for line in entries[1].splitlines() if line and not line.startswith(" "))
            names = (name for line in lines for name in line.split(" : ")[0].split(", "))
            yield from (Finding("section", node.lineno, f"{node.name}: {name}") for name in names if name not in known)


def spelt(node: ast.expr) -> str:
    """Return the text of an expression, in which a word stands for whatever is not literal."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(spelt, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return spelt(left) + spelt(right)
    return "value"


def messages(tree: ast.Module, errors: set[str]) -> Iterator[Finding]:
    """Find messages of errors for people that are too long to be read at once."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and called(node) in errors:
            sentences = re.split(r"(?<=[.?!])\s+", spelt(node.args[0]).strip())
            longest = max(len(sentence.split()) for sentence in sentences)
            if longest > WORDS_A_SENTENCE or len(sentences) > SENTENCES:
                yield Finding("message", node.lineno, f"{len(sentences)} sentences, of up to {longest} words")


def called(node: ast.Call) -> str:
    """Return the last name of what is called."""
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def errors_for_people(trees: Mapping[Path, ast.Module]) -> set[str]:
    """Return the names of ``FenchelError`` and of all classes that derive from it."""
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found: set[str] = set()
    more = {"FenchelError"}
    while more:
        found |= more
        more = {each.name for each in classes if any(ast.unparse(base) in found for base in each.bases)} - found
    return found


def findings() -> Iterator[str]:
    """Yield all findings, with file, line and rule."""
    paths = sorted(path for path in (ROOT / "fenchel").rglob("*.py") if "_pb2" not in path.name)
    sources = {path: path.read_text(encoding="utf-8") for path in paths}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    errors = errors_for_people(trees)
    for path, tree in trees.items():
        each = [*openings(tree), *words(tree, sources[path]), *terms(tree, path.stem), *messages(tree, errors)]
        each += sections(tree)
        for finding in each:
            yield f"{path.relative_to(ROOT)}:{finding.line}: {finding.rule}: {finding.text}"


def test_the_code_speaks_the_language_of_the_project() -> None:
    assert list(findings()) == []


def test_each_rule_finds_what_it_is_for() -> None:
    source = '''"""Where it goes."""
class RateGate: ...  # for whoever waits
raise NoRoomError("Nobody was told. It waits.")
raise NoRoomError("One. Two. Three. Four.")
class NoRoomError(FenchelError): ...
'''
    tree = ast.parse(source)
    errors = errors_for_people({Path("a.py"): tree})
    each = [*openings(tree), *words(tree, source), *terms(tree, "remarks"), *messages(tree, errors)]
    found = sorted((finding.line, finding.rule) for finding in each)
    assert found == [
        *((1, "opening"), (1, "term"), (2, "term"), (2, "word")),
        *((3, "word"), (3, "word"), (4, "message")),
    ]


def test_a_section_of_parameters_names_no_others() -> None:
    source = '''
def put(path, *parts, **options):
    """Put.

    Parameters
    ----------
    path : str
        Path of the file.
    *parts, options
        Others.

    Returns
    -------
    nothing
    """


@dataclass
class Put:
    """Put.

    Parameters
    ----------
    path, mode
        Where and how.
    """

    path: str
'''
    found = [(finding.line, finding.text) for finding in sections(ast.parse(source))]
    assert found == [(2, "put: options"), (19, "Put: mode")]


def test_what_stands_for_a_value_counts_as_one_word() -> None:
    for count in (WORDS_A_SENTENCE, WORDS_A_SENTENCE + 1):
        text = " ".join(["word"] * (count - 2))
        for message in (f'f"{text} {{a + b}} {{c}}"', f'f"{text} " + f"{{a}} b"', f'"A. {text} c d. E."'):
            tree = ast.parse(f"raise FenchelError({message})")
            assert any(messages(tree, {"FenchelError"})) is (count > WORDS_A_SENTENCE)
