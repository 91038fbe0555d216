/* Products of matrices on all cores: c[.., m, n] = a[.., m, k] b[.., k, n] in float32, with up to two axes of matrices.

   A block of c, ROWS rows by NV vectors, is added up in registers, STEPS steps of k at a time. Before, its rows of a and
   columns of b are laid out in panels, the numbers of one step side by side. Threads take the next piece of c until
   there is none: one that gets no core leaves its pieces to the others, and who computes a piece makes no difference to
   its bits. Each lays out the rows that it reads itself: lines that another core has just written take longer than that.
   (Panels in registers and caches: Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008.) */
#define _GNU_SOURCE /* the processor that a thread runs on */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__AVX512F__) /* 32 registers of 16 numbers */
enum { W = 16, NV = 2, ROWS = 14 };
#define EACH_COUNT(CASE) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
#elif defined(__AVX__) /* 16 registers of 8 */
enum { W = 8, NV = 2, ROWS = 6 };
#define EACH_COUNT(CASE) CASE(4) CASE(5) CASE(6)
#else /* 16 or 32 registers of 4 */
enum { W = 4, NV = 2, ROWS = 4 };
#define EACH_COUNT(CASE) CASE(3) CASE(4)
#endif
enum { COLS = NV * W, STEPS = 256, WIDE = 4, PIECES = 4, AHEAD = 8, LINE = 16 };
enum { GROUP = 16, LAID = 1 << 16, DEEP = 1 << 14 }; /* panels of a piece; their steps in all; steps of one pass */
enum { MOST_THREADS = 16, AWAKE = 500000 /* ns that a thread waits for the next product before it sleeps */ };
enum { HELD_UP = 100000 /* ns */, PAUSE = 16, SHORT = 1 << 26 /* multiplications, 1 ms by one thread */ };

typedef float Vec __attribute__((vector_size(4 * W)));
typedef float Loose __attribute__((vector_size(4 * W), aligned(4)));
typedef int32_t Lanes __attribute__((vector_size(4 * W)));
#define INLINE static inline __attribute__((always_inline))
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t parts(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* laying out ------------------------------------------------------------------------------------------------------- */
#ifdef __clang__
#define MIX(made, a, b, from) EACH(j, W) made[j] = from[j] < W ? a[from[j]] : b[from[j] - W]
#else
#define MIX(made, a, b, from) made = __builtin_shuffle(a, b, from)
#endif

/* Exchange the numbers off the diagonal in blocks of s x s; for s of 1, 2, 4 up to W / 2 rows become columns. */
INLINE void exchange(Vec *x, const int s) {
    Lanes low, high;
    EACH(j, W) low[j] = j & s ? W + (j ^ s) : j;
    EACH(j, W) high[j] = j & s ? W + j : j ^ s;
    EACH(i, W) if (!(i & s)) {
        const Vec a = x[i], b = x[i | s];
        MIX(x[i], a, b, low);
        MIX(x[i | s], a, b, high);
    }
}

/* to[p * W + i] = from[i * row + p * step] for the first n of W rows; the others are not read, and hold anything. */
static void lay_out(const float *from, int64_t row, int64_t step, int64_t n, int64_t steps, float *to) {
    int64_t p = 0;
    if (step == 1)
        for (; p + W <= steps; p += W) {
            Vec x[W];
            EACH(i, W) {
                const float *at = from + (i < n ? i : 0) * row + p;
                __builtin_prefetch(at + 2 * W);
                x[i] = *(const Loose *)at;
            }
            exchange(x, 1);
            exchange(x, 2);
            if (W > 4) exchange(x, 4);
            if (W > 8) exchange(x, 8);
            EACH(i, W) *(Vec *)(to + (p + i) * W) = x[i];
        }
    else if (row == 1 && step >= W) /* whole vectors, the last of which would read behind the end */
        for (; p < (n == W ? steps : steps - 1); p++)
            *(Vec *)(to + p * W) = *(const Loose *)(from + p * step);
    for (; p < steps; p++)
        for (int64_t i = 0; i < n; i++)
            to[p * W + i] = from[i * row + p * step];
}

/* Lay out n columns of b: panels of W, one behind the other. */
static void lay_out_columns(const float *from, int64_t row, int64_t column, int64_t n, int64_t steps, float *to) {
    if (column == 1 && n % W == 0) /* row by row, as they lie */
        for (int64_t p = 0; p < steps; p++)
            for (int64_t x = 0; x < n; x += W) {
                __builtin_prefetch(from + (p + AHEAD) * row + x);
                *(Vec *)(to + x * steps + p * W) = *(const Loose *)(from + p * row + x);
            }
    else
        for (int64_t x = 0; x < n; x += W)
            lay_out(from + x * column, column, row, least(W, n - x), steps, to + x * steps);
}

/* sums ------------------------------------------------------------------------------------------------------------- */
typedef struct {
    const float *a, *b; /* a panel of a, NV panels of b */
    float *c; /* where the block begins */
    int64_t row; /* from a row of c to the next */
    int64_t steps, rows, columns;
    int begins; /* whether these are the first steps */
} Block;

INLINE void add_up(const Block *t, const int rows) {
    const float *a = t->a, *b = t->b;
    const int64_t panel = t->steps * W;
    Vec sum[ROWS][NV];
    EACH(i, rows) EACH(j, NV) sum[i][j] = (Vec){0};
    if (t->rows == rows)
        EACH(i, rows) EACH(j, COLS / LINE) __builtin_prefetch(t->c + i * t->row + j * LINE, 1);
    for (const float *end = a + panel; a < end; a += W, b += W) {
        Vec y[NV];
        EACH(j, NV) y[j] = *(const Vec *)(b + j * panel);
        EACH(i, rows) EACH(j, NV) sum[i][j] += a[i] * y[j];
    }
    if (t->rows == rows && t->columns == COLS) {
        EACH(i, rows) EACH(j, NV) {
            Loose *to = (Loose *)(t->c + i * t->row + j * W);
            *to = t->begins ? sum[i][j] : *to + sum[i][j];
        }
        return;
    }
    float all[ROWS][COLS];
    memcpy(all, sum, sizeof all);
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t j = 0; j < t->columns; j++)
            t->c[i * t->row + j] = t->begins ? all[i][j] : t->c[i * t->row + j] + all[i][j];
}

static __attribute__((noinline)) void add_block(const Block *t, int64_t rows) {
    switch (rows) {
#define CASE(n) case n: add_up(t, n); break;
    EACH_COUNT(CASE)
    }
}

/* pieces ----------------------------------------------------------------------------------------------------------- */
typedef struct { /* steps from an element to the next along each axis, in numbers: of matrices, rows, columns */
    const float *a;
    int64_t a_outer, a_inner, a_row, a_column;
    const float *b;
    int64_t b_outer, b_inner, b_row, b_column;
    float *c;
    int64_t c_outer, c_inner, c_row, c_column; /* the last is 1 */
    int64_t outer, inner, m, k, n, threads;
} Product;

typedef struct {
    Product of;
    int64_t from, deep; /* steps of this pass */
    int64_t rows, panels, group, columns; /* of a panel of a; of a; of a piece: its panels of a and columns of b */
    int64_t down, across, pieces; /* of a matrix, in panels and columns; of all */
    _Atomic int64_t next, helpers; /* piece; threads beside the caller */
} Work;

/* Memory of a thread, for a and for columns of b; it grows. */
typedef struct { float *at; size_t bytes; } Room;
static _Thread_local Room rooms[2];
static pthread_key_t at_exit;

static void free_rooms(void *given) {
    for (Room *room = given; room < (Room *)given + 2; room++)
        free(room->at);
}

static float *memory(int which, int64_t numbers) {
    Room *room = &rooms[which];
    const size_t bytes = (size_t)parts(numbers, 16) * 64;
    if (bytes > room->bytes) {
        free(room->at);
        room->at = aligned_alloc(64, bytes);
        room->bytes = room->at ? bytes : 0;
        pthread_setspecific(at_exit, rooms);
    }
    return room->at;
}

/* A piece: its matrices, where its steps begin; its panels; its first column. */
typedef struct { const float *a, *b; float *c; int64_t matrix, first, last, column; } Piece;

static Piece piece_at(const Work *w, int64_t at) {
    const Product *t = &w->of;
    const int64_t matrix = at / (w->down * w->across), outer = matrix / t->inner, inner = matrix % t->inner;
    const int64_t first = at / w->across % w->down * w->group;
    return (Piece){
        .a = t->a + outer * t->a_outer + inner * t->a_inner + w->from * t->a_column,
        .b = t->b + outer * t->b_outer + inner * t->b_inner + w->from * t->b_row,
        .c = t->c + outer * t->c_outer + inner * t->c_inner,
        .matrix = matrix, .first = first, .last = least(w->panels, first + w->group),
        .column = at % w->across * w->columns,
    };
}

static void lay_out_rows(const Work *w, const Piece *piece, float *to) {
    const Product *t = &w->of;
    for (int64_t q = piece->first; q < piece->last; q++, to += W * w->deep) {
        const int64_t i = q * w->rows;
        lay_out(piece->a + i * t->a_row, t->a_row, t->a_column, least(w->rows, t->m - i), w->deep, to);
    }
}

static void compute(const Work *w, const Piece *piece, const float *a, float *b) {
    const Product *t = &w->of;
    const int64_t n = least(w->columns, t->n - piece->column);
    for (int64_t p = 0; p < w->deep; p += STEPS) {
        const int64_t steps = least(STEPS, w->deep - p);
        lay_out_columns(piece->b + p * t->b_row + piece->column * t->b_column, t->b_row, t->b_column, n, steps, b);
        for (int64_t x = 0; x < n; x += COLS)
            for (int64_t q = piece->first; q < piece->last; q++) {
                const int64_t i = q * w->rows;
                const Block block = {
                    .a = a + ((q - piece->first) * w->deep + p) * W, .b = b + x * steps,
                    .c = piece->c + i * t->c_row + piece->column + x, .row = t->c_row, .steps = steps,
                    .rows = least(w->rows, t->m - i), .columns = least(COLS, n - x), .begins = w->from + p == 0,
                };
                add_block(&block, w->rows);
            }
    }
}

static int64_t numbers_of_a(const Work *w) { return w->group * w->deep * W; }

/* Compute pieces until there are none; return how many. */
static int64_t take_part(Work *w) {
    float *a = memory(0, numbers_of_a(w)), *b = memory(1, WIDE * COLS * STEPS);
    Piece laid = {.matrix = -1};
    int64_t done = 0;
    for (int64_t at; a && b && (at = atomic_fetch_add(&w->next, 1)) < w->pieces; done++) {
        const Piece piece = piece_at(w, at);
        if (piece.matrix != laid.matrix || piece.first != laid.first)
            lay_out_rows(w, &piece, a);
        laid = piece;
        compute(w, &piece, a, b);
    }
    return done;
}

/* threads ---------------------------------------------------------------------------------------------------------- */
static void relax(void) { /* let the other thread of the core go on */
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Wait for threads that have pieces; one of them may need this processor. */
static void rest(int turns) {
    relax();
    if (turns % 64 == 0)
        sched_yield();
}

static struct {
    pthread_mutex_t turn; /* of the product that the threads work at */
    pthread_mutex_t lock; /* of `asleep` */
    pthread_cond_t called;
    int asleep, started;
    _Atomic int64_t inside, number; /* threads at work; of the last product */
    _Atomic int64_t few_until; /* when short products have all threads again: these were held up */
    _Atomic int processor; /* of the caller */
    _Atomic(Work *) work;
} team = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, 0, 0, 0, NULL};

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Leave the processor of the caller, if this thread is there: each would hold up the other. A thread that is woken may
   begin where it was called from, and stays there as long as other programs use the rest. */
static void leave(int processor) {
    cpu_set_t all, others;
    if (sched_getcpu() != processor || sched_getaffinity(0, sizeof all, &all) || CPU_COUNT(&all) < 2)
        return;
    others = all;
    CPU_CLR(processor, &others);
    sched_setaffinity(0, sizeof others, &others);
    sched_setaffinity(0, sizeof all, &all);
}

/* Wait for a product, awake at first, and without `sched_yield`: who gives his turn away again and again gets none for
   milliseconds where others want the processor (Linux 6.18). */
static void await_call(int64_t seen) {
    const int64_t until = now() + AWAKE;
    for (int turns = 1; atomic_load(&team.number) == seen; turns++) {
        relax();
        if (turns % 64)
            continue;
        leave(atomic_load(&team.processor));
        if (now() > until) {
            pthread_mutex_lock(&team.lock);
            team.asleep++;
            while (atomic_load(&team.number) == seen)
                pthread_cond_wait(&team.called, &team.lock);
            team.asleep--;
            pthread_mutex_unlock(&team.lock);
        }
    }
    leave(atomic_load(&team.processor));
}

static void *serve(void *unused) {
    (void)unused;
    for (int64_t number = 0;;) {
        await_call(number);
        number = atomic_load(&team.number);
        atomic_fetch_add(&team.inside, 1);
        Work *w = atomic_load(&team.work);
        if (w && atomic_fetch_add(&w->helpers, 1) < w->of.threads - 1)
            take_part(w);
        atomic_fetch_sub(&team.inside, 1);
    }
    return NULL;
}

static void begin_fork(void) { /* it has none of the threads, whatever they were at */
    pthread_mutex_init(&team.turn, NULL);
    pthread_mutex_init(&team.lock, NULL);
    pthread_cond_init(&team.called, NULL);
    team.asleep = team.started = 0;
    atomic_store(&team.inside, 0);
    atomic_store(&team.work, NULL);
}

static void begin(void) {
    pthread_key_create(&at_exit, free_rooms);
    pthread_atfork(NULL, NULL, begin_fork);
}

static void begin_threads(int64_t count) {
    sigset_t all, before; /* signals are for the threads of Python */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; team.started < count; team.started++) {
        pthread_t made;
        if (pthread_create(&made, NULL, serve, NULL))
            break;
        pthread_detach(made);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void share(Work *w) {
    if (team.started < w->of.threads - 1)
        begin_threads(w->of.threads - 1);
    atomic_store(&team.processor, sched_getcpu());
    atomic_store(&team.work, w);
    atomic_fetch_add(&team.number, 1);
    pthread_mutex_lock(&team.lock);
    for (int64_t called = least(team.asleep, w->of.threads - 1); called > 0; called--)
        pthread_cond_signal(&team.called);
    pthread_mutex_unlock(&team.lock);
}

/* Note how long the caller waited for the last pieces of others: longer than two pieces take only where other programs
   want the processors, and a thread has lost its own in the midst of one. */
static void note_wait(int64_t began, int64_t waited_from, int64_t pieces) {
    const int64_t ended = now(), waited = ended - waited_from;
    if (waited > HELD_UP + 2 * (waited_from - began) / (pieces ? pieces : 1))
        atomic_store(&team.few_until, ended + PAUSE * waited);
}

static void compute_alone_or_shared(Work *w) {
    const Product *t = &w->of;
    const int64_t began = now();
    const int is_short = t->outer * t->inner * t->m * t->n * w->deep < SHORT;
    if (is_short && began < atomic_load(&team.few_until))
        w->of.threads = (t->threads + 1) / 2;
    if (t->threads == 1 || w->pieces == 1 || pthread_mutex_trylock(&team.turn)) {
        take_part(w);
        return;
    }
    share(w);
    const int64_t pieces = take_part(w), waited_from = now();
    atomic_store(&team.work, NULL); /* who has not begun will not; the others have pieces, or look for one */
    for (int turns = 1; atomic_load(&team.inside); turns++)
        rest(turns);
    note_wait(began, waited_from, pieces);
    pthread_mutex_unlock(&team.turn);
}

/* Compute a product; return 0 where there is no memory, before anything is written. */
int gdlab_product(const Product *given) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin);
    Product t = *given;
    t.threads = least(t.threads, MOST_THREADS);
    const int64_t rows = parts(t.m, parts(t.m, ROWS)), panels = parts(t.m, rows), blocks = parts(t.n, COLS);
    for (int64_t from = 0; from < t.k; from += DEEP) {
        Work w = {.of = t, .from = from, .deep = least(DEEP, t.k - from), .rows = rows, .panels = panels};
        w.group = least(GROUP, LAID / w.deep);
        w.down = parts(panels, w.group);
        const int64_t matrices = t.outer * t.inner, wide = matrices * w.down * blocks / (PIECES * t.threads);
        w.columns = COLS * (wide < 1 ? 1 : least(WIDE, wide));
        w.across = parts(t.n, w.columns);
        w.pieces = matrices * w.down * w.across;
        if (!memory(0, numbers_of_a(&w)) || !memory(1, WIDE * COLS * STEPS))
            return 0;
        compute_alone_or_shared(&w);
    }
    return 1;
}
