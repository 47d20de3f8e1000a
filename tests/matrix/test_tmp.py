def test_x(machine):
    a=machine.submit("#!/bin/sh\nexit 0\n","--hold")
    p=machine.folder/"y.sh"; p.write_text("#!/bin/sh\necho got $1\n")
    d=machine("sbatch","--hold","--comment=x y",p,"hpcdl-0123")
    print(machine.name, d.stdout,d.stderr, machine("squeue","--me","--all","--states=all","-o","%F|%o").stdout)
    print(machine("sacct","-X","-n","-P","-o","JobID,SubmitLine"))
    machine("scancel","-u","root")
