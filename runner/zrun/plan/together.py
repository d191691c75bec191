"""How the programs that try something on real ranks meet: on GPUs if each rank has one of its own, else on the CPU."""

import torch
import torch.distributed as dist


def meet(ranks: int) -> tuple[str, torch.device]:
    """(backend, this rank's device); the process group is there afterwards."""
    cuda = torch.cuda.is_available() and torch.cuda.device_count() >= ranks
    device = torch.device("cuda", dist.get_node_local_rank()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(backend)
    return backend, device
