"""Build the wheel, install it elsewhere, run a job from it; and run one whose ranks have nothing but torch.

Both with the packages at hand (no downloads beyond what ./tests/run installed): the new environments see this one's
packages by a .pth file, but never this checkout.
"""

import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOY = ROOT / "tests" / "e2e" / "scripts" / "toy.py"
TORCH_ONLY = ("torch", "torchgen", "functorch", "typing_extensions", "sympy", "mpmath", "networkx", "jinja2",
              "markupsafe", "filelock", "fsspec", "setuptools", "_distutils_hack")  # fmt: skip
"""torch and what its own metadata requires; no numpy."""


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done  # type: ignore[no-any-return]


def packages() -> Path:
    return Path(next(p for p in site.getsitepackages() if p.endswith("site-packages")))


def new_venv(where: Path) -> Path:
    venv.create(where, with_pip=True, symlinks=True)
    return where / "bin" / "python"


def site_of(python: Path) -> Path:
    return Path(run(python, "-c", "import site; print(site.getsitepackages()[0])").stdout.strip())


def launch(zrun: list[str | Path], folder: Path, python: Path | None) -> None:
    folder.mkdir()
    shutil.copy(TOY, folder / "toy.py")
    extra = f"python: {python}\n" if python else ""
    (folder / "job.yaml").write_text(
        f"name: wheel\nnproc_per_node: 2\nrun: toy.py --steps 12\ncheckpoint: {{every: 5 steps}}\n{extra}"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ZRUN_", "PYTHON"))}
    env["XDG_STATE_HOME"] = str(folder / "state")
    run(*zrun, "launch", "job.yaml", cwd=folder, env=env, timeout=180)
    found = next((folder / "runs").glob("*/verdict.json"))
    state = json.loads(found.read_text())["state"]
    assert state == "SUCCEEDED", state
    assert list(found.parent.glob("checkpoints/step-000010/manifest.json")), "no checkpoint"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        there = Path(name)
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", there / "dist", cwd=ROOT)
        wheel = next((there / "dist").glob("*.whl"))
        python = new_venv(there / "installed")
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
        # Everything but zrun itself comes from here; the editable install's own .pth files are not read this way.
        (site_of(python) / "dependencies.pth").write_text(f"{packages()}\n")
        where = run(python, "-c", "import zrun.core.ids as m; print(m.__file__)", cwd=there).stdout
        assert str(there) in where, f"not the wheel's: {where}"
        launch([there / "installed" / "bin" / "zrun"], there / "from-wheel", None)
        print("1 passed: a job ran from the installed wheel")

        bare = new_venv(there / "torch-only")
        there_site = site_of(bare)
        for package in packages().iterdir():
            link = there_site / package.name
            if package.name.lower().split("-")[0].removesuffix(".py") in TORCH_ONLY and not link.exists():
                link.symlink_to(package)
        missing = run(bare, "-c", "import importlib.util as u; print(u.find_spec('numpy'))", cwd=there).stdout.strip()
        assert missing == "None", "numpy is there"
        launch([sys.executable, "-m", "zrun.cli.main"], there / "with-torch-only", bare)
        print("2 passed, 0 failed")


if __name__ == "__main__":
    main()
