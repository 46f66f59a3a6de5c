"""The formulas in words, for those who read the command's output."""

from typing import NamedTuple


class Formula(NamedTuple):
    """What something takes, and who says so."""

    what: str
    formula: str
    source: str


# n ranks on m machines, L on each; S bytes; B bandwidth; a time per step or question.
FORMULAS = (
    Formula(
        "all-reduce, ring",
        "2(n-1)/n S/B + 2(m-1) a_network + 2(n-m) a_node",
        "Patarasu and Yuan 2009; Thakur, Rabenseifner and Gropp 2005; NCCL, tuning.cc",
    ),
    Formula(
        "all-reduce, two trees",
        "2 S/B + 2 ceil(log2 m) a_network + 2(L-1) a_node",
        "Sanders, Speck and Traeff 2009; NCCL, tuning.cc",
    ),
    Formula(
        "imports",
        "import + max(m files/rate, m bytes/B_storage, bytes/B_node)",
        "each machine asks for every file once",
    ),
    Formula(
        "meeting in the store",
        "n (connections a_connection + questions a_exchange) + questions round_trip",
        "one thread serves all; counted at the store",
    ),
    Formula(
        "group of gloo, and group for objects",
        "n(1+2n) a_exchange + n^2 (168+8n)/B_store + (n-1) a_pair",
        "gloo, transport/tcp/context.cc; torch, TCPStore.cpp",
    ),
    Formula(
        "the same, lazily",
        "n(1+2p) a_exchange + 168 n p/B_store + p a_pair, p = 2 + ceil(log2 n)",
        "two others in a ring, one for each level of a tree",
    ),
    Formula(
        "group of NCCL",
        "2n a_exchange + min(n,128)/root_rate + 3 n/2 round_trip",
        "NCCL, bootstrap.cc; torch, TORCH_NCCL_RANKS_PER_ROOT",
    ),
    Formula(
        "checkpoint, gathered",
        "(n-1)/n S/B + S/B_copy + S/min(B_save, B_node, B_storage) + sync",
        "an all-gather by a ring, then one writer",
    ),
    Formula(
        "checkpoint, in parts",
        "S/(n B_copy) + max(S/(n B_save), L S/(n B_node), S/B_storage) + (n+1)/rate + n a_exchange"
        " + round_trip + 2 sync",
        "mm-runner: a file of each rank, one that names them",
    ),
    Formula(
        "reading to resume",
        "S/B + max(S/B, m S/B_storage), B = min(B_node, B_storage)",
        "mm-runner: the main process, then every machine reads the whole",
    ),
    Formula(
        "interval, and time lost",
        "t = sqrt(2 stop M/n), stop/t + (t/2 + behind + start + reading) n/M",
        "Young 1974; Daly 2006",
    ),
)
