"""The source files of the project, and how their code lines are counted."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[1]

PACKAGE = sorted((ROOT / "fastppo").rglob("*.py"))

CORE = ("ppo", "learner", "collect", "policy", "vecenv", "reference", "config")

# Features that a run may never meet. A chapter is imported by itself, the core, the trainer and the
# command alone.
CHAPTERS = {"ranks", "gpu", "vector", "runs", "loggers", "video", "terminal", "games",
            "compiled_envs"}

CEILING, LONGEST = 600, 40


def module_of(path: Path) -> str:
    """The name of a module below fastppo: package.file."""
    return ".".join(path.relative_to(ROOT / "fastppo").with_suffix("").parts)


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def code_lines(path: Path) -> int:
    """Lines of logic: no blanks, comments or docstrings; continuation lines count."""
    tree, skipped = parsed(path), set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else []:
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant) \
                    and isinstance(child.value.value, str):
                skipped |= set(range(child.lineno, child.end_lineno + 1))
        if isinstance(node, ast.ClassDef) and node.name == "Config":
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    skipped |= set(range(field.lineno, field.end_lineno + 1))
    return sum(1 for number, line in enumerate(path.read_text().splitlines(), 1)
               if number not in skipped and line.strip() and not line.strip().startswith("#"))
