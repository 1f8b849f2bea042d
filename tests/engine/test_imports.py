"""The program's side of the engine must stay light: nothing heavy is imported before the child
process.
"""

import subprocess
import sys


def test_the_client_imports_neither_torch_nor_transformers_nor_numpy() -> None:
    code = (
        "import sys, metaclaw.engine.client; print({'torch', 'transformers', 'numpy', 'tokenizers'}"
        " & set(sys.modules))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert out.stdout.strip() == "set()"


def test_the_engine_process_does_not_import_transformers() -> None:
    code = (
        "import sys, metaclaw.engine.serve; print('torch' in sys.modules, 'transformers' in"
        " sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert out.stdout.strip() == "True False"
