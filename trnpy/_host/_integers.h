/* Products of integer matrices modulo 2^64, included by _stacks.c: NumPy's loop has no vectors and no blocks. */

enum { ROWS = 4, COLUMNS = 8, TERMS = 512 }; /* of a tile; terms of a panel that stays in the first-level cache */

#if defined(__GNUC__) /* of vectors for which GCC multiplies 64 bits by AVX2's products of 32 */
typedef uint64_t Vector __attribute__((vector_size(COLUMNS / 2 * sizeof(uint64_t))));
typedef struct {
    Vector low, high;
} Line;
#define ADD(sum, scalar, line) ((sum).low += (scalar) * (line).low, (sum).high += (scalar) * (line).high)
#else
typedef struct {
    uint64_t of[COLUMNS];
} Line;
#define ADD(sum, scalar, line)               \
    for (int c = 0; c < COLUMNS; c++)        \
        (sum).of[c] += (scalar) * (line).of[c]
#endif

typedef void Product(const uint64_t *, const uint64_t *, uint64_t *, npy_intp, npy_intp, npy_intp, Line *);

/* c (m, n) := a (m, k) b (k, n), all in C order; ``panel`` has room for TERMS lines: of as many columns of b as fit,
   because c is written faster along its rows. A macro, because GCC translates vectors for the processor of the function
   in which they are written, before it makes ``target_clones``. */
#define PRODUCT(name, attribute)                                                                                     \
    attribute static void name(const uint64_t *a, const uint64_t *b, uint64_t *c, npy_intp m, npy_intp k, npy_intp n,\
                               Line *panel)                                                                          \
    {                                                                                                                \
        for (npy_intp from = 0; from < k; from += TERMS) {                                                           \
            npy_intp terms = k - from < TERMS ? k - from : TERMS, wide = TERMS / terms * COLUMNS;                    \
            for (npy_intp first = 0; first < n; first += wide) {                                                     \
                npy_intp end = n - first < wide ? n : first + wide;                                                  \
                for (npy_intp column = first; column < end; column += COLUMNS) {                                     \
                    size_t bytes = (n - column < COLUMNS ? n - column : COLUMNS) * sizeof(uint64_t);                 \
                    Line *line = panel + (column - first) / COLUMNS * terms;                                         \
                    memset(line, 0, terms * sizeof(Line));                                                           \
                    for (npy_intp l = 0; l < terms; l++)                                                             \
                        memcpy(line + l, b + (from + l) * n + column, bytes);                                        \
                }                                                                                                    \
                for (npy_intp row = 0; row < m; row += ROWS) {                                                       \
                    const uint64_t *lines[ROWS];                                                                     \
                    for (int r = 0; r < ROWS; r++)                                                                   \
                        lines[r] = a + (row + r < m ? row + r : m - 1) * k + from;                                   \
                    for (npy_intp column = first; column < end; column += COLUMNS) {                                 \
                        const Line *line = panel + (column - first) / COLUMNS * terms;                               \
                        Line sums[ROWS];                                                                             \
                        memset(sums, 0, sizeof(sums));                                                               \
                        for (npy_intp l = 0; l < terms; l++) {                                                       \
                            ADD(sums[0], lines[0][l], line[l]);                                                      \
                            ADD(sums[1], lines[1][l], line[l]);                                                      \
                            ADD(sums[2], lines[2][l], line[l]);                                                      \
                            ADD(sums[3], lines[3][l], line[l]);                                                      \
                        }                                                                                            \
                        for (int r = 0; r < ROWS && row + r < m; r++) {                                              \
                            uint64_t *to = c + (row + r) * n + column, found[COLUMNS];                               \
                            memcpy(found, &sums[r], sizeof(found));                                                  \
                            for (npy_intp j = 0; j < COLUMNS && column + j < n; j++)                                 \
                                to[j] = from ? to[j] + found[j] : found[j];                                          \
                        }                                                                                            \
                    }                                                                                                \
                }                                                                                                    \
            }                                                                                                        \
        }                                                                                                            \
    }

PRODUCT(product_anywhere, )
#if defined(__GNUC__) && defined(__x86_64__)
PRODUCT(product_avx2, __attribute__((target("avx2"))))
PRODUCT(product_avx512, __attribute__((target("avx512f,avx512dq,avx512vl"))))
#endif

static Product *
product_here(void)
{
#if defined(__GNUC__) && defined(__x86_64__)
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return product_avx512;
    if (__builtin_cpu_supports("avx2"))
        return product_avx2;
#endif
    return product_anywhere;
}

/* multiply(a, b, out): out := a b modulo 2^64, for matrices or for stacks of as many matrices. */
static PyObject *
multiply(PyObject *self, PyObject *args)
{
    PyArrayObject *given[3];
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyArray_Type, given, &PyArray_Type, given + 1, &PyArray_Type, given + 2))
        return NULL;
    int d = PyArray_NDIM(given[0]), right = d == 2 || d == 3;
    for (int i = 0; i < 3; i++)
        right = right && PyArray_NDIM(given[i]) == d && PyArray_TYPE(given[i]) == NPY_UINT64 && PyArray_ISCARRAY_RO(given[i]) &&
                (d == 2 || PyArray_DIM(given[i], 0) == PyArray_DIM(given[0], 0));
    if (!right || !PyArray_ISWRITEABLE(given[2]) || PyArray_DIM(given[0], d - 1) != PyArray_DIM(given[1], d - 2) ||
        PyArray_DIM(given[2], d - 2) != PyArray_DIM(given[0], d - 2) || PyArray_DIM(given[0], d - 1) == 0 ||
        PyArray_DIM(given[2], d - 1) != PyArray_DIM(given[1], d - 1)) {
        PyErr_SetString(PyExc_ValueError, "expected uint64 matrices (m, k), (k, n) and (m, n) in C order, and k > 0");
        return NULL;
    }
    npy_intp m = PyArray_DIM(given[0], d - 2), k = PyArray_DIM(given[1], d - 2), n = PyArray_DIM(given[1], d - 1);
    npy_intp count = d == 3 ? PyArray_DIM(given[0], 0) : 1;
    const uint64_t *a = PyArray_DATA(given[0]), *b = PyArray_DATA(given[1]);
    uint64_t *c = PyArray_DATA(given[2]);
    Product *product = product_here();
    char *memory = malloc((TERMS + 1) * sizeof(Line));
    if (memory == NULL)
        return PyErr_NoMemory();
    Line *panel = (Line *)(memory + sizeof(Line) - (uintptr_t)memory % sizeof(Line));
    Py_BEGIN_ALLOW_THREADS
    for (npy_intp i = 0; i < count; i++)
        product(a + i * m * k, b + i * k * n, c + i * m * n, m, k, n, panel);
    Py_END_ALLOW_THREADS
    free(memory);
    Py_RETURN_NONE;
}
