import re
from pathlib import Path

_README = Path(__file__).parents[1] / "README.md"


def test_the_first_example_of_the_readme_runs_as_it_stands(run_script):
    blocks = re.findall(
        r"^```python\n(.*?)^```", _README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert blocks, f"{_README.name} has no ```python block"
    result = run_script(blocks[0])
    assert result.returncode == 0, result.stderr
