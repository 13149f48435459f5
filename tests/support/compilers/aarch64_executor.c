// Runs a schedule by the cross-emitted executor under qemu-aarch64: DRIVER script results, with threads of pthread as workers.
// Words of the script are int64: workers, turns of a spin, memory words, n_runs x (extent, pause in us), n_thunks x
// (kernel or -1 for a copy, constant, wait, home, n_factors x divisor of the extent, n_args x (kind, number)), each count before
// its list. Kinds of arguments: 0 a word of memory, 1 the extent, 2 a number, 3 memmove. Every run starts with memory of 1, 2, 3...
// and writes all of it, and the stamps of the timed form; the last is run once more by one worker alone. The offsets come from plan/executor_layout.py as macros.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*Kernel)(const int64_t *, int64_t, int64_t);
extern const Kernel kernels[];
extern void camshaft_run_alone(int64_t *, int64_t, int64_t, int64_t *);
extern void camshaft_run(int64_t *, int64_t *, int64_t, int64_t, int64_t *);
extern int64_t camshaft_worker(int64_t *, int64_t);
extern void camshaft_stop(int64_t *);
// Of the timed form alone.
extern void camshaft_stamps(int64_t *, int64_t) __attribute__((weak));
extern void camshaft_copy(const int64_t *, int64_t, int64_t);

static int64_t *control;

static void *work(void *index) {
    while (camshaft_worker(control, (int64_t)(intptr_t)index)) sched_yield();
    return 0;
}

static int64_t *read_all(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) { perror(path); exit(2); }
    long size = ftell(file);
    rewind(file);
    int64_t *data = malloc(size + 8);
    if (!data || fread(data, 1, size, file) != (size_t)size) { perror(path); exit(2); }
    fclose(file);
    return data;
}

static int64_t *zeroed(int64_t words) {
    int64_t *made = aligned_alloc(128, (words * 8 + 127) / 128 * 128);
    if (!made) exit(2);
    memset(made, 0, words * 8);
    return made;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    const int64_t *s = read_all(argv[1]);
    int64_t workers = *s++, turns = *s++, n_words = *s++, n_runs = *s++, extent = 0, failed = 0;
    const int64_t *runs = s;
    s += 2 * n_runs;
    int64_t n_thunks = *s++, *memory = zeroed(n_words), *records = zeroed(n_thunks * RECORD_WORDS);
    for (int64_t i = 0; i < n_thunks; i++) {
        int64_t *record = records + i * RECORD_WORDS, kernel = *s++;
        record[ENTRY] = (int64_t)(kernel < 0 ? camshaft_copy : kernels[kernel]);
        record[CONSTANT] = *s++;
        record[WAIT] = *s++;
        record[HOME] = *s++;
        record[N_FACTORS] = *s++;
        for (int64_t f = 0; f < record[N_FACTORS]; f++) {
            record[FACTORS + 2 * f] = (int64_t)&extent;
            record[FACTORS + 2 * f + 1] = *s++;
        }
        int64_t n_args = *s++, *args = zeroed(n_args);
        for (int64_t a = 0; a < n_args; a++, s += 2) {
            const int64_t choice[4] = {(int64_t)(memory + s[1]), (int64_t)&extent, s[1], (int64_t)memmove};
            args[a] = choice[s[0]];
        }
        record[ARGS] = (int64_t)args;
    }
    control = zeroed(WORKER_LINES + workers * WORDS_PER_WORKER);
    control[WAIT_FUNCTION] = control[WAKE_FUNCTION] = (int64_t)syscall;
    control[SPIN_BOUND] = control[SHORT_SPIN_BOUND] = turns;
    control[WORKERS] = workers;
    pthread_t threads[16];
    for (int64_t i = 1; i < workers; i++)
        if (pthread_create(&threads[i], 0, work, (void *)(intptr_t)i)) return 2;
    FILE *results = fopen(argv[2], "wb");
    int64_t n_stamps = workers * (n_thunks + 1) * STAMP_WORDS, *stamps = zeroed(n_stamps);
    if (camshaft_stamps) camshaft_stamps(stamps, n_thunks + 1);
    for (int64_t r = 0; r <= n_runs; r++) {
        const int64_t *run = runs + 2 * (r < n_runs ? r : n_runs - 1);
        extent = run[0];
        for (int64_t i = 0; i < n_words; i++) memory[i] = i + 1;
        if (r < n_runs) camshaft_run(control, records, 0, n_thunks, &failed);
        else camshaft_run_alone(records, 0, n_thunks, &failed);
        if (fwrite(memory, 8, n_words, results) != (size_t)n_words) return 2;
        if (camshaft_stamps && fwrite(stamps, 8, n_stamps, results) != (size_t)n_stamps) return 2;
        if (run[1]) usleep(run[1]);
    }
    camshaft_stop(control);
    for (int64_t i = 1; i < workers; i++) pthread_join(threads[i], 0);
    return fclose(results) || failed ? 2 : 0;
}
