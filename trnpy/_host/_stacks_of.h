/* The kernels of _stacks.c, included once for each number type with REAL, T, NAME(x) and COMPLEX (0 or 1).

   Matrices are in C order, which LAPACK reads as the transpose. */

#if COMPLEX
#define MADD(z, x, y) ((z).re += (x).re * (y).re - (x).im * (y).im, (z).im += (x).re * (y).im + (x).im * (y).re)
#define MSUB(z, x, y) ((z).re -= (x).re * (y).re - (x).im * (y).im, (z).im -= (x).re * (y).im + (x).im * (y).re)
#define SIZE(x) (fabs((x).re) + fabs((x).im))
#define SQUARE(x) ((x).re * (x).re + (x).im * (x).im)
#define SAME(x, y) ((x).re == (y).re && (x).im == (y).im)
#define MIRRORED(x, y) ((x).re == (y).re && (x).im == -(y).im)
#define IS_ZERO(x) ((x).re == 0 && (x).im == 0)
static const T NAME(zero) = {0, 0}, NAME(one) = {1, 0};
static inline T NAME(times)(T x, T y)
{
    T z = {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
    return z;
}
static inline T NAME(scaled)(T x, REAL s)
{
    T z = {x.re * s, x.im * s};
    return z;
}
static inline T NAME(conjugate)(T x)
{
    x.im = -x.im;
    return x;
}
/* 1 / x without intermediate overflow: Smith, Commun. ACM 5 (1962), algorithm 116. */
static inline T NAME(reciprocal)(T x)
{
    T z;
    if (fabs(x.re) >= fabs(x.im)) {
        REAL r = x.im / x.re, d = x.re + x.im * r;
        z.re = 1 / d, z.im = -r / d;
    }
    else {
        REAL r = x.re / x.im, d = x.re * r + x.im;
        z.re = r / d, z.im = -1 / d;
    }
    return z;
}
#else
#define MADD(z, x, y) ((z) += (x) * (y))
#define MSUB(z, x, y) ((z) -= (x) * (y))
#define SIZE(x) fabs(x)
#define SQUARE(x) ((x) * (x))
#define SAME(x, y) ((x) == (y))
#define MIRRORED(x, y) ((x) == (y))
#define IS_ZERO(x) ((x) == 0)
static const T NAME(zero) = 0, NAME(one) = 1;
static inline T NAME(times)(T x, T y) { return x * y; }
static inline T NAME(scaled)(T x, REAL s) { return x * s; }
static inline T NAME(conjugate)(T x) { return x; }
static inline T NAME(reciprocal)(T x) { return 1 / x; }
#endif

/* Copy one matrix of a stack to ``a`` (m, n); returns whether all of its elements are finite. */
static inline int NAME(load)(const Stack *s, npy_intp i, T *restrict a)
{
    const char *from = s->start + i * s->next;
    for (int r = 0; r < s->m; r++, from += s->row) {
        if (s->column == sizeof(T))
            memcpy(a + (npy_intp)r * s->n, from, s->n * sizeof(T));
        else
            for (int c = 0; c < s->n; c++)
                memcpy(a + (npy_intp)r * s->n + c, from + c * s->column, sizeof(T));
    }
    return all_finite((const REAL *)a, (npy_intp)s->m * s->n * (1 + COMPLEX));
}

/* P L U = A by Gaussian elimination with row exchanges, in place; swaps[k] is the row that is exchanged with row k.
   Returns the number of zero pivots. Golub & Van Loan, 4th ed., sec. 3.4.1. */
static inline int NAME(eliminate)(T *restrict a, int m, int n, int *restrict swaps)
{
    int k = m < n ? m : n, zeros = 0;
    for (int j = 0; j < k; j++) {
        T *top = a + j * n;
        int at = j;
        REAL largest = SIZE(top[j]);
        for (int i = j + 1; i < m; i++) {
            REAL size = SIZE(a[i * n + j]);
            if (size > largest)
                largest = size, at = i;
        }
        swaps[j] = at;
        if (largest == 0) {
            zeros++;
            continue;
        }
        if (at != j)
            for (int c = 0; c < n; c++) {
                T kept = top[c];
                top[c] = a[at * n + c], a[at * n + c] = kept;
            }
        /* Reciprocals of the smallest numbers overflow. */
        int invertible = largest >= SAFE;
        T inverse = invertible ? NAME(reciprocal)(top[j]) : NAME(one);
        for (int i = j + 1; i < m; i++) {
            T *row = a + i * n, l;
#if COMPLEX
            l = NAME(times)(row[j], invertible ? inverse : NAME(reciprocal)(top[j]));
#else
            l = invertible ? row[j] * inverse : row[j] / top[j];
#endif
            row[j] = l;
            for (int c = j + 1; c < n; c++)
                MSUB(row[c], l, top[c]);
        }
    }
    return zeros;
}

/* ``eliminate`` of square matrices, with loops of known lengths for the smallest. */
VERSIONS static int NAME(factor)(T *restrict a, int m, int n, int *restrict swaps)
{
    if (m != n)
        return NAME(eliminate)(a, m, n, swaps);
    switch (n) {
    case 2: return NAME(eliminate)(a, 2, 2, swaps);
    case 3: return NAME(eliminate)(a, 3, 3, swaps);
    case 4: return NAME(eliminate)(a, 4, 4, swaps);
    default: return NAME(eliminate)(a, n, n, swaps);
    }
}

static inline void NAME(substituted)(const T *restrict lu, int n, const int *restrict swaps, T *restrict b, int k)
{
    for (int i = 0; i < n; i++)
        if (swaps[i] != i)
            for (int c = 0; c < k; c++) {
                T kept = b[i * k + c];
                b[i * k + c] = b[swaps[i] * k + c], b[swaps[i] * k + c] = kept;
            }
    for (int i = 1; i < n; i++)
        for (int j = 0; j < i; j++) {
            T l = lu[i * n + j];
            for (int c = 0; c < k; c++)
                MSUB(b[i * k + c], l, b[j * k + c]);
        }
    for (int i = n - 1; i >= 0; i--) {
        for (int j = i + 1; j < n; j++) {
            T u = lu[i * n + j];
            for (int c = 0; c < k; c++)
                MSUB(b[i * k + c], u, b[j * k + c]);
        }
        T inverse = NAME(reciprocal)(lu[i * n + i]);
        for (int c = 0; c < k; c++)
            b[i * k + c] = NAME(times)(b[i * k + c], inverse);
    }
}

/* b (n, k) := the solution of A x = b, for the factors of A. */
VERSIONS static void NAME(substitute)(const T *restrict lu, int n, const int *restrict swaps, T *restrict b, int k)
{
    if (n == 4)
        k == 2 ? NAME(substituted)(lu, 4, swaps, b, 2) : NAME(substituted)(lu, 4, swaps, b, k);
    else
        NAME(substituted)(lu, n, swaps, b, k);
}

static inline double NAME(norm)(const T *a, npy_intp count)
{
    double sums[4] = {0, 0, 0, 0};
    const REAL *x = (const REAL *)a;
    npy_intp i = 0, all = count * (1 + COMPLEX);
    for (; i + 4 <= all; i += 4)
        for (int j = 0; j < 4; j++)
            sums[j] += (double)x[i + j] * x[i + j];
    for (; i < all; i++)
        sums[0] += (double)x[i] * x[i];
    return sqrt(sums[0] + sums[1] + (sums[2] + sums[3]));
}

/* Whether SciPy would treat ``a`` (n, n) as triangular, banded or, if that matters, Hermitian or symmetric. */
static inline int NAME(open)(const T *a, int n) { return IS_ZERO(a[n - 1]) || IS_ZERO(a[(n - 1) * n]); }

static inline int NAME(hermitian)(const T *a, int n)
{
    if (!MIRRORED(a[n - 1], a[(n - 1) * n]))
        return 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++)
            if (!MIRRORED(a[i * n + j], a[j * n + i]))
                return 0;
    return 1;
}

/* The factors of ``a`` in place, from ``factor`` if ``own``, or from LAPACK, which factors the transpose. */
static int NAME(factors)(T *a, int n, int *swaps, int own)
{
    if (own)
        return NAME(factor)(a, n, n, swaps);
    int info = 0;
    NAME(getrf)(&n, &n, a, &n, swaps, &info);
    return info;
}

static int NAME(decompose)(T *a, int n, int *swaps) { return NAME(factors)(a, n, swaps, n <= OWN); }

static int NAME(det)(const Stack *s, char *out)
{
    int n = s->n, *swaps = s->integers, status = 0;
    T *a = s->space, *result = (T *)out;
    for (npy_intp i = 0; i < s->count; i++) {
        if (!NAME(load)(s, i, a))
            return NOT_FINITE;
        T product = NAME(one);
        int zeros = NAME(decompose)(a, n, swaps), inside = 1;
        for (int j = 0; j < n && !zeros; j++) {
            if (swaps[j] != (n <= OWN ? j : j + 1))
                product = NAME(scaled)(product, -1);
            product = NAME(times)(product, a[j * n + j]);
            inside &= SIZE(product) >= SAFE && SIZE(product) <= 1 / SAFE;
        }
        result[i] = zeros ? NAME(zero) : product;
        if (!inside)
            return NOT_FINITE; /* if a product leaves the range, the result depends on the order of factors */
    }
    return status;
}

/* x (n, k) of each A x = b, and whether SciPy must compute it, because A is structured or ill-conditioned. */
static int NAME(solve)(const Stack *s, const Stack *right, char *out, npy_bool *doubtful)
{
    int n = s->n, k = right->n, *swaps = s->integers, info = 0, columns = k + 1;
    T *a = s->space, *b = a + (npy_intp)n * n, *x = b + (npy_intp)n * k;
    const T *probe = (const T *)s->probe;
    double size_of_probe = NAME(norm)(probe, n);
    for (npy_intp i = 0; i < s->count; i++) {
        if (!NAME(load)(s, i, a) || !NAME(load)(right, i, b))
            return NOT_FINITE;
        T *result = (T *)out + i * n * k;
        double size = NAME(norm)(a, (npy_intp)n * n), reply;
        int structured = NAME(open)(a, n), zeros = NAME(decompose)(a, n, swaps);
        if (zeros || structured) {
            doubtful[i] = 1;
            continue;
        }
        if (n <= OWN) {
            for (int r = 0; r < n; r++) {
                memcpy(x + r * columns, b + r * k, k * sizeof(T));
                x[r * columns + k] = probe[r];
            }
            NAME(substitute)(a, n, swaps, x, columns);
            reply = 0;
            for (int r = 0; r < n; r++) {
                memcpy(result + r * k, x + r * columns, k * sizeof(T));
                reply += SQUARE(x[r * columns + k]);
            }
            reply = sqrt(reply);
        }
        else {
            for (int c = 0; c < k; c++)
                for (int r = 0; r < n; r++)
                    x[c * n + r] = b[r * k + c];
            memcpy(x + k * n, probe, n * sizeof(T));
            NAME(getrs)("T", &n, &columns, a, &n, swaps, x, &n, &info);
            for (int r = 0; r < n; r++)
                for (int c = 0; c < k; c++)
                    result[r * k + c] = x[c * n + r];
            reply = NAME(norm)(x + k * n, n);
        }
        doubtful[i] = !(size * reply < WELL * size_of_probe) || !all_finite((const REAL *)result, n * k * (1 + COMPLEX));
    }
    return 0;
}

/* The inverses, exactly Hermitian if their matrices are, and whether SciPy must compute them, as in ``solve``. */
static int NAME(inv)(const Stack *s, char *out, npy_bool *doubtful)
{
    int n = s->n, *swaps = s->integers, info = 0, room = n * BLOCK, own = n <= OWN_INVERSE;
    npy_intp all = (npy_intp)n * n;
    T *a = s->space, *work = a + all;
    for (npy_intp i = 0; i < s->count; i++) {
        if (!NAME(load)(s, i, a))
            return NOT_FINITE;
        T *x = (T *)out + i * all;
        double size = NAME(norm)(a, all);
        int structured = NAME(open)(a, n), mirrored = NAME(hermitian)(a, n), zeros;
        if (!own)
            memcpy(x, a, all * sizeof(T));
        zeros = structured || NAME(factors)(own ? a : x, n, swaps, own);
        if (zeros) {
            doubtful[i] = 1;
            continue;
        }
        if (own) {
            for (npy_intp j = 0; j < all; j++)
                x[j] = NAME(zero);
            for (int j = 0; j < n; j++)
                x[j * n + j] = NAME(one);
            NAME(substitute)(a, n, swaps, x, n);
        }
        else
            NAME(getri)(&n, x, &n, swaps, work, &room, &info);
        if (mirrored)
            for (int r = 0; r < n; r++)
                for (int c = 0; c <= r; c++) {
                    T upper = NAME(conjugate)(x[c * n + r]), mean = x[r * n + c];
                    MADD(mean, upper, NAME(one));
                    mean = NAME(scaled)(mean, (REAL)0.5);
                    x[r * n + c] = mean, x[c * n + r] = NAME(conjugate)(mean);
                }
        doubtful[i] = info || !(size * NAME(norm)(x, all) < WELL / n);
    }
    return 0;
}

/* U or L with A = U^H U or L L^H, from one triangle. Golub & Van Loan, 4th ed., sec. 4.2.5. */
VERSIONS static int NAME(root)(T *restrict a, int n)
{
    for (int j = 0; j < n; j++) {
        T *top = a + j * n;
        REAL pivot = *(REAL *)(top + j);
        if (!(pivot > 0))
            return j + 1;
        pivot = sqrt(pivot);
        top[j] = NAME(scaled)(NAME(one), pivot);
        for (int c = j + 1; c < n; c++)
            top[c] = NAME(scaled)(top[c], 1 / pivot);
        for (int i = j + 1; i < n; i++) {
            T factor = NAME(conjugate)(top[i]), *row = a + i * n;
            for (int c = i; c < n; c++)
                MSUB(row[c], factor, top[c]);
        }
    }
    return 0;
}

/* U or L, in Fortran order like SciPy's. */
static int NAME(cholesky)(const Stack *s, char *out, int lower)
{
    int n = s->n, info = 0;
    npy_intp all = (npy_intp)n * n;
    T *a = s->space, *turned = a + all;
    for (npy_intp i = 0; i < s->count; i++) {
        T *to = (T *)out + i * all, *u = a;
        if (!NAME(load)(s, i, a))
            return NOT_FINITE;
        if (lower) {
            u = turned;
            for (int r = 0; r < n; r++)
                for (int c = r; c < n; c++)
                    u[r * n + c] = NAME(conjugate)(a[c * n + r]);
        }
        if (n > OWN)
            NAME(potrf)("L", &n, u, &n, &info);
        else
            info = NAME(root)(u, n);
        if (info)
            return NOT_DEFINITE;
        for (int r = 0; r < n; r++)
            for (int c = r; c < n; c++) {
                T value = u[r * n + c];
                to[c * n + r] = NAME(zero);
                to[r * n + c] = NAME(zero);
                to[lower ? r * n + c : c * n + r] = lower ? NAME(conjugate)(value) : value;
            }
        if (!all_finite((const REAL *)to, all * (1 + COMPLEX)))
            return NOT_FINITE;
    }
    return 0;
}

/* A = P L U. ``p`` is filled with permutations (m,) or, if ``matrices``, matrices of REAL; if NULL, L is permuted. */
static int NAME(lu)(const Stack *s, char *p, int matrices, char *l_out, char *u_out)
{
    int m = s->m, n = s->n, k = m < n ? m : n, *swaps = s->integers, *rows = swaps + k, info = 0;
    T *a = s->space, *turned = a + (npy_intp)m * n;
    for (npy_intp i = 0; i < s->count; i++) {
        T *l = (T *)l_out + i * m * k, *u = (T *)u_out + i * k * n;
        int down = n, across = 1;
        if (!NAME(load)(s, i, a))
            return NOT_FINITE;
        if (k <= OWN)
            NAME(factor)(a, m, n, swaps);
        else {
            for (int r = 0; r < m; r++)
                for (int c = 0; c < n; c++)
                    turned[c * m + r] = a[r * n + c];
            NAME(getrf)(&m, &n, turned, &m, swaps, &info);
            down = 1, across = m;
            for (int j = 0; j < k; j++)
                swaps[j]--;
        }
        const T *f = k <= OWN ? a : turned;
        for (int r = 0; r < m; r++)
            rows[r] = r;
        for (int j = 0; j < k; j++) {
            int kept = rows[j];
            rows[j] = rows[swaps[j]], rows[swaps[j]] = kept;
        }
        for (int r = 0; r < m; r++) { /* row r of the factors is row rows[r] of A */
            T *to = l + (p == NULL ? rows[r] : r) * k;
            for (int c = 0; c < k; c++)
                to[c] = c < r ? f[r * down + c * across] : c == r ? NAME(one) : NAME(zero);
        }
        for (int r = 0; r < k; r++)
            for (int c = 0; c < n; c++)
                u[r * n + c] = c < r ? NAME(zero) : f[r * down + c * across];
        if (!all_finite((const REAL *)u, (npy_intp)k * n * (1 + COMPLEX)) ||
            !all_finite((const REAL *)l, (npy_intp)m * k * (1 + COMPLEX)))
            return NOT_FINITE;
        if (p == NULL)
            continue;
        if (matrices) {
            REAL *to = (REAL *)p + i * m * m;
            memset(to, 0, (size_t)m * m * sizeof(REAL));
            for (int r = 0; r < m; r++)
                to[rows[r] * m + r] = 1;
        }
        else
            for (int r = 0; r < m; r++)
                ((npy_int32 *)p)[i * m + rows[r]] = r;
    }
    return 0;
}

#include "_stacks_expm.h"

#undef MADD
#undef MSUB
#undef SIZE
#undef SQUARE
#undef SAME
#undef MIRRORED
#undef IS_ZERO
#undef REAL
#undef T
#undef NAME
#undef COMPLEX
