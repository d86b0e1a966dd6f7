/* All-reduce by MPI: mpi_allreduce BYTES [BYTES ...] prints one JSON line per size, times in us.
   The number of rounds and the warm-up are those of our own side (crates/manyhands-net/src/measure.rs). */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, n_ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    for (int arg = 1; arg < argc; arg++) {
        size_t n_bytes = strtoull(argv[arg], NULL, 10);
        int n = (int)(n_bytes / sizeof(float));
        long rounds = (256L << 20) / (long)n_bytes;
        rounds = rounds < 7 ? 7 : rounds > 500 ? 500 : rounds;
        float *from = malloc(n_bytes), *to = malloc(n_bytes);
        double *times = malloc(sizeof(double) * rounds), sum = 0;
        for (int i = 0; i < n; i++) from[i] = rank + 1, to[i] = 0;
        for (long i = 0; i < 2 + rounds / 10; i++)
            MPI_Allreduce(from, to, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        for (long i = 0; i < rounds; i++) {
            double start = MPI_Wtime();
            MPI_Allreduce(from, to, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            times[i] = (MPI_Wtime() - start) * 1e6;
            sum += times[i];
        }
        if (to[n - 1] != n_ranks * (n_ranks + 1) / 2) MPI_Abort(MPI_COMM_WORLD, 1);
        qsort(times, rounds, sizeof(double), ascending);
        if (rank == 0)
            printf("{\"n_bytes\": %zu, \"n_rounds\": %ld, \"median_us\": %f, \"mean_us\": %f, \"best_us\": %f}\n", n_bytes,
                   rounds, times[rounds / 2], sum / rounds, times[0]);
        free(from), free(to), free(times);
    }
    MPI_Finalize();
}
