"""`make house`: how the rooms of each role lie on their floors, and how large the house is.

`make house ARGS=--structures` writes the lists of docs/structures.md instead,
`make house ARGS=--models` the list of decoders in docs/models.md, and
`make house ARGS=--lone` lists the small files that have one importer or none.
"""

from __future__ import annotations

import argparse
import ast
import re
import tomllib
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import median

from bench.structures import write_page

ROOT = Path(__file__).parents[1]
ROLES = ("jetflock", "deploy", "frontend", "worker", "detok", "shared")
SPINE = ("Worker", "Engine", "DecoderModel", "Detokenizer", "Inference")
SMALL_LINES = 60
LONE_LINES = 120
# Each names the implementations of a seam in its functions, and is part of that seam itself. Others
# name them in a collection, which is found.
REGISTRIES = frozenset(
    {
        "frontend.assembly.route_tables",
        "frontend.inference.answers.open_answers",
        "frontend.parsers.tool_parsers",
        "frontend.surfaces.event_feed",
        "jetflock.chat.__main__",
        "worker.engine.cuda.attention.attention_choice",
        "worker.engine.cuda.attention.attention_kernels",
        "worker.engine.cuda.gpu_loading",
        "worker.engine.formats.weight_loading",
        "worker.engine.models.recurrent.recurrent_mixer",
        "worker.engine.sampling.row_params",
        "worker.engine.speculation.drafters",
        "worker.engine.training.draft_trainer",
    }
)
COMMANDS = "jetflock.commands."  # which are found by their names
KERNELS = "worker.engine.cuda.kernels."  # a file each
MAX_PARAMETERS = 8
GENERATED_PAGES = ("api.md", "all-metrics.md", "peer-flags.md", "structures.md")
Graph = Mapping[str, set[str]]


class Source:
    """One module of the product."""

    def __init__(self, path: Path) -> None:
        self.name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        text = path.read_text()
        self.num_lines = text.count("\n")
        self.tree = ast.parse(text)
        self.classes = [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    def imported(self) -> Iterable[tuple[ast.stmt, str]]:
        """The modules that its imports may mean, some of which are names inside one."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node, node.module
                yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)

    @property
    def is_program(self) -> bool:
        """Whether it is started by its name: it has a part that runs only then."""
        return any(
            isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
            for node in self.tree.body
        )

    def registered(self) -> set[str]:
        """The modules of the classes and functions that its collections hold, at its top level."""
        held: list[ast.expr | None] = []
        for node in self.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                if isinstance(node.value, ast.Dict):
                    held += node.value.values
                elif isinstance(node.value, ast.Tuple | ast.List):
                    held += node.value.elts
        names = {each.id for each in held if isinstance(each, ast.Name) and not each.id.isupper()}
        return {
            node.module
            for node in self.tree.body
            if isinstance(node, ast.ImportFrom) and node.module
            if names.intersection(alias.asname or alias.name for alias in node.names)
        }

    @property
    def num_import_lines(self) -> int:
        nodes = {node for node, _ in self.imported()}
        return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)

    def wide_constructors(self) -> Iterable[str]:
        for owner in self.classes:
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                    num_parameters = len(node.args.args) + len(node.args.kwonlyargs) - 1
                    if num_parameters > MAX_PARAMETERS:
                        yield f"{owner.name} {num_parameters}"


def floors_of(container: str, layers: list[str], graph: Graph) -> str:
    """One line about a package whose rooms have floors."""
    floor = {room.strip(): index for index, layer in enumerate(layers) for room in layer.split("|")}
    start = f"{container}."
    arrows: dict[str, set[str]] = {room: set() for room in floor}
    flat = [name for name in graph if name.startswith(start) and "." not in name[len(start) :]]
    for name, targets in graph.items():
        for target in targets:
            if name.startswith(start) and target.startswith(start):
                arrows[name[len(start) :].split(".")[0]].add(target[len(start) :].split(".")[0])
    arrows = {room: targets - {room} for room, targets in arrows.items()}
    num_up = sum(floor[to] <= floor[room] for room, targets in arrows.items() for to in targets)
    return (
        f"{container:22} {len(floor) - len(flat):5} {len(layers):7} "
        f"{sum(map(len, arrows.values())):7} {num_up:3} {circle(arrows):8} {len(flat):5}"
    )


def circle(arrows: Graph) -> str:
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as exc:
        return "-".join(exc.args[1])
    return "none"


def closure(starts: Iterable[str], graph: Graph) -> set[str]:
    """All that is imported when these are."""
    found, waiting = set(starts), list(starts)
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def lone_files(files: Mapping[str, Source], graph: Graph) -> Mapping[str, list[str]]:
    """The files under 120 lines that at most one other imports, with their importers, but for
    seams, their implementations, and what others start by its name.

    Each of them should be part of that importer or of a sibling, if it is no noun of its own.
    """
    importers: dict[str, list[str]] = {name: [] for name in files}
    for name, targets in graph.items():
        for target in targets:
            importers[target].append(name)
    hooks = hooks_of_site()
    return {
        name: found
        for name, found in importers.items()
        if len(found) <= 1
        and files[name].num_lines < LONE_LINES
        and not files[name].is_program
        and not REGISTRIES.intersection([name, *found])
        and not any(name in files[importer].registered() for importer in found)
        and not name.startswith(KERNELS)
        and not (not found and (name.startswith(COMMANDS) or name in hooks))
    }


def hooks_of_site() -> set[str]:
    """The modules that mkdocs.yml names."""
    paths = re.findall(r"[\w/]+\.py\b", (ROOT / "mkdocs.yml").read_text())
    return {path.removesuffix(".py").replace("/", ".") for path in paths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--structures", action="store_true", help="write docs/structures.md")
    only.add_argument("--models", action="store_true", help="write docs/models.md's decoders")
    only.add_argument("--lone", action="store_true", help="list small files with one importer")
    args = parser.parse_args()
    if args.structures:
        write_page()
    elif args.models:
        from bench.model_table import write_table  # late: it imports torch

        write_table()
    elif args.lone:
        print_lone_files()
    else:
        print_figures()


def product_sources() -> Mapping[str, Source]:
    paths = [path for role in ROLES for path in sorted((ROOT / role).rglob("*.py"))]
    return {source.name: source for source in map(Source, paths)}


def import_graph(files: Mapping[str, Source]) -> Graph:
    return {
        name: {target for _, target in source.imported() if target in files} - {name}
        for name, source in files.items()
    }


def print_lone_files() -> None:
    sources = product_sources()
    files = {name: it for name, it in sources.items() if not name.endswith("__init__")}
    for name, importers in lone_files(files, import_graph(files)).items():
        print(f"{files[name].num_lines:4} {name} <- {', '.join(importers) or 'by its name'}")


def print_figures() -> None:
    sources = product_sources()
    rooms = {name for name in sources if name.endswith("__init__")}
    files = {name: source for name, source in sources.items() if name not in rooms}
    graph = import_graph(files)
    print(f"{'':22} rooms  floors  arrows  up  circle    flat files")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    for contract in contracts["contracts"]:
        for container in contract.get("containers", []):
            print(floors_of(container, contract["layers"], graph))
    num_lines = sum(source.num_lines for source in sources.values())
    num_import_lines = sum(source.num_import_lines for source in sources.values())
    small = [name for name, source in files.items() if source.num_lines < SMALL_LINES]
    spine = closure(
        [name for name, file in files.items() if {it.name for it in file.classes} & {*SPINE}], graph
    )
    print(f"product: {num_lines} lines, {len(sources)} files, {len(rooms)} rooms")
    print(f"files: median {median(it.num_lines for it in files.values()):.0f} lines, ", end="")
    print(f"{len(small)} under {SMALL_LINES}; import lines {num_import_lines / num_lines:.1%}")
    lone = lone_files(files, graph)
    print(f"lone (under {LONE_LINES} lines, with at most one importer): {len(lone)}")
    print(f"spine: {len(spine)} files, {sum(files[name].num_lines for name in spine)} lines")
    wide = [told for source in files.values() for told in source.wide_constructors()]
    print(f"constructors over {MAX_PARAMETERS} parameters: {len(wide)} ({', '.join(wide)})")
    print(f"docs: {num_words_of_prose()} words of prose")


def num_words_of_prose() -> int:
    """Of README.md and docs/, without tables, code and the generated pages."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts = [page.read_text() for page in pages if page.name not in GENERATED_PAGES]
    code_or_table = re.compile(r"^```.*?^```|^    [^\n]*$|^\s*\|.*?$", re.M | re.S)
    prose = [code_or_table.sub("", text) for text in texts]
    return sum(len(text.split()) for text in prose)


if __name__ == "__main__":
    main()
