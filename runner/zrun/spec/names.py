"""Unknown field names: what they are called here, where they belong, or what was probably meant.

Knows the names other tools use; the fields of this one it is told.
"""

import difflib
from typing import Final

from zrun.spec.nodes import Scalar
from zrun.spec.problem import Problems, quoted

_TABLE: Final = """
SkyPilot     num_nodes nodes | envs env | file_mounts - | job_recovery restart
SkyPilot     max_restarts_on_errors restart.max_restarts
SkyPilot     recover_on_exit_codes restart.rules | accelerators resources.gpus | cloud - | region -
TorchX       num_replicas nodes | max_retries restart.max_restarts | retry_policy restart.policy | entrypoint run
TorchX       image - | workspace workdir | memMB resources.memory
Kubeflow     numNodes nodes | numProcPerNode nproc_per_node | resourcesPerNode resources | command run | trainer -
Kubeflow     terminationGracePeriodSeconds stop_grace | activeDeadlineSeconds max_duration | metadata name
JobSet       replicas nodes | parallelism nodes | failurePolicy restart | backoffLimit restart.max_restarts
HyperPod     nprocPerNode nproc_per_node | jobMaxRetryCount restart.max_restarts | restartPolicy restart.policy
HyperPod     logPattern watchdog.log_pattern | runPolicy restart
dstack       commands run | working_dir workdir | retry restart | stop_duration stop_grace | gpu resources.gpus
dstack       shm_size resources.shm | utilization_policy watchdog
Determined   slots_per_trial nproc_per_node | environment env | environment_variables env
Determined   preemption_timeout preempt.grace
Determined   max_slots nodes | log_policies watchdog.log_pattern
mcli         env_variables env | compute resources | scheduling restart | gpus resources.gpus
Accelerate   num_machines nodes | num_processes nproc_per_node | machine_rank - | main_process_ip -
Accelerate   main_process_port -
Accelerate   mixed_precision - | distributed_type -
Slurm        ntasks_per_node nproc_per_node | ntasks nproc_per_node | job_name name | time max_duration | chdir workdir
Slurm        gpus_per_node resources.gpus | requeue restart | signal preempt.signals | nodelist placement.hosts
Slurm        exclusive - | partition - | account - | mem resources.memory
Ray          num_workers nproc_per_node | runtime_env env | env_vars env | max_failures restart.max_restarts
Ray          resources_per_worker resources | submission_id name
torchrun     nnodes nodes | nproc nproc_per_node | max_restarts restart.max_restarts | rdzv_backend - | rdzv_endpoint -
torchrun     master_addr - | master_port - | node_rank - | rdzv_id - | monitor_interval - | standalone -
torchrun     log_dir - | script run | module run | entry_point run
NVRx         max_no_progress_cycles restart.max_without_progress | rank_heartbeat_timeout watchdog.step
NVRx         initial_rank_heartbeat_timeout watchdog.setup | rank_section_timeouts watchdog.phases
NVRx         workload_check_interval -
DeepSpeed    num_gpus nproc_per_node | hostfile placement.hosts | include placement.hosts
other        timeout watchdog.step | step_timeout watchdog.step | startup_timeout watchdog.setup
other        hang_timeout watchdog.step
other        checkpoint_timeout watchdog.save | sections watchdog.phases | heartbeat_timeout watchdog.step
other        cmd run | args run | arguments run | program run | retries restart.max_restarts
other        max_restart restart.max_restarts
other        cwd workdir | environ env | time_limit max_duration | checkpoint_dir checkpoint.dir
other        save_every checkpoint.every
other        save_steps checkpoint.every | checkpoint_every checkpoint.every | grace_period stop_grace
other        code restart.rules
other        exit_codes restart.rules | workers nproc_per_node | processes nproc_per_node | world_size nproc_per_node
other        fatal_exit_codes restart.rules | backoff_max restart.backoff | keep_last checkpoint.keep | random_seed seed
other        tags labels | webhook notify | min_nodes nodes | max_nodes nodes | elastic nodes | log_size logs.max_size
"""
TOTALS: Final = frozenset({"num_processes", "num_workers", "ntasks", "world_size"})
"""These count the whole job where nproc_per_node counts one node."""


def _read(table: str) -> dict[str, tuple[str, str]]:
    known: dict[str, tuple[str, str]] = {}
    for line in table.strip().splitlines():
        tool, _, rest = line.partition(" ")
        for pair in rest.split("|"):
            name, here = pair.split()
            known.setdefault(name.lower(), (tool, here))
    return known


FOREIGN: Final = _read(_TABLE)
"""Lower-case name -> (tool, dotted name here or `-`)."""


def unknown_field(name: Scalar, block: str, own: tuple[str, ...], problems: Problems) -> None:
    """Adds the problem of a name that this block does not have."""
    where = f"{block}.{name.text}" if block else name.text
    suggestion = meant(name.text, own, problems.paths)
    expected = "" if suggestion else f"one of {', '.join(own)}"
    problems.add(name.span, f"unknown field {quoted(where)}", expected=expected, suggestion=suggestion)


def meant(text: str, own: tuple[str, ...], paths: tuple[str, ...]) -> str:
    """What to do about the name, or nothing."""
    if len(text) > 64:
        return ""
    if text == "<<":
        return "merge keys are not part of YAML 1.2; write the fields out"
    plain = text.replace("-", "_")
    if plain in own:
        return f"here it is written {plain}"
    known = FOREIGN.get(plain.lower())
    if known and known[0] != "other":
        return _translated(known, plain)
    near = difflib.get_close_matches(plain.lower(), own, n=1, cutoff=0.6 if known else 0.8)
    if near:
        return f"did you mean {near[0]}?"
    if known:
        return _translated(known, plain)
    if elsewhere := [path for path in paths if path.rsplit(".", 1)[-1] == plain]:
        return (
            f"it belongs under {' or '.join(elsewhere)}"
            if "." in elsewhere[0]
            else f"it belongs at the top, as {plain}"
        )
    if near := difflib.get_close_matches(plain.lower(), own, n=1, cutoff=0.6):
        return f"did you mean {near[0]}?"
    tails = {path.rsplit(".", 1)[-1]: path for path in reversed(paths)}
    if far := difflib.get_close_matches(plain.lower(), list(tails), n=1, cutoff=0.75):
        return f"did you mean {tails[far[0]]}?"
    return ""


def _translated(known: tuple[str, str], name: str) -> str:
    tool, here = known
    whose = "other tools call it that" if tool == "other" else f"{tool} calls it that"
    if here == "-":
        return f"{whose}; zrun has no such field and needs none"
    if name in TOTALS:
        return f"{whose} and counts the whole job; here it is {here}, counted per node"
    return f"{whose}; here it is {here}"
