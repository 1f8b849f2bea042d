"""The package's front door: light to import."""

import subprocess
import sys


def test_importing_the_package_loads_no_sdk_and_nothing_heavy() -> None:
    program = (
        "import sys; import metaclaw.training;print({'numpy', 'torch', 'transformers', 'tokenizers',"
        " 'jinja2', 'tinker', 'weaver', 'httpx'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "set()"
