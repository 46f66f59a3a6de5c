import re
import subprocess
import sys
from pathlib import Path

from toy import needs_compile

README = Path(__file__).parents[1] / "README.md"


@needs_compile
def test_the_first_example_of_the_readme_runs(tmp_path):
    example = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example[1], encoding="utf-8")
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("forward by aot_eager: 1 graph, 0 graph breaks, 0 recompiles")
    assert lines[-1] == "0.weight"
