"""Further options of sbatch: any of the release's, but none that the script decides itself."""

import pytest

from hpcdl.jobs.lint.options import known_options
from hpcdl.jobs.sbatch_options import directives, own_options
from hpcdl.system.errors import BadInput


@pytest.mark.parametrize(("asked", "directive"), [
    ("mail-type=END,FAIL", "--mail-type=END,FAIL"), ("--mail-user=me@site", "--mail-user=me@site"),
    ("constraint=a&b|c", '--constraint="a&b|c"'), ("hold", "--hold"),
    ("get-user-env=60L", "--get-user-env=60L"),
    ('comment=a "b" #', '--comment="a \\"b\\" #"'),
])  # fmt: skip
def test_options_become_directives_that_sbatch_reads_as_they_were_meant(asked, directive):
    assert directives("22.05", [asked]) == (directive,)


@pytest.mark.parametrize(("asked", "said", "hint"), [
    (["nodes=2"], "decides that itself", "use --gpus, --nodes"),
    (["--time=5"], "decides that itself", "use --time"),
    (["hetjob"], "decides that itself", "written by hand"),
    (["container-image=x"], "decides that itself", "use --container"),
    (["mail-typ=END"], "no option 'mail-typ'", "did you mean 'mail-type'?"),
    (["-w n1"], "no option '-w n1'", ""),
    (["prefer=x"], "no option 'prefer'", ""),
    (["hold=yes"], "takes no value", "write --sbatch hold"),
    (["comment=a\nb"], "no directive can hold", ""),
])  # fmt: skip
def test_what_cannot_be_passed_on_is_refused(asked, said, hint):
    with pytest.raises(BadInput) as caught:
        directives("21.08", asked)
    assert said in caught.value.message
    assert hint in caught.value.hint


def test_no_directive_of_the_script_can_be_given_again(hpcdl):
    assert own_options().keys() <= known_options("sbatch").keys()
    line = "job render --site p100-v100-k80 --gpus 2 --no-module --account a --qos b"
    lines = hpcdl(*line.split()).out.splitlines()
    own = {one[10:].partition("=")[0] for one in lines if one.startswith("#SBATCH --")}
    assert len(own) > 10
    assert own <= own_options().keys()


def test_the_command_line_and_the_file_pass_them_on(tmp_path, hpcdl):
    (tmp_path / "job.yaml").write_text("schema: 1\nsbatch: [mail-type=END, nice]\n")
    line = ["job", "explain", "--site", "p100-v100-k80", "--no-module"]
    text = hpcdl(*line, "--file", str(tmp_path / "job.yaml")).out
    assert "#  as requested\n#SBATCH --mail-type=END\n#  as requested\n#SBATCH --nice\n" in text
    text = hpcdl(*line, "--sbatch", "exclude=n1", "--sbatch=--hold").out
    assert {"#SBATCH --exclude=n1", "#SBATCH --hold"} <= set(text.splitlines())
