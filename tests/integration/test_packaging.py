"""What makes it a part of a machine: units, packages, images, the man page, completions."""

import hashlib
import gzip
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import unittest
import xml.etree.ElementTree

import yaml

import harness
from harness import ROOT, cli

PACKAGING = ROOT / "packaging"


def run(*command, **kw):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=ROOT,
                          timeout=60 * harness.SLOWNESS, **kw)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def need(program):
    if not shutil.which(program):
        raise unittest.SkipTest(f"{program} is not installed")


def fresh(name):
    folder = harness.TMP / f"packaging-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


class Units(unittest.TestCase):
    def test_systemd_understands_them(self):
        need("systemd-analyze")
        folder = fresh("units")
        for name in ("gamasot.service", "gamasot-user.service"):
            text = (PACKAGING / "systemd" / name).read_text()
            text, n = re.subn(r"^ExecStart=\S+", f"ExecStart={harness.GAMASOT}", text, flags=re.M)
            self.assertEqual(1, n, name)
            (folder / name).write_text(text)
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", folder / name],
                                  capture_output=True, text=True, timeout=60)
            about_it = [x for x in done.stderr.splitlines() if "gamasot" in x]
            self.assertEqual([], about_it)

    def test_install_and_remove_below_a_folder(self):
        need("systemctl")
        root = fresh("root")
        model = root / "home" / "mine.gguf"
        model.parent.mkdir()
        model.write_bytes(b"GGUF of mine")
        status, out, err = cli("service", "install", "--root", str(root), "--model", str(model))
        self.assertEqual(0, status, err)
        unit = root / "etc/systemd/system/gamasot.service"
        self.assertIn(str(unit), out)
        packaged = (PACKAGING / "systemd" / "gamasot.service").read_text()
        self.assertEqual(packaged.replace("=/usr/bin/gamasot ", "=/usr/local/bin/gamasot "),
                         unit.read_text())
        wants = root / "etc/systemd/system/multi-user.target.wants/gamasot.service"
        self.assertTrue(wants.is_symlink())
        program = root / "usr/local/bin/gamasot"
        self.assertEqual(pathlib.Path(harness.GAMASOT).read_bytes(), program.read_bytes())
        self.assertEqual(0o755, program.stat().st_mode & 0o777)
        own = root / "var/lib/gamasot/models/mine.gguf"
        self.assertEqual(model.read_bytes(), own.read_bytes())
        config = root / "etc/gamasot/gamasot.conf"
        self.assertIn("path = /var/lib/gamasot/models/mine.gguf\n", config.read_text())
        self.assertEqual(0o755, config.parent.stat().st_mode & 0o777)
        # Again: an upgrade. A configuration that is there is its owner's.
        self.assertEqual(0, cli("service", "install", "--root", str(root))[0])
        status, _, err = cli("service", "install", "--root", str(root), "--model", str(model))
        self.assertEqual(1, status)
        self.assertIn("say model.path in it", err)
        status, out, err = cli("service", "remove", "--root", str(root))
        self.assertEqual(0, status, err)
        self.assertEqual([False] * 3, [os.path.lexists(p) for p in (unit, wants, program)])
        self.assertEqual([True] * 2, [p.exists() for p in (config, own)])
        status, _, err = cli("service", "remove", "--root", str(root))
        self.assertEqual(1, status)
        self.assertIn("is not there", err)

    def test_what_is_wrong_is_said(self):
        self.assertEqual(2, cli("service", "start")[0])
        self.assertEqual(2, cli("service")[0])
        self.assertEqual(2, cli("service", "install", "--user", "--root", "/x")[0])
        if not os.path.exists("/run/systemd/system"):
            status, _, err = cli("service", "install")
            self.assertEqual(1, status)
            self.assertIn("not started by systemd" if os.geteuid() == 0 else "only root", err)


class Generated(unittest.TestCase):
    def test_what_is_checked_in_is_what_the_program_says(self):
        folder = fresh("generated")
        run("python3", "scripts/gen-cli-docs", harness.GAMASOT, folder)
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                name = file.relative_to(folder)
                self.assertEqual(file.read_text(), (PACKAGING / name).read_text(),
                                 f"packaging/{name} is old: run make docs")

    def complete(self, *words):
        script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _gamasot; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        return run("bash", "-c", script, "bash", PACKAGING / "completion/gamasot.bash", "gamasot",
                   *words).split()

    def test_bash_completes(self):
        commands = {c["name"] for c in json.loads(run(harness.GAMASOT, "config", "commands"))}
        self.assertEqual(commands | {"help"}, set(self.complete("")))
        self.assertEqual(["serve", "service"], sorted(self.complete("serv")))
        self.assertEqual(["add"], self.complete("keys", "a"))
        self.assertEqual(["native", "fake"], self.complete("serve", "--backend", ""))
        self.assertIn("--server.port", self.complete("serve", "--server."))
        self.assertEqual(["--max-running"], self.complete("keys", "add", "anna", "--max-r"))
        self.assertNotIn("--server.port", self.complete("bench", "--"))
        self.assertIn("README.md", self.complete("serve", "--model", "READ"))

    def test_the_other_shells_can_read_theirs(self):
        for shell, file in (("zsh", "_gamasot"), ("fish", "gamasot.fish")):
            with self.subTest(shell):
                need(shell)
                run(shell, "-n", PACKAGING / "completion" / file)
        # fish says what it would offer; the others have no such question.
        offered = run("fish", "-c", f"source {PACKAGING}/completion/gamasot.fish; "
                                    "complete -C 'gamasot serve --backend '")
        self.assertEqual(["fake", "native"], sorted(x.split()[0] for x in offered.splitlines()))

    def test_the_man_page(self):
        need("mandoc")
        page = PACKAGING / "man/gamasot.1"
        lint = subprocess.run(["mandoc", "-Tlint", "-Wwarning", page], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual([], [x for x in lint.stdout.splitlines() if "missing date" not in x])
        text = re.sub(r".\x08", "", run("mandoc", "-Tutf8", page))
        for word in ("gamasot keys add NAME|list|revoke NAME", "--server.port N", "FILES"):
            self.assertIn(word, text)


class Deb(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        need("dpkg-shlibdeps")
        cls.folder = fresh("deb")
        cls.file = run("sh", "scripts/build-deb", harness.GAMASOT, cls.folder,
                       env={**os.environ, "DEB_COMPRESSION": "none"}).strip()

    def test_fields(self):
        field = {k: run("dpkg-deb", "-f", self.file, k).strip()
                 for k in ("Package", "Version", "Depends", "Recommends")}
        self.assertEqual("gamasot", field["Package"])
        self.assertEqual(cli("--version")[1].split()[1], field["Version"])
        for library in ("libc6 (>=", "libuv1", "libsqlite3-0", "adduser"):
            self.assertIn(library, field["Depends"])
        self.assertIn("gamasot-model-smollm2", field["Recommends"])

    def test_contents(self):
        there = fresh("deb-tree")
        run("dpkg-deb", "-R", self.file, there)
        self.assertEqual("/etc/gamasot/gamasot.conf\n", (there / "DEBIAN/conffiles").read_text())
        for script in ("postinst", "prerm", "postrm"):
            self.assertTrue(os.access(there / "DEBIAN" / script, os.X_OK))
            run("sh", "-n", there / "DEBIAN" / script)
        self.assertEqual((PACKAGING / "systemd/gamasot.service").read_bytes(),
                         (there / "lib/systemd/system/gamasot.service").read_bytes())
        with gzip.open(there / "usr/share/man/man1/gamasot.1.gz") as f:
            self.assertEqual((PACKAGING / "man/gamasot.1").read_bytes(), f.read())
        self.assertEqual(cli("--version")[1], run(there / "usr/bin/gamasot", "--version"))
        sums = dict(reversed(x.split("  ", 1)) for x in
                    (there / "DEBIAN/md5sums").read_text().splitlines())
        for name, want in sums.items():
            self.assertEqual(want, hashlib.md5((there / name).read_bytes()).hexdigest())
        files = {str(p.relative_to(there)) for p in there.rglob("*") if p.is_file()}
        self.assertEqual({f for f in files if not f.startswith("DEBIAN/")}, set(sums))

    def test_the_configuration_is_valid(self):
        status, out, err = cli("config", "show", "--config", str(PACKAGING / "debian/gamasot.conf"))
        self.assertEqual(0, status, err)
        self.assertEqual("", json.loads(out)["model.path"])

    def test_the_model_has_a_package_of_its_own(self):
        model = self.folder / "small.gguf"
        model.write_bytes(b"GGUF")
        file = run("sh", "scripts/build-deb", "--model", model, self.folder).strip()
        self.assertIn("./usr/share/gamasot/models/small.gguf", run("dpkg-deb", "-c", file))
        self.assertEqual("all", run("dpkg-deb", "-f", file, "Architecture").strip())


class Image(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.out = fresh("oci")
        cls.model = cls.out / "small.gguf"
        cls.model.write_bytes(b"GGUF")
        run("python3", "scripts/build-oci", harness.GAMASOT, cls.out, "--model", cls.model)
        cls.layout = cls.out / "oci"

    def blob(self, d, media):
        self.assertEqual(media, d["mediaType"])
        algorithm, digest = d["digest"].split(":")
        data = (self.layout / "blobs" / algorithm / digest).read_bytes()
        self.assertEqual((digest, d["size"]), (hashlib.sha256(data).hexdigest(), len(data)))
        return data

    def parts(self):
        """(configuration, layers as tar bytes), everything checked as the image specification says."""
        self.assertEqual({"imageLayoutVersion": "1.0.0"},
                         json.loads((self.layout / "oci-layout").read_text()))
        index = json.loads((self.layout / "index.json").read_text())
        self.assertEqual(2, index["schemaVersion"])
        (entry,) = index["manifests"]
        kind = "application/vnd.oci.image."
        manifest = json.loads(self.blob(entry, kind + "manifest.v1+json"))
        self.assertEqual(2, manifest["schemaVersion"])
        config = json.loads(self.blob(manifest["config"], kind + "config.v1+json"))
        layers = [gzip.decompress(self.blob(x, kind + "layer.v1.tar+gzip"))
                  for x in manifest["layers"]]
        self.assertEqual([f"sha256:{hashlib.sha256(x).hexdigest()}" for x in layers],
                         config["rootfs"]["diff_ids"])
        self.assertEqual(("layers", "linux"), (config["rootfs"]["type"], config["os"]))
        self.assertEqual(entry["platform"]["architecture"], config["architecture"])
        return config, layers

    def test_the_layout_is_valid(self):
        config, layers = self.parts()
        self.assertEqual(2, len(layers))
        names = {}
        for layer in layers:
            with tarfile.open(fileobj=io.BytesIO(layer)) as t:
                for m in t:
                    self.assertNotIn(m.name, [n for n in names if not m.isdir()])
                    names[m.name] = m
        self.assertEqual(4, names["usr/share/gamasot/models/small.gguf"].size)
        self.assertTrue(names["usr/bin/gamasot"].mode & 0o111)
        user = int(config["config"]["User"].split(":")[0])
        self.assertEqual(user, names["var/lib/gamasot"].uid)
        self.assertGreater(user, 0)
        with tarfile.open(self.out / "gamasot-oci.tar") as t:
            self.assertIn("oci-layout", t.getnames())
            self.assertIn("index.json", t.getnames())

    @harness.long_only
    def test_equal_inputs_give_an_equal_image(self):
        again = fresh("oci-again")
        run("python3", "scripts/build-oci", harness.GAMASOT, again, "--model", self.model)
        self.assertEqual((self.out / "gamasot-oci.tar").read_bytes(),
                         (again / "gamasot-oci.tar").read_bytes())

    @unittest.skipUnless(os.geteuid() == 0, "chroot needs root")
    def test_it_runs_with_nothing_but_what_is_in_it(self):
        config, layers = self.parts()
        root = fresh("oci-root")
        for layer in layers:
            with tarfile.open(fileobj=io.BytesIO(layer)) as t:
                t.extractall(root)
        env = dict(x.split("=", 1) for x in config["config"]["Env"])
        inside = [shutil.which("chroot"), f"--userspec={config['config']['User']}", root]
        program = config["config"]["Entrypoint"]
        self.assertEqual(cli("--version")[1], run(*inside, *program, "--version", env=env))
        done = subprocess.run([*inside, *program, *config["config"]["Cmd"]], env=env, timeout=60,
                              capture_output=True, text=True)
        self.assertEqual(2, done.returncode)
        self.assertIn("keys", done.stderr)  # open to others: only with keys
        self.assertEqual("", run(*inside, *program, "keys", "list", env=env))


class AppFiles(unittest.TestCase):
    def test_compose_and_casaos(self):
        options = json.loads(cli("config", "show")[1])
        for name in ("compose/compose.yaml", "casaos/docker-compose.yml"):
            app = yaml.safe_load((PACKAGING / name).read_text())
            (service,) = app["services"].values()
            self.assertEqual(f"gamasot:{cli('--version')[1].split()[1]}", service["image"])
            for variable in service["environment"]:
                section, _, option = variable.removeprefix("GAMASOT_").lower().partition("_")
                self.assertIn(f"{section}.{option}", options, variable)
            targets = [v["target"] if isinstance(v, dict) else v.split(":")[1]
                       for v in service["volumes"]]
            self.assertEqual(["/var/lib/gamasot", "/var/cache/gamasot"], targets)
        self.assertEqual("gamasot", app["x-casaos"]["main"])
        self.assertIn(app["x-casaos"]["main"], app["services"])

    def test_the_announcement_names_the_port(self):
        port = json.loads(cli("config", "show")[1])["server.port"]
        tree = xml.etree.ElementTree.parse(PACKAGING / "avahi/gamasot.service")
        ports = [int(p.text) for p in tree.iter("port")]
        self.assertEqual([port, port], ports)
        self.assertEqual(["_gamasot._tcp", "_http._tcp"], [t.text for t in tree.iter("type")])
