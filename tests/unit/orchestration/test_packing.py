"""What of a working folder goes to a cluster with a job."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cifar_ray.config.errors import ConfigError
from cifar_ray.orchestration.jobs import packing

GOES = {"run.yaml", "sweeps/grid.yml", "code/model.py", "code/tokenizer.py", "code/keypoints.py", "pyproject.toml"}
SECRET = {
    ".env",
    ".env.local",
    "aws_credentials.json",
    "auth_token.txt",
    "id_rsa",
    "key.pem",
    "my-secrets.yaml",
    "passwords.txt",
    "service-account.json",
    "code/token.py",
    "accessKeys.txt",
    "api_key.txt",
    "apikey.txt",
    "aws_keys.yaml",
    "credentials/db.json",
    "gcp-key.json",
    "key.json",
    "private_key.json",
    "secrets/prod.yaml",
}
DATA = {
    "data/data_batch_1",
    "data/train-images-idx3-ubyte",
    "cifar-10-python.tar.gz",
    "weights.safetensors",
    "mlflow.db",
}
PASSED_OVER = {
    ".aws/config.yaml",
    ".git/config.txt",
    ".ssh/config.txt",
    ".venv/lib/module.py",
    "__pycache__/module.py",
    "mlruns/0/meta.yaml",
    "runs/first/config.yaml",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in GOES | SECRET | DATA | PASSED_OVER:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"this is {name}")
    return tmp_path


def packed(package: packing.Package, into: Path) -> set[str]:
    into.mkdir()
    package.copy(into)
    return {str(path.relative_to(into)) for path in into.rglob("*") if path.is_file()}


def test_configurations_and_code_go_and_nothing_else(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    package = packing.look(folder, None)
    assert set(package.files) == GOES
    assert package.size == sum((folder / name).stat().st_size for name in GOES)
    assert set(package.secret) == SECRET
    assert package.others == len(DATA)
    assert set(package.folders) == {name.split("/")[0] for name in PASSED_OVER}
    assert packed(package, tmp_path_factory.mktemp("copy") / "it") == GOES
    goes, stays = package.in_words()
    assert goes.startswith("packaged 6 file(s), 0.1 KiB, of ")
    assert stays.startswith(
        "left out: .env, .env.local, accessKeys.txt and 16 more, which may hold a secret; 5 file(s)"
    )


@pytest.mark.parametrize(
    "content",
    [
        "-----BEGIN " + "PRIVATE KEY-----\nMIIE",
        "deploy: |\n  -----BEGIN OPENSSH " + "PRIVATE KEY-----",
        '{"type": "service_account", "private' + '_key": "x"}',
        "access: AKIA" + "ABCDEFGH12345678",
    ],
)
def test_a_file_with_a_secret_in_it_stays_whatever_its_name(folder: Path, content: str) -> None:
    (folder / "my-project-1a2b3c4d.json").write_text(content)
    package = packing.look(folder, None)
    assert set(package.files) == GOES
    assert set(package.secret) == SECRET | {"my-project-1a2b3c4d.json"}
    with pytest.raises(ConfigError, match="config must be a file without secrets"):
        packing.look(folder, str(folder / "my-project-1a2b3c4d.json"))


def test_of_the_programs_own_code_nothing_stays() -> None:
    root = Path(packing.__file__).parents[1]
    package = packing.look(root, None)
    assert (package.secret, package.large) == ((), ())
    assert {str(file.relative_to(root)) for file in root.rglob("*.py")} <= set(package.files)


def test_what_git_ignores_stays_unless_it_is_named(folder: Path) -> None:
    if not (folder / ".git").is_dir():
        pytest.fail("the folder has a .git of its own, which git takes for no repository")
    (folder / ".git" / "config.txt").unlink()
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / ".gitignore").write_text("code/\nrun.yaml\n")
    assert set(packing.look(folder, None).files) == GOES - {
        "code/keypoints.py",
        "code/model.py",
        "code/tokenizer.py",
        "run.yaml",
    }
    assert "run.yaml" in packing.look(folder, str(folder / "run.yaml")).files


def test_a_large_file_stays_and_a_large_folder_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "annotations.json").write_bytes(bytes(packing.MOST_FILE_BYTES + 1))
    package = packing.look(folder, None)
    assert package.large == ("annotations.json",)
    assert "annotations.json, above 1 MiB" in package.in_words()[1]
    for index in range(21):
        (folder / f"part{index}.json").write_bytes(bytes(packing.MOST_FILE_BYTES))
    with pytest.raises(ConfigError, match=r"working_dir must have at most 20 MiB .* has 21 MiB in 27 files"):
        packing.look(folder, None)


def test_links_are_not_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "private.yaml"
    elsewhere.write_text("private: true")
    (folder / "link.yaml").symlink_to(elsewhere)
    assert "link.yaml" not in packing.look(folder, None).files


def test_a_folder_that_is_no_piece_of_work(folder: Path, home: Path) -> None:
    for wrong, problem in ((home, "holds everything"), (Path("/"), "holds everything"), (folder / "none", "a folder")):
        with pytest.raises(ConfigError, match=f"^working_dir must be .*{problem}"):
            packing.look(wrong, None)
    outside = folder / "run.yaml"
    with pytest.raises(ConfigError, match="working_dir must be a folder that has the file the command names"):
        packing.look(folder / "code", str(outside))
    with pytest.raises(ConfigError, match="config must be a file without secrets"):
        packing.look(folder, str(folder / "my-secrets.yaml"))
