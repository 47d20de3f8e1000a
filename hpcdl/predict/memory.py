"""What a transformer's training keeps in each GPU's memory, however it is split.

Activations of a block by Korthikanti et al. (2022, arXiv 2205.05198, equations 1 to 6): with
nothing recomputed s b h (34 + 5 a s / h) bytes in half precision. Tensor parallelism shards
24 + 5 a s / h of it, and sequence parallelism the other 10. State by Rajbhandari et al. (2020,
arXiv 1910.02054): stages of ZeRO shard the optimizer's, then gradients, then weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcdl import facts
from hpcdl.predict.network import FLOAT_BYTES, Network

CHECKPOINTING = ("none", "selective", "full")
_ADAM = 8.0  # bytes of both moments of a weight


@dataclass(frozen=True)
class Plan:
    """How a transformer is split over GPUs, and what is recomputed.

    `tensor` GPUs share every block; `stages` of a pipeline hold some blocks each, in `interleave`
    pieces (virtual stages); other GPUs are replicas. `sequence` shards layer norms and dropout,
    too. `zero` is ZeRO's stage, 3 is FSDP. A step has `micro_batches` per replica.
    `checkpointing` keeps all, recomputes attention's core (`selective`) or whole blocks (`full`).
    `fused` attention (FlashAttention) never keeps its scores.
    """

    tensor: int = 1
    stages: int = 1
    interleave: int = 1
    micro_batches: int = 1
    sequence: bool = False
    zero: int = 0
    checkpointing: str = "none"
    fused: bool = True

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.tensor * self.stages

    def blocks(self, net: Network) -> tuple[int, int]:
        """Blocks of the fullest stage, and of the first and the last one."""
        return -(-net.shape.blocks // self.stages), net.shape.blocks // self.stages


def kept(net: Network, plan: Plan, batch: int, element: int, again: str | None = None) -> float:
    """Bytes of activations that a block keeps until its backward pass.

    `batch` are sequences, `element` is an activation's bytes, `again` other checkpointing.
    """
    shape, again = net.shape, again or plan.checkpointing
    tokens, share = net.height * batch, plan.tensor if plan.sequence else 1
    whole = tokens * shape.hidden
    if again == "full":
        return element * whole / share
    # Two layer norms and the inputs of both parts; two masks of dropout are bytes.
    common = (4 * element + 2) * whole / share
    inner = (3 if shape.gated else 2) * shape.inner
    own = element * tokens * (2 * shape.hidden + 2 * (shape.keys or shape.hidden) + inner)
    core = shape.heads * net.height * tokens if again == "none" and not plan.fused else 0
    return common + (own + (2 * element + 1) * core) / plan.tensor


def activation_bytes(net: Network, plan: Plan, batch: int, element: int) -> float:
    """Bytes of activations on the fullest GPU, of the first stage or the last one."""
    most, ends = plan.blocks(net)
    # In 1F1B the first stage keeps a micro-batch per stage, and interleaved some more.
    one, flying = kept(net, plan, batch, element), float(min(plan.stages, plan.micro_batches))
    if plan.interleave > 1:
        flying += (plan.stages - 1) / plan.interleave
    working = kept(net, plan, batch, element, "none") if plan.checkpointing == "full" else 0.0
    # The last stage has logits and their gradients, in float32.
    logits = 2 * FLOAT_BYTES * net.height * batch * net.shape.vocabulary / plan.tensor
    return max(flying * most * one, ends * one + logits) + working


def stage_parameters(net: Network, plan: Plan) -> float:
    """Parameters of the fullest GPU: of most blocks, or of the first stage with its embedding."""
    most, ends = plan.blocks(net)
    return max(most * _block(net), ends * _block(net) + net.layers[0].parameters) / plan.tensor


def state_bytes(net: Network, plan: Plan, replicas: int, element: int) -> float:
    """Bytes of weights, gradients and Adam's moments on the fullest GPU.

    Beside weights of half precision there is a float32 copy; gradients are summed in float32.
    """
    optimizer = _ADAM + (FLOAT_BYTES if element < FLOAT_BYTES else 0)
    parts = enumerate((optimizer, FLOAT_BYTES, element), start=1)
    each = sum(part / (replicas if plan.zero >= stage else 1) for stage, part in parts)
    # FSDP gathers the weights of a block while the one before is computed.
    gathered = 2 * element * _block(net) / plan.tensor if plan.zero > 2 else 0.0
    return stage_parameters(net, plan) * each + gathered


def planned_bytes(net: Network, plan: Plan, batch: int, gpus: int, element: int) -> float:
    """Bytes that a step needs of each GPU's memory: state, activations, and CUDA's own."""
    own: float = facts.load("parallel")["context_bytes"]
    state = state_bytes(net, plan, max(1, gpus // plan.gpus), element)
    return state + activation_bytes(net, plan, batch, element) + own


def _block(net: Network) -> int:
    return net.layers[1].parameters + net.layers[2].parameters
