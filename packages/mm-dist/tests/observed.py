"""Environments as launchers really set them, one rank of each; values that nobody reads left out.

Observed in processes that the named programs started, except where the comment says that they are
written down from the program's source.
"""

TORCHRUN = {
    # torchrun --standalone of torch 1.13.1, 2.0.1 and 2.15.0
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "43007",
    "OMP_NUM_THREADS": "1",
    "RANK": "1",
    "ROLE_NAME": "default",
    "ROLE_RANK": "1",
    "ROLE_WORLD_SIZE": "2",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_RUN_ID": "ccd52a0a-6c87-4b40-b55c-dcf7e0f3c03e",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
    "WORLD_SIZE": "2",
}
# python -m torch.distributed.launch, with and without --use_env: only the arguments differ.
TORCH_LAUNCH = {
    **TORCHRUN,
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29163",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
TORCHRUN_TWO_NODES = {
    **TORCHRUN,
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.77.0.11",
    "MASTER_PORT": "29501",
    "RANK": "3",
    "WORLD_SIZE": "4",
}

# What every process in a job has, the batch script's included (Slurm 22.05).
SLURM_JOB = {
    "SLURM_JOBID": "9",
    "SLURM_JOB_ID": "9",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_NNODES": "1",
    "SLURM_NODELIST": "n1",
    "SLURM_NPROCS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_TASKS_PER_NODE": "2",
}
# srun -N1 -n2
SLURM = {
    **SLURM_JOB,
    "SLURMD_NODENAME": "n1",
    "SLURM_GTIDS": "0,1",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "1",
    "SLURM_SRUN_COMM_PORT": "37253",
    "SLURM_STEPID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2",
}
# srun -N3 -n5
SLURM_UNEVEN = {
    **SLURM,
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "3",
    "SLURM_NODEID": "2",
    "SLURM_NODELIST": "n[1-3]",
    "SLURM_NTASKS": "5",
    "SLURM_PROCID": "4",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
}
# srun -m cyclic -N3 -n4: the fourth task is the second one of the first node
SLURM_CYCLIC = {
    **SLURM_UNEVEN,
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)",
}
# srun -m arbitrary with SLURM_HOSTFILE n2, n1, n1: task 0 runs on the second node of the list
SLURM_ARBITRARY = {
    **SLURM,
    "SLURMD_NODENAME": "n2",
    "SLURM_DISTRIBUTION": "arbitrary",
    "SLURM_HOSTFILE": "/home/me/hostfile",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}
# srun -n1 ... : -n2 ...: two jobs, whose tasks count through
SLURM_HETEROGENEOUS = {
    **SLURM,
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_ID_PACK_GROUP_0": "1",
    "SLURM_JOB_ID_PACK_GROUP_1": "2",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NODELIST_PACK_GROUP_0": "n1",
    "SLURM_JOB_NODELIST_PACK_GROUP_1": "n2",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1,2",
}
# sbatch --array=0-1: the last task has the number of the array, the others one of their own
SLURM_ARRAY = [
    {
        **SLURM,
        "SLURM_ARRAY_JOB_ID": "10",
        "SLURM_ARRAY_TASK_COUNT": "2",
        "SLURM_ARRAY_TASK_ID": task,
        "SLURM_JOBID": job,
        "SLURM_JOB_ID": job,
    }
    for task, job in (("0", "11"), ("1", "10"))
]
# srun -N1 -n2 --gpus-per-task=1, both tasks
SLURM_GPU_PER_TASK = [
    {
        **SLURM,
        "CUDA_VISIBLE_DEVICES": task,
        "GPU_DEVICE_ORDINAL": task,
        "ROCR_VISIBLE_DEVICES": task,
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_LOCALID": task,
        "SLURM_PROCID": task,
        "SLURM_STEP_GPUS": task,
        "ZE_AFFINITY_MASK": task,
    }
    for task in ("0", "1")
]
# srun -n2 --gres=gpu:1
SLURM_ONE_GPU = {**SLURM_GPU_PER_TASK[0], "SLURM_GPUS_ON_NODE": "1"}
# srun -n1 --gres=gpu:2
SLURM_IDLE_GPU = {
    **SLURM_GPU_PER_TASK[0],
    "CUDA_VISIBLE_DEVICES": "0,1",
    "SLURM_NTASKS": "1",
    "SLURM_STEP_GPUS": "0,1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
# The script of sbatch -N1 -n2, and the shell of salloc -N2 -n3
SLURM_BATCH = {**SLURM_JOB, "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_PROCID": "0"}
SLURM_SHELL = {**SLURM_JOB, "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1"}
# srun --mpi=pmix and srun --mpi=pmi2
SLURM_PMIX = {
    **SLURM,
    "PMIX_HOSTNAME": "vm",
    "PMIX_NAMESPACE": "slurm.pmix.1.0",
    "PMIX_RANK": "1",
    "PMIX_SERVER_URI41": "pmix-server.11775;tcp4://127.0.0.1:42833",
    "SLURM_PMIX_MAPPING_SERV": "(vector,(0,1,2))",
}
SLURM_PMI2 = {
    **SLURM,
    "PMI_FD": "13",
    "PMI_JOBID": "3.0",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}

# mpirun -np 3 of Open MPI 4.1.4
OPEN_MPI_4 = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_MCA_orte_num_nodes": "1",
    "OMPI_UNIVERSE_SIZE": "2",
    "PMIX_ID": "1646592001.1",
    "PMIX_NAMESPACE": "1646592001",
    "PMIX_RANK": "1",
}
# mpirun -np 2 of Open MPI 5.0.11
OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_VERSION": "5.0.11",
    "OMPI_WORLD_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-vm-5271@1",
    "PMIX_RANK": "1",
    "PRTE_LAUNCHED": "1",
}
# mpirun of Open MPI 4 in salloc -N2 -n3: a daemon for each node is a task of srun
OPEN_MPI_IN_SLURM = {
    **SLURM,
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "PMIX_NAMESPACE": "1139408897",
    "PMIX_RANK": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_TASKS": "2",
}
# mpiexec of MPICH 4.0.2 and 5.0.2; in salloc -N2 -n3
MPICH = {
    "HYDI_CONTROL_FD": "7",
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
    "PMI_FD": "11",
    "PMI_HOSTNAME": "vm",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}
MPICH_IN_SLURM = {
    **SLURM,
    "MPI_LOCALNRANKS": "1",
    "MPI_LOCALRANKID": "0",
    "PMI_RANK": "2",
    "PMI_SIZE": "3",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "1",
}
# mpiexec of Intel MPI 2021.18
INTEL_MPI = {
    "HYDRA_BSTRAP_LOCALHOST": "vm",
    "I_MPI_HYDRA_UUID": "b8170000-2fc1-5443-c860-0600198bb21d",
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
    "PMI_FD": "11",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}
# From the source of MVAPICH2's mpispawn: mpirun_rsh -np 4 a a b b
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
# Kubeflow Trainer (TrainJob): torchrun's options and nothing else
TRAIN_JOB = {
    **KUBERNETES,
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29400",
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "1",
}
# The training operator (PyTorchJob): torch's own variables, without LOCAL_RANK
PYTORCH_JOB = {
    **KUBERNETES,
    "MASTER_ADDR": "job-master-0",
    "MASTER_PORT": "23456",
    "PYTHONUNBUFFERED": "0",
    "RANK": "1",
    "WORLD_SIZE": "2",
}
# The same with an elastic policy, without a master
ELASTIC_JOB = {
    **KUBERNETES,
    "PET_MAX_RESTARTS": "3",
    "PET_NNODES": "1:3",
    "PET_NPROC_PER_NODE": "1",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ENDPOINT": "job-worker-0:23456",
}
# submitit 1.5.4: a local executor with tasks_per_node=2, rank 1
SUBMITIT_LOCAL = {
    "SUBMITIT_EXECUTOR": "local",
    "SUBMITIT_LOCAL_GLOBALID": "1",
    "SUBMITIT_LOCAL_JOB_ID": "2780",
    "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
    "SUBMITIT_LOCAL_LOCALID": "1",
    "SUBMITIT_LOCAL_NODEID": "0",
    "SUBMITIT_LOCAL_NTASKS": "2",
}
