"""Every Python block of README and docs/ runs; a part of a script, in what completes it.

The word after ```python says what a block is; a reader does not see it:

    ```python             a script that takes seconds
    ```python slow        a script that takes longer, for `make slow`
    ```python fragment    a part of a script; fragments.py has the rest
"""

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
from fragments import SURROUNDINGS
from source_tree import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Block(NamedTuple):
    """A fenced block of Python in a page."""

    name: str  # of the page and its line
    kind: str  # "", "slow" or "fragment"
    code: str

    @property
    def lines(self) -> list[str]:
        return self.code.splitlines()


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(f"{page.stem}-{text.count(chr(10), 0, found.start()) + 1}", found[1].strip(),
                  textwrap.dedent(found[2]))
            for found in re.finditer(r"^```python(.*)\n((?:.*\n)*?)```$", text, re.MULTILINE)]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
SCRIPTS = [pytest.param(block.code, id=block.name, marks=[pytest.mark.slow] * bool(block.kind))
           for block in BLOCKS if block.kind in ("", "slow")]


def test_the_pages_have_scripts_and_no_other_kinds_of_blocks():
    assert {block.kind for block in BLOCKS} == {"", "slow", "fragment"}


@pytest.mark.filterwarnings("ignore:.torch.jit.load")  # torch 2.13 deprecates it
@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "fragment"],
                         ids=lambda block: block.name)
def test_every_fragment_runs_in_its_surrounding(block, tmp_path, monkeypatch):
    around = SURROUNDINGS[block.lines[0]]
    if around.needs:
        pytest.importorskip(around.needs)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "runs/latest").mkdir(parents=True)
    part = textwrap.indent(block.code, " " * around.indent)
    code = f"{around.before}\n{part}\n{around.after}"
    exec(compile(code, block.name, "exec"), {"__name__": "__main__"})


def test_every_surrounding_is_of_a_fragment():
    assert {*SURROUNDINGS} == {block.lines[0] for block in BLOCKS if block.kind == "fragment"}


@pytest.mark.some(2)
@pytest.mark.parametrize("code", SCRIPTS)
def test_every_script_runs(code, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "script", "exec"), {"__name__": "__main__"})
