"""All-reduce by gloo (torch.distributed) over loopback: gloo_allreduce.py PROCESSES BYTES[,BYTES] prints one JSON line per size, times in us.

The number of rounds and the warm-up are those of our own side (crates/manyhands-net/src/measure.rs)."""
import json, os, socket, statistics, sys, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main(rank, n_ranks, port, sizes):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=n_ranks)
    for n_bytes in sizes:
        values = torch.full((n_bytes // 4,), float(rank + 1))
        dist.all_reduce(values)
        assert bool((values == n_ranks * (n_ranks + 1) / 2).all())
        values.zero_()
        rounds = min(max((256 << 20) // n_bytes, 7), 500)
        for _ in range(2 + rounds // 10):
            dist.all_reduce(values)
        dist.barrier()
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            dist.all_reduce(values)
            times.append((time.perf_counter() - start) * 1e6)
        if rank == 0:
            print(json.dumps({"n_bytes": n_bytes, "n_rounds": rounds, "median_us": statistics.median(times),
                              "mean_us": statistics.mean(times), "best_us": min(times)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        free_port = free.getsockname()[1]
    n = int(sys.argv[1])
    mp.spawn(main, args=(n, free_port, [int(size) for size in sys.argv[2].split(",")]), nprocs=n)
