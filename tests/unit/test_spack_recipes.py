"""The overlay's recipes, read without Spack: every directive parsed, every file with a checksum."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl import __version__, facts
from hpcdl.stack.resolve_facts import computes, known, serves, wheel_sets
from hpcdl.system.resources import folder

REPOSITORY = folder("spack") / "spack_repo" / "hpcdl"
RECIPES = sorted(REPOSITORY.glob("packages/*/package.py"))
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
COMMIT = re.compile(r"[0-9a-f]{40}\Z")
BIN = str(Path(sys.executable).parent)


def tree(recipe):
    return ast.parse(recipe.read_text(), filename=str(recipe))


def package_class(recipe):
    classes = [node for node in tree(recipe).body if isinstance(node, ast.ClassDef)]
    assert len(classes) == 1, "one package class per recipe"
    return classes[0]


def directives(recipe, name):
    for node in ast.walk(package_class(recipe)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def keywords(call):
    """Keyword arguments that are written out, f-strings as their pieces."""
    found = {}
    for keyword in call.keywords:
        value = keyword.value
        if isinstance(value, ast.JoinedStr):
            parts = [p.value if isinstance(p, ast.Constant) else "*" for p in value.values]
            found[str(keyword.arg)] = "".join(map(str, parts))
        else:
            written = isinstance(value, ast.Constant)
            found[str(keyword.arg)] = str(value.value) if written else ast.unparse(value)
    return found


def first(call):
    return str(call.args[0].value) if isinstance(call.args[0], ast.Constant) else "*"


def named(package):
    return REPOSITORY / "packages" / package.replace("-", "_") / "package.py"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.parent.name)
def test_everything_that_is_downloaded_has_a_checksum(recipe):
    has_code = "has_code = False" not in recipe.read_text()
    bundle = any("BundlePackage" in ast.unparse(base) for base in package_class(recipe).bases)
    for call in [*directives(recipe, "version"), *directives(recipe, "resource")]:
        words = keywords(call)
        if "sha256" in words and SHA256.match(words["sha256"]):
            continue
        if "_wheel" in words.get("sha256", ""):
            assert (recipe.parent / "wheels.json").is_file()
        elif words.get("sha256") == "_digest":
            assert len(re.findall(r'"[0-9a-f]{64}"', recipe.read_text())) == 2, "per machine"
        else:
            assert COMMIT.match(words.get("commit", "")) or not has_code or bundle, words


@pytest.mark.parametrize("package", ["py-tensorflow-wheels", "py-tensorflow-cuda-wheels"])
def test_the_wheels_are_named_with_address_and_checksum(package):
    for version, wheels in json.loads((named(package).parent / "wheels.json").read_text()).items():
        for wheel in (wheels["tensorflow"], *wheels["others"].values()):
            assert wheel["url"].startswith("https://files.pythonhosted.org/packages/")
            assert wheel["url"].endswith(".whl")
            assert SHA256.match(wheel["sha256"])
        assert version in known().components["tensorflow"].versions["wheels"]
        assert {"keras", "numpy", "protobuf", "h5py"} <= set(wheels["others"])


def in_the_lists(cuda):
    """What the overlay's lists of wheels need of each other, and their versions by component."""
    book = facts.load("spack")["cuda_wheels" if cuda else "wheels"]
    lists = {name: wheel_sets(package, cuda=cuda) for name, package in book.items()}
    versions = {name: set(listed) for name, listed in lists.items()}
    needs = {(): {name: ",".join(listed) for name, listed in lists.items()}}
    for tensorflow, wheels in lists["tensorflow"].items():
        keras = wheels["others"]["keras"]["version"]
        own = {**wheels.get("versions", {}), "python": wheels.get("python", "3.11"), "keras": keras}
        for name, version in own.items():
            versions.setdefault(name, set()).add(version)
        if code := [f"sm_{arch}" for arch in wheels.get("cuda_arch", ())]:
            own["gpu"] = ",".join(one for one in computes() if serves(code, one))
        needs[tensorflow,] = own
    return needs, versions


def test_the_facts_know_what_the_lists_of_wheels_have():
    offered = {}
    for variant in ("cpu", "cuda"):
        wanted, versions = in_the_lists(cuda=variant == "cuda")
        for name, found in versions.items():
            offered.setdefault(name, set()).update(found)
        rows = {}
        for row in facts.load("toolchain")["rules"]:
            if row["when"].get("backend") == "spack-wheels" and row["when"]["variant"] == variant:
                of = (row["when"]["tensorflow"],) if "tensorflow" in row["when"] else ()
                rows[of] = row["needs"]
        assert rows == wanted
    listed = {
        name: part.versions.get("spack-wheels", ()) for name, part in known().components.items()
    }
    assert {name: set(found) for name, found in listed.items() if found} == offered


def test_horovod_is_the_release_of_the_facts_and_no_longer_deprecated():
    (call,) = directives(named("py-horovod"), "version")
    assert first(call) == known().components["horovod"].versions["spack"][0]
    assert "deprecated" not in keywords(call)


def test_cuda_has_the_upper_bounds_of_the_facts():
    wanted = {
        (first(call), keywords(call).get("when"))
        for call in directives(named("py-tensorflow"), "depends_on")
    }
    assert wanted >= {
        ("cuda@:11", "@:2.14"),
        ("cuda@:12", "@2.15:2.17"),
        ("cuda@:12.6", "@2.18:2.20"),
    }
    newest = known().components["tensorflow"].versions["spack"][0]
    assert newest.startswith("2.20"), "the recipe's ranges end at 2.20"


def test_cudnn_ends_where_the_facts_end_it_for_each_generation():
    limits = {
        rule.need.range.text
        for rule in known().rules
        if rule.need.variable == "cudnn" and rule.when[0].variable == "gpu"
    }
    assert limits == {":8.7", ":9.10"}
    for limit in limits:
        assert f'depends_on("cudnn@{limit}"' in named("py-tensorflow").read_text()


@pytest.mark.parametrize("package", ["py-horovod", "py-horovod-wheels"])
def test_horovod_is_patched_exactly_as_the_wheels_backend_edits_it(package):
    """Every edit of the facts, but those that shape wheels: RPATH, speed of compiling, clang."""
    edits = facts.load("wheels")["horovod"]["edits"]
    patches = {path.stem: path.read_text() for path in named(package).parent.glob("*.patch")}
    of_wheels = {"libraries-of-the-release", "no-debug-information", "clang-is-no-cmake-cuda"}
    of_wheels |= {"cuda-of-the-wheels", "kernels-by-clang"}
    assert set(edits) - of_wheels <= set(patches)
    for name in set(edits) & set(patches):
        lines = patches[name].partition("--- a/")[2].splitlines()
        assert lines[0] == edits[name]["file"]
        assert f'patch("{name}.patch"' in named(package).read_text()
        before, after = (
            [line.strip() for line in edits[name][key].split("\n")] for key in ("find", "replace")
        )
        assert set(changed(lines, "-")) >= set(before) - set(after)
        assert set(changed(lines, "+")) >= set(after) - set(before)


def changed(lines, sign):
    """The lines of a patch that go or come."""
    return [*(line[1:].strip() for line in lines[3:] if line.startswith(sign)), ""]


def test_hpcdl_is_packaged_at_its_own_version_with_its_requirements():
    (call,) = directives(named("py-hpcdl"), "version")
    assert first(call) == __version__
    needs = {first(c).split("@")[0] for c in directives(named("py-hpcdl"), "depends_on")}
    assert {"py-jinja2", "py-pyyaml", "py-shtab"} <= needs


@pytest.mark.skipif(shutil.which("ruff", path=BIN) is None, reason="ruff is not installed")
@pytest.mark.parametrize("words", [["check"], ["format", "--check"]])
def test_the_recipes_are_as_upstream_wants_them(words):
    """spack-packages checks its recipes with these rules (spack/spack_repo/ruff.toml)."""
    repository = folder("spack") / "spack_repo"
    config = ["--no-cache", "--config", repository / "ruff.toml", repository]
    done = subprocess.run(
        [f"{BIN}/ruff", *words, *config], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
