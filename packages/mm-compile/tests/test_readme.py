import re
import subprocess
import sys
from pathlib import Path

from toy import needs_compile, needs_torch_2_4

README = Path(__file__).parents[1] / "README.md"


@needs_compile
@needs_torch_2_4
def test_the_examples_of_the_readme_run(tmp_path):
    first, second = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(f"{first}\n{second}", encoding="utf-8")
    result = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("forward by aot_eager: 1 graph, 0 graph breaks, 0 recompiles")
    assert lines[-1] == "0.weight"
