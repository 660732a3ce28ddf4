/* e^A of small matrices, included by _stacks_of.h once for each number type. */

/* c := a b, all (n, n). */
static inline void NAME(product)(const T *restrict a, const T *restrict b, T *restrict c, int n)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++)
            c[i * n + j] = NAME(zero);
        for (int l = 0; l < n; l++) {
            T factor = a[i * n + l];
            for (int j = 0; j < n; j++)
                MADD(c[i * n + j], factor, b[l * n + j]);
        }
    }
}

static inline double NAME(column_sums)(const T *a, int n)
{
    double largest = 0;
    for (int c = 0; c < n; c++) {
        double sum = 0;
        for (int r = 0; r < n; r++)
            sum += sqrt((double)SQUARE(a[r * n + c]));
        largest = sum > largest ? sum : largest;
    }
    return largest;
}

/* e^A in ``x``, from Taylor's polynomial of degree 17 as in trnpy.linalg._expm; needs space for three more matrices. */
static inline int NAME(exponentiated)(const T *restrict a, int n, T *restrict x, T *space)
{
    T *b = space, *b2 = b + n * n, *b3 = b2 + n * n, *y = b3 + n * n;
    double size = NAME(column_sums)(a, n);
    if (!(size < LARGEST_NORM))
        return NOT_FINITE;
    int first = size > REACH ? (int)ceil(log2(size / REACH)) : 0, further = -first;
    REAL scale = (REAL)ldexp(1, -first);
    for (int i = 0; i < n * n; i++)
        b[i] = NAME(scaled)(a[i], scale);
    NAME(product)(b, b, b2, n);
    NAME(product)(b2, b, b3, n);
    double norm = fmax(sqrt(NAME(column_sums)(b2, n)), cbrt(NAME(column_sums)(b3, n)));
    if (norm > REACH * ldexp(1, -first))
        further = (int)ceil(log2(norm / REACH));
    if (further < -first)
        further = -first;
    REAL s = (REAL)ldexp(1, -further);
    for (int i = 0; i < n * n; i++) {
        b[i] = NAME(scaled)(b[i], s), b2[i] = NAME(scaled)(b2[i], s * s), b3[i] = NAME(scaled)(b3[i], s * s * s);
        x[i] = NAME(zero);
    }
    for (int k = DEGREE - 2; k >= 0; k -= 3) {
        if (k == DEGREE - 2)
            for (int i = 0; i < n * n; i++)
                y[i] = NAME(zero);
        else
            NAME(product)(x, b3, y, n);
        for (int i = 0; i < n * n; i++) {
            T sum = NAME(scaled)(b[i], (REAL)INVERSE_FACTORIALS[k + 1]);
            MADD(sum, b2[i], NAME(scaled)(NAME(one), (REAL)INVERSE_FACTORIALS[k + 2]));
            MADD(y[i], sum, NAME(one));
            x[i] = y[i];
        }
        for (int i = 0; i < n; i++)
            MADD(x[i * n + i], NAME(one), NAME(scaled)(NAME(one), (REAL)INVERSE_FACTORIALS[k]));
    }
    for (int i = first + further; i > 0; i--) {
        NAME(product)(x, x, y, n);
        memcpy(x, y, sizeof(T) * n * n);
    }
    return 0;
}

VERSIONS static int NAME(exponential)(const T *restrict a, int n, T *restrict x, T *restrict space)
{
    switch (n) {
    case 2: return NAME(exponentiated)(a, 2, x, space);
    case 3: return NAME(exponentiated)(a, 3, x, space);
    case 4: return NAME(exponentiated)(a, 4, x, space);
    default: return NAME(exponentiated)(a, n, x, space);
    }
}

static int NAME(expm)(const Stack *s, char *out, npy_bool *doubtful)
{
    int n = s->n;
    npy_intp all = (npy_intp)n * n;
    T *a = s->space;
    for (npy_intp i = 0; i < s->count; i++) {
        T *x = (T *)out + i * all;
        /* SciPy computes two diagonals of the exponentials of triangular matrices by their own formula. */
        doubtful[i] = !NAME(load)(s, i, a) || NAME(open)(a, n) || NAME(exponential)(a, n, x, a + all) ||
                      !all_finite((const REAL *)x, all * (1 + COMPLEX));
    }
    return 0;
}
