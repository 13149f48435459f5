// Runs cross-emitted kernels under qemu-aarch64: DRIVER script blob results. Words of the script are int64, little endian:
//   n_samples, then each sample: n_memories x (nbytes, offset in blob), n_launches x (kernel, programs, n_args x (memory or -1, offset or value))
// with each count before its list. Every sample runs twice on fresh memory and writes all of it to `results` each time: first
// between guard bytes in one piece of programs, then with each tensor's end at an unmapped page, its programs in two pieces,
// later ones first.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>

typedef void (*Kernel)(const int64_t *, int64_t, int64_t);
extern const Kernel kernels[];
enum { GUARD = 64, PAGE = 4096 };

static char *read_all(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) { perror(path); exit(2); }
    long size = ftell(file);
    rewind(file);
    char *data = malloc(size + 1);
    if (!data || fread(data, 1, size, file) != (size_t)size) { perror(path); exit(2); }
    fclose(file);
    return data;
}

// Memory whose bytes [0, nbytes) hold `from`; where `edge`, the trailing guard is not there: the page after the tensor is unmapped.
static char *place(const char *from, int64_t nbytes, int edge, char **mapped) {
    int64_t pages = (nbytes + PAGE - 1) / PAGE + 1;
    char *base = *mapped = mmap(0, (pages + 1) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base + pages * PAGE, PAGE, PROT_NONE)) { perror("mmap"); exit(2); }
    char *at = edge ? base + pages * PAGE - (nbytes - GUARD) : base;
    memcpy(at, from, edge ? nbytes - GUARD : nbytes);
    return at;
}

int main(int argc, char **argv) {
    if (argc == 1) {
        printf("%lu %lu\n", getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
        return 0;
    }
    if (argc != 4) return 2;
    const int64_t *script = (const int64_t *)read_all(argv[1]);
    const char *blob = read_all(argv[2]);
    FILE *results = fopen(argv[3], "wb");
    if (!results) { perror(argv[3]); return 2; }
    for (int64_t sample = 0, n_samples = *script++; sample < n_samples; sample++) {
        const int64_t *start = script;
        for (int edge = 0; edge < 2; edge++) {
            fprintf(stderr, "%ld %d\n", (long)sample, edge);
            script = start;
            int64_t n_memories = *script++;
            const int64_t *rows = script;
            char **memories = malloc(2 * n_memories * sizeof *memories), **mapped = memories + n_memories;
            for (int64_t i = 0; i < n_memories; i++, script += 2)
                memories[i] = place(blob + script[1], script[0], edge, &mapped[i]);
            for (int64_t n = *script++; n > 0; n--) {
                Kernel kernel = kernels[*script++];
                int64_t programs = *script++, n_args = *script++, args[64], values[64];
                if (n_args > 64) return 2;
                for (int64_t i = 0; i < n_args; i++, script += 2) {
                    values[i] = script[1];
                    args[i] = script[0] < 0 ? (int64_t)&values[i] : (int64_t)(memories[script[0]] + script[1]);
                }
                if (!edge) { kernel(args, 0, programs); continue; }
                kernel(args, programs / 2, programs);
                kernel(args, 0, programs / 2);
            }
            for (int64_t i = 0; i < n_memories; i++) {
                int64_t size = rows[2 * i] - (edge ? GUARD : 0);
                if (fwrite(memories[i], 1, size, results) != (size_t)size) { perror(argv[3]); return 2; }
                int64_t pages = (rows[2 * i] + PAGE - 1) / PAGE + 1;
                munmap(mapped[i], (pages + 1) * PAGE);
            }
            free(memories);
        }
    }
    return fclose(results) ? 2 : 0;
}
