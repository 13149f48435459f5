/* The machine of simulated_gpu.py: runs the threads of workgroups as fibers. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { FLYING = 512 };
typedef struct machine machine;
typedef void (*kernel)(const int64_t *args, int64_t linear, int64_t lane, machine *m);
typedef struct { char *to; const char *from; int nbytes, present, group; } piece;
struct machine {                       /* up to `landed` they are read by the kernel, by their offsets */
    char *shared;
    void (*barrier)(machine *m);
    int32_t (*shuffle)(machine *m, int32_t word, int32_t source);
    void (*multiply)(machine *m, int32_t *words, float *c, int32_t bf16);
    void (*matrices)(machine *m, const char *row, int32_t *words, int32_t count, int32_t across);
    void (*copy)(machine *m, char *to, const char *from, int32_t nbytes, int32_t present);
    void (*landed)(machine *m, int32_t ahead);
    int32_t (*operands)[6];            /* of each thread, while a warp multiplies */
    float (*sums)[4];
    const char **rows;
    int64_t conflicts;                 /* rows of a matrix whose banks an earlier row of it has */
    piece (*flying)[FLYING];           /* copies begun by each thread */
    int *n_flying, *group;             /* `group`: waits of each thread so far */
    kernel run;
    const int64_t *args;
    int64_t linear;
    int lanes, now, *order, *state, *begun; /* state: 1 waits at a barrier, 2 ended */
    int32_t *words;
    uint64_t seed;
    jmp_buf home, *jumps;
    ucontext_t *fibers;
};

static void give_up(const char *what) { fprintf(stderr, "simulated GPU: %s\n", what); abort(); }
static machine *starting;

/* to the scheduler and, when it comes to this thread again, back: setjmp makes no system call, swapcontext makes one */
static void leave(machine *m, int lane, int state) {
    m->state[lane] = state;
    if (!_setjmp(m->jumps[lane])) _longjmp(m->home, 1);
}

static void enter(void) {
    machine *m = starting;
    int lane = m->now;
    for (;;) {                         /* a fiber serves its thread of every workgroup */
        m->run(m->args, m->linear, lane, m);
        leave(m, lane, 2);
    }
}

static void barrier(machine *m) { leave(m, m->now, 1); }

static int32_t shuffle(machine *m, int32_t word, int32_t source) {
    int lane = m->now, from = (lane & ~31) | source;
    if (source < 0 || source > 31 || from >= m->lanes) give_up("a shuffle from a thread that there is not");
    m->words[lane] = word;
    barrier(m);
    int32_t got = m->words[from];
    barrier(m);
    return got;
}

static float widened(int32_t word, int high, int bf16) {
    uint16_t half = (uint16_t)(high ? (uint32_t)word >> 16 : (uint32_t)word);
    union { uint32_t u; float f; _Float16 h[2]; } x = {0};
    if (bf16) { x.u = (uint32_t)half << 16; return x.f; }
    x.u = half;
    return (float)x.h[0];
}

/* mma.sync.aligned.m16n8k16.row.col.f32.{f16,bf16}: whole matrices are put together from the warp's registers as the PTX ISA's
   tables say, multiplied, and each thread takes its four sums. */
static void multiply(machine *m, int32_t *words, float *c, int32_t bf16) {
    int me = m->now, warp = me & ~31;
    if (warp + 32 > m->lanes) give_up("a product of matrices in a warp that is not whole");
    memcpy(m->operands[me], words, sizeof *m->operands);
    memcpy(m->sums[me], c, sizeof *m->sums);
    barrier(m);
    float a[16][16], b[16][8], d[16][8];
    for (int lane = 0; lane < 32; lane++) {
        int group = lane >> 2, in_group = lane % 4;
        for (int i = 0; i < 8; i++) {   /* a_i: row is group for 0, 1, 4, 5, else group + 8; column 2 in_group + (i & 1), + 8 from a4 */
            int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8, column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
            a[row][column] = widened(m->operands[warp + lane][i / 2], i & 1, bf16);
        }
        for (int i = 0; i < 4; i++)     /* b_i: row 2 in_group + (i & 1), + 8 from b2; column group */
            b[in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0)][group] = widened(m->operands[warp + lane][4 + i / 2], i & 1, bf16);
        for (int i = 0; i < 4; i++)     /* c_i: row group, + 8 from c2; column 2 in_group + (i & 1) */
            d[i < 2 ? group : group + 8][in_group * 2 + (i & 1)] = m->sums[warp + lane][i];
    }
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++)
            for (int p = 0; p < 16; p++) d[i][j] += a[i][p] * b[p][j];
    for (int i = 0; i < 4; i++) c[i] = d[(me % 32 >> 2) + (i < 2 ? 0 : 8)][me % 4 * 2 + (i & 1)];
    barrier(m);
}

/* ldmatrix.sync.aligned.m8n8.x{2,4}{.trans}.shared.b16: thread n gives the address of row n % 8 of matrix n / 8 */
static void matrices(machine *m, const char *row, int32_t *words, int32_t count, int32_t across) {
    int me = m->now, warp = me & ~31;
    if (warp + 32 > m->lanes) give_up("matrices read by a warp that is not whole");
    if (me % 32 < 8 * count && (uintptr_t)row % 16) give_up("a row of a matrix that is not aligned");
    m->rows[me] = row;
    barrier(m);
    for (int i = 0; i < count && me == warp; i++) {
        unsigned taken = 0;
        for (int r = 0; r < 8; r++) {
            unsigned banks = 1u << ((uintptr_t)m->rows[warp + 8 * i + r] / 16 % 8);
            m->conflicts += (taken & banks) != 0;
            taken |= banks;
        }
    }
    for (int i = 0; i < count; i++) {
        uint16_t pair[2];
        for (int k = 0; k < 2; k++) {
            int r = across ? me % 4 * 2 + k : me % 32 / 4, c = across ? me % 32 / 4 : me % 4 * 2 + k;
            memcpy(&pair[k], m->rows[warp + 8 * i + r] + 2 * c, 2);
        }
        memcpy(&words[i], pair, 4);
    }
    barrier(m);
}

/* cp.async: nothing arrives before the thread waits for it */
static void copy(machine *m, char *to, const char *from, int32_t nbytes, int32_t present) {
    if ((uintptr_t)to % (uintptr_t)nbytes || (present && (uintptr_t)from % (uintptr_t)nbytes))
        give_up("an asynchronous copy that is not aligned");
    if (present < 0 || present > nbytes || m->n_flying[m->now] == FLYING) give_up("an asynchronous copy too many or too large");
    m->flying[m->now][m->n_flying[m->now]++] = (piece){to, from, nbytes, present, m->group[m->now]};
}

/* cp.async.commit_group and wait_group: copies of the last `ahead` groups stay under way */
static void landed(machine *m, int32_t ahead) {
    int me = m->now, left = 0;
    for (int i = 0; i < m->n_flying[me]; i++) {
        piece p = m->flying[me][i];
        if (p.group > m->group[me] - ahead) { m->flying[me][left++] = p; continue; }
        memcpy(p.to, p.from, (size_t)p.present);
        memset(p.to + p.present, 0, (size_t)(p.nbytes - p.present));
    }
    m->n_flying[me] = left;
    m->group[me]++;
}

static void shuffle_order(machine *m) {
    for (int i = m->lanes - 1; i > 0; i--) {
        m->seed = m->seed * 6364136223846793005u + 1442695040888963407u;
        int j = (int)((m->seed >> 33) % (uint64_t)(i + 1)), t = m->order[i];
        m->order[i] = m->order[j];
        m->order[j] = t;
    }
}

static void resume(machine *m) {
    if (_setjmp(m->home)) return;
    starting = m;
    if (m->begun[m->now]) _longjmp(m->jumps[m->now], 1);
    m->begun[m->now] = 1;
    setcontext(&m->fibers[m->now]);
}

static void workgroup(machine *m) {
    for (;;) {
        int waiting = 0, ended = 0;
        shuffle_order(m);
        for (int i = 0; i < m->lanes; i++) {
            m->now = m->order[i];
            resume(m);
            waiting += m->state[m->now] == 1;
            ended += m->state[m->now] == 2;
        }
        if (ended == m->lanes) return;
        if (waiting != m->lanes) give_up("a barrier that some threads of the workgroup do not reach");
    }
}

/* returns the conflicts */
int64_t simulate(kernel run, const int64_t *args, int64_t first, int64_t last, int lanes, int64_t shared, uint64_t seed) {
    const size_t stack = 1 << 16;
    machine m = {0};
    m.barrier = barrier; m.shuffle = shuffle; m.multiply = multiply; m.matrices = matrices; m.copy = copy; m.landed = landed;
    m.run = run; m.args = args; m.lanes = lanes; m.seed = seed;
    m.shared = aligned_alloc(64, (size_t)(shared + 127) / 64 * 64);
    m.order = calloc((size_t)lanes, sizeof *m.order);
    m.state = calloc((size_t)lanes, sizeof *m.state);
    m.words = calloc((size_t)lanes, sizeof *m.words);
    m.operands = calloc((size_t)lanes, sizeof *m.operands);
    m.sums = calloc((size_t)lanes, sizeof *m.sums);
    m.rows = calloc((size_t)lanes, sizeof *m.rows);
    m.flying = calloc((size_t)lanes, sizeof *m.flying);
    m.n_flying = calloc((size_t)lanes, sizeof *m.n_flying);
    m.group = calloc((size_t)lanes, sizeof *m.group);
    m.begun = calloc((size_t)lanes, sizeof *m.begun);
    m.jumps = calloc((size_t)lanes, sizeof *m.jumps);
    m.fibers = calloc((size_t)lanes, sizeof *m.fibers);
    char *stacks = malloc(stack * (size_t)lanes);
    for (int i = 0; i < lanes; i++) {
        m.order[i] = i;
        getcontext(&m.fibers[i]);
        m.fibers[i].uc_stack.ss_sp = stacks + (size_t)i * stack;
        m.fibers[i].uc_stack.ss_size = stack;
        makecontext(&m.fibers[i], enter, 0);
    }
    for (m.linear = first; m.linear < last; m.linear++) {
        memset(m.shared, 0xA5, (size_t)shared);
        workgroup(&m);
    }
    free(m.operands); free(m.sums); free(m.rows); free(m.flying); free(m.n_flying); free(m.group);
    free(stacks); free(m.fibers); free(m.jumps); free(m.begun); free(m.words); free(m.state); free(m.order); free(m.shared);
    return m.conflicts;
}
