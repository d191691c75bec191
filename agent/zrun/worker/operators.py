"""The c10d operators that are recorded, and their names in the deck; a torch may lack some of them."""

from typing import Final

OPERATORS: Final = {
    "allreduce_": "all_reduce", "broadcast_": "broadcast", "reduce_": "reduce", "allgather_": "all_gather",
    "gather_": "gather", "scatter_": "scatter", "reduce_scatter_": "reduce_scatter", "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all", "barrier": "barrier", "send": "send", "recv_": "recv",
    "recv_any_source_": "recv_any_source", "_allgather_base_": "all_gather_into_tensor",
    "_reduce_scatter_base_": "reduce_scatter_tensor", "allreduce_coalesced_": "allreduce_coalesced",
    "allgather_coalesced_": "allgather_coalesced", "allgather_into_tensor_coalesced_": "allgather_coalesced",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_coalesced", "monitored_barrier_": "monitored_barrier",
}  # fmt: skip
"""Operator -> its name in the deck."""
ASYNC_NAMES: Final = ("async_op", "asyncOp")
"""The argument that says whether the caller goes on meanwhile, in this torch and in older ones."""
