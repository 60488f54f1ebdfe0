"""Count the phrases of the table, show where they are, or draw docstrings to read.

python -m tests.words count
python -m tests.words find 3 src/cdcflow/query
python -m tests.words draw --seed 7
python -m tests.words lower
python -m tests.words names
"""

from __future__ import annotations

import argparse
import random
import sys

from tests.words.ceilings import read_ceilings, write_ceilings
from tests.words.counting import counts, phrases, places
from tests.words.name_ceilings import lower_names, read_names
from tests.words.names import by_package, participles, repeated_classes
from tests.words.texts import AREAS, texts

DRAWN = 40


def main() -> int:
    """Run one command. Its exit code is 1 if a count is above its ceiling."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("count", help="print each phrase's counts, ceilings and aim")
    commands.add_parser("lower", help="lower the ceilings to today's counts")
    names = commands.add_parser("names", help="print functions named by a participle, and class names of many modules")
    names.add_argument("paths", nargs="*", default=[], help="list those in paths that begin with one of these")
    find = commands.add_parser("find", help="print where phrases are")
    find.add_argument("number", type=int, help="the phrase's number; 0: all")
    find.add_argument("paths", nargs="*", default=[""], help="only in paths that begin with one of these")
    draw = commands.add_parser("draw", help=f"print {DRAWN} docstrings of src, chosen at random")
    draw.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    match arguments.command:
        case "find":
            return _find(arguments.number, tuple(arguments.paths))
        case "draw":
            return _draw(arguments.seed)
        case "names":
            return _names(tuple(arguments.paths))
        case "lower":
            write_ceilings(counts(phrases(), texts()))
            lower_names(len(participles()), repeated_classes())
            return 0
        case _:
            return _count()


def _count() -> int:
    now, ceilings, is_above = counts(phrases(), texts()), read_ceilings(), False
    print(f"{'phrase':34} {'src':>5} {'docs':>5} {'tests':>5} {'sum':>6} {'aim':>4}")
    for phrase in phrases():
        found = now[phrase.number]
        above = [area for area in AREAS if found[area] > ceilings[phrase.number][area]]
        is_above = is_above or bool(above)
        columns = " ".join(f"{found[area]:5}" for area in AREAS)
        note = f"  above the ceiling in {', '.join(above)}" if above else ""
        print(f"{phrase.number:3} {phrase.name:30} {columns} {sum(found.values()):6} {phrase.aim:4}{note}")
    return int(is_above)


def _find(number: int, paths: tuple[str, ...]) -> int:
    table = [phrase for phrase in phrases() if number in (0, phrase.number)]
    for place in places(table, texts(paths)):
        print(place.line)
    return 0


def _names(paths: tuple[str, ...]) -> int:
    functions, classes = participles(), repeated_classes()
    for function in functions:
        if function.path.startswith(paths):
            print(f"{function.path}:{function.line}: {function.qualified}")
    print("\nFunctions named by a bare participle")
    for package, count in by_package(f.path for f in functions).most_common():
        print(f"{count:5} {package}")
    print(f"{len(functions):5} in sum; ceiling {read_names().participles}")
    print("\nClass names in two or more modules")
    for name, modules in classes.items():
        print(f"{len(modules):5} {name:24} {', '.join(module.removeprefix('src/cdcflow/') for module in modules)}")
    print(f"{len(classes):5} in sum; ceiling {read_names().classes}")
    return 0


def _draw(seed: int) -> int:
    docstrings = [text for text in texts() if text.kind == "docstring" and text.area == "src"]
    for text in random.Random(seed).sample(docstrings, DRAWN):
        print(f"{text.path}:{text.line}\n    {' '.join(text.text.split())}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
