/* Loops over stacks of small matrices, for trnpy/_host/stacks.py; no Python code runs between two matrices.

   Each function reads a stack (count, m, n) of float64 or complex128 with any strides, and fills results in C order
   that the caller has allocated. It copies one matrix at a time. Matrices of up to OWN rows are computed here, larger
   ones in SciPy's LAPACK through scipy.linalg.cython_lapack. A function returns 0, or the reason why SciPy must compute
   the whole stack. */

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <Python.h>
#include <float.h>
#include <math.h>
#include <numpy/arrayobject.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_FINITE = 1, NOT_DEFINITE = 2, NOT_CONVERGED = 3 };
enum { OWN = 20 };   /* rows up to which the loops here are faster than LAPACK's calls (AMD EPYC, both kernels, 2026-11) */
enum { OWN_INVERSE = 14 }; /* the same for inverses */
enum { BLOCK = 32 }; /* columns of getri's workspace */
enum { DEGREE = 17 };

#define REACH 0.93        /* as trnpy.linalg._expm.POLYNOMIALS */
#define LARGEST_NORM 1e30 /* of matrices whose third powers cannot overflow */
#define WELL 1e8          /* as trnpy._host.stacks.WELL */
#define SAFE (4 * DBL_MIN)

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define VERSIONS __attribute__((target_clones("default", "arch=haswell")))
#else
#define VERSIONS
#endif

typedef struct {
    const char *start;
    npy_intp count, next, row, column; /* matrices, and bytes from one matrix, row and column to the next */
    int m, n;
    void *space;
    int *integers;
    const void *probe;
} Stack;

typedef struct {
    double re, im;
} Complex;

static double INVERSE_FACTORIALS[DEGREE + 1];

/* If the sum of all x - x is finite, all x are finite. Four independent sums avoid waiting for each addition. */
static inline int
all_finite(const double *x, npy_intp count)
{
    double sums[4] = {0, 0, 0, 0};
    npy_intp i = 0;
    for (; i + 4 <= count; i += 4)
        for (int j = 0; j < 4; j++)
            sums[j] += x[i + j] - x[i + j];
    for (; i < count; i++)
        sums[0] += x[i] - x[i];
    return sums[0] + sums[1] + (sums[2] + sums[3]) == 0;
}

typedef void (*Getrf)(const int *, const int *, void *, const int *, int *, int *);
typedef void (*Getrs)(const char *, const int *, const int *, const void *, const int *, const int *, void *, const int *, int *);
typedef void (*Getri)(const int *, void *, const int *, const int *, void *, const int *, int *);
typedef void (*Potrf)(const char *, const int *, void *, const int *, int *);
static Getrf dgetrf, zgetrf;
static Getrs dgetrs, zgetrs;
static Getri dgetri, zgetri;
static Potrf dpotrf, zpotrf;
static void (*dgeev)(const char *, const char *, const int *, double *, const int *, double *, double *, double *, const int *,
                     double *, const int *, double *, const int *, int *);
static void (*zgeev)(const char *, const char *, const int *, Complex *, const int *, Complex *, Complex *, const int *,
                     Complex *, const int *, Complex *, const int *, double *, int *);

#define REAL double
#define T double
#define NAME(x) d##x
#define COMPLEX 0
#include "_stacks_of.h"

#define REAL double
#define T Complex
#define NAME(x) z##x
#define COMPLEX 1
#include "_stacks_of.h"

/* LAPACK's functions, from their addresses in the mapping ``capsules``. */
static PyObject *
use(PyObject *self, PyObject *capsules)
{
    struct {
        const char *name;
        void **to;
    } wanted[] = {{"dgetrf", (void **)&dgetrf}, {"zgetrf", (void **)&zgetrf}, {"dgetrs", (void **)&dgetrs},
                  {"zgetrs", (void **)&zgetrs}, {"dgetri", (void **)&dgetri}, {"zgetri", (void **)&zgetri},
                  {"dpotrf", (void **)&dpotrf}, {"zpotrf", (void **)&zpotrf},
                  {"dgeev", (void **)&dgeev},   {"zgeev", (void **)&zgeev}};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        PyObject *capsule = PyMapping_GetItemString(capsules, wanted[i].name);
        if (capsule == NULL)
            return NULL;
        *wanted[i].to = PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
        Py_DECREF(capsule);
        if (*wanted[i].to == NULL)
            return NULL;
    }
    Py_RETURN_NONE;
}

static int
described(PyArrayObject *a, Stack *s)
{
    if (PyArray_NDIM(a) != 3 || !PyArray_ISNOTSWAPPED(a) || PyArray_DIM(a, 1) > 1 << 14 || PyArray_DIM(a, 2) > 1 << 14 ||
        (PyArray_TYPE(a) != NPY_DOUBLE && PyArray_TYPE(a) != NPY_CDOUBLE)) {
        PyErr_SetString(PyExc_ValueError, "expected a stack (count, m, n) of float64 or complex128 matrices");
        return -1;
    }
    s->start = PyArray_BYTES(a);
    s->count = PyArray_DIM(a, 0), s->m = (int)PyArray_DIM(a, 1), s->n = (int)PyArray_DIM(a, 2);
    s->next = PyArray_STRIDE(a, 0), s->row = PyArray_STRIDE(a, 1), s->column = PyArray_STRIDE(a, 2);
    return 0;
}

/* Whether ``a`` is in C order and has ``elements`` elements of ``type``. */
static int
fits(PyArrayObject *a, int type, npy_intp elements)
{
    if (PyArray_TYPE(a) == type && PyArray_IS_C_CONTIGUOUS(a) && PyArray_ISWRITEABLE(a) && PyArray_SIZE(a) == elements)
        return 1;
    PyErr_SetString(PyExc_ValueError, "a result does not have the dtype, order or size that is filled");
    return 0;
}

/* Memory for ``numbers`` of the stack's type and for its integers; NULL after MemoryError. */
static void *
room(Stack *s, npy_intp numbers)
{
    npy_intp integers = 2 * (npy_intp)(s->m + s->n);
    char *memory = malloc(numbers * sizeof(Complex) + integers * sizeof(int));
    if (memory == NULL)
        PyErr_NoMemory();
    s->space = memory, s->integers = (int *)(memory + numbers * sizeof(Complex));
    return memory;
}

/* Random numbers of magnitude 1/2 to 3/2 and random sign; hardly any vector is orthogonal to them by chance. */
static void
make_probe(double *probe, int n)
{
    uint64_t state = 20261127;
    for (int i = 0; i < n; i++) { /* SplitMix64: Steele, Lea & Flood, OOPSLA 2014 */
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        probe[i] = (0.5 + (double)(z >> 11) / 9007199254740992.0) * (z & 1 ? 1 : -1);
    }
}

#define RUN(s, call) (PyArray_TYPE(a) == NPY_DOUBLE ? d##call : z##call)

static PyObject *
det(PyObject *self, PyObject *args)
{
    PyArrayObject *a, *out;
    Stack s;
    int status;
    if (!PyArg_ParseTuple(args, "O!O!", &PyArray_Type, &a, &PyArray_Type, &out) || described(a, &s) < 0 ||
        !fits(out, PyArray_TYPE(a), s.count))
        return NULL;
    void *memory = room(&s, (npy_intp)s.m * s.n);
    if (memory == NULL)
        return NULL;
    char *to = PyArray_BYTES(out);
    Py_BEGIN_ALLOW_THREADS
    status = RUN(s, det(&s, to));
    Py_END_ALLOW_THREADS
    free(memory);
    return PyLong_FromLong(status);
}

static PyObject *
solve(PyObject *self, PyObject *args)
{
    PyArrayObject *a, *b, *out, *doubtful;
    Stack s, right;
    int status;
    if (!PyArg_ParseTuple(args, "O!O!O!O!", &PyArray_Type, &a, &PyArray_Type, &b, &PyArray_Type, &out, &PyArray_Type,
                          &doubtful) ||
        described(a, &s) < 0 || described(b, &right) < 0 || !fits(doubtful, NPY_BOOL, s.count) ||
        !fits(out, PyArray_TYPE(a), s.count * s.n * right.n))
        return NULL;
    if (s.m != s.n || right.m != s.n || right.count != s.count || PyArray_TYPE(b) != PyArray_TYPE(a))
        return PyErr_Format(PyExc_ValueError, "the right-hand sides do not match the matrices");
    npy_intp n = s.n, k = right.n;
    void *memory = room(&s, n * n + n * k + n * (k + 1) + n);
    if (memory == NULL)
        return NULL;
    double *probe = (double *)((Complex *)memory + n * n + n * k + n * (k + 1));
    make_probe(probe, (PyArray_TYPE(a) == NPY_DOUBLE ? 1 : 2) * s.n);
    s.probe = probe;
    char *to = PyArray_BYTES(out);
    npy_bool *marks = (npy_bool *)PyArray_DATA(doubtful);
    Py_BEGIN_ALLOW_THREADS
    status = RUN(s, solve(&s, &right, to, marks));
    Py_END_ALLOW_THREADS
    free(memory);
    return PyLong_FromLong(status);
}

static PyObject *
filled(PyObject *args, int (*of_real)(const Stack *, char *, npy_bool *), int (*of_complex)(const Stack *, char *, npy_bool *))
{
    PyArrayObject *a, *out, *doubtful;
    Stack s;
    int status;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyArray_Type, &a, &PyArray_Type, &out, &PyArray_Type, &doubtful) ||
        described(a, &s) < 0 || !fits(out, PyArray_TYPE(a), PyArray_SIZE(a)) || !fits(doubtful, NPY_BOOL, s.count))
        return NULL;
    if (s.m != s.n)
        return PyErr_Format(PyExc_ValueError, "the matrices are not square");
    npy_intp n = s.n;
    void *memory = room(&s, 5 * n * n + BLOCK * n);
    if (memory == NULL)
        return NULL;
    char *to = PyArray_BYTES(out);
    npy_bool *marks = (npy_bool *)PyArray_DATA(doubtful);
    Py_BEGIN_ALLOW_THREADS
    status = (PyArray_TYPE(a) == NPY_DOUBLE ? of_real : of_complex)(&s, to, marks);
    Py_END_ALLOW_THREADS
    free(memory);
    return PyLong_FromLong(status);
}

static PyObject *
inv(PyObject *self, PyObject *args)
{
    return filled(args, dinv, zinv);
}

static PyObject *
expm(PyObject *self, PyObject *args)
{
    return filled(args, dexpm, zexpm);
}

static PyObject *
cholesky(PyObject *self, PyObject *args)
{
    PyArrayObject *a, *out;
    Stack s;
    int lower, status;
    if (!PyArg_ParseTuple(args, "O!O!p", &PyArray_Type, &a, &PyArray_Type, &out, &lower) || described(a, &s) < 0 ||
        !fits(out, PyArray_TYPE(a), PyArray_SIZE(a)))
        return NULL;
    if (s.m != s.n)
        return PyErr_Format(PyExc_ValueError, "the matrices are not square");
    void *memory = room(&s, 2 * (npy_intp)s.n * s.n);
    if (memory == NULL)
        return NULL;
    char *to = PyArray_BYTES(out);
    Py_BEGIN_ALLOW_THREADS
    status = RUN(s, cholesky(&s, to, lower));
    Py_END_ALLOW_THREADS
    free(memory);
    return PyLong_FromLong(status);
}

static PyObject *
lu(PyObject *self, PyObject *args)
{
    PyArrayObject *a, *l, *u;
    PyObject *p;
    Stack s;
    int status;
    if (!PyArg_ParseTuple(args, "O!OO!O!", &PyArray_Type, &a, &p, &PyArray_Type, &l, &PyArray_Type, &u) ||
        described(a, &s) < 0)
        return NULL;
    npy_intp k = s.m < s.n ? s.m : s.n;
    if (!fits(l, PyArray_TYPE(a), s.count * s.m * k) || !fits(u, PyArray_TYPE(a), s.count * k * s.n))
        return NULL;
    char *rows = NULL;
    int matrices = 0;
    if (p != Py_None) {
        if (!PyArray_Check(p))
            return PyErr_Format(PyExc_TypeError, "the permutations are neither an array nor None");
        matrices = PyArray_TYPE((PyArrayObject *)p) == NPY_DOUBLE;
        if (!fits((PyArrayObject *)p, matrices ? NPY_DOUBLE : NPY_INT32, s.count * s.m * (matrices ? s.m : 1)))
            return NULL;
        rows = PyArray_BYTES((PyArrayObject *)p);
    }
    void *memory = room(&s, 2 * (npy_intp)s.m * s.n);
    if (memory == NULL)
        return NULL;
    char *lower = PyArray_BYTES(l), *upper = PyArray_BYTES(u);
    Py_BEGIN_ALLOW_THREADS
    status = RUN(s, lu(&s, rows, matrices, lower, upper));
    Py_END_ALLOW_THREADS
    free(memory);
    return PyLong_FromLong(status);
}

#include "_stacks_eig.h"
#include "_integers.h"

/* The scalar product of two vectors, in 16 partial sums that a processor adds in parallel. */
#define DOT(name, type)                                                                          \
    VERSIONS static void name(const type *a, const type *b, npy_intp k, const int32_t *rows,     \
                              const int32_t *columns, npy_intp count, type *out)                 \
    {                                                                                            \
        for (npy_intp i = 0; i < count; i++) {                                                   \
            const type *x = a + rows[i] * k, *y = b + columns[i] * k;                            \
            type sums[16] = {0}, rest = 0;                                                       \
            npy_intp l = 0;                                                                      \
            for (; l + 16 <= k; l += 16)                                                         \
                for (int j = 0; j < 16; j++)                                                     \
                    sums[j] += x[l + j] * y[l + j];                                              \
            for (; l < k; l++)                                                                   \
                rest += x[l] * y[l];                                                             \
            for (int width = 8; width > 0; width /= 2)                                           \
                for (int j = 0; j < width; j++)                                                  \
                    sums[j] += sums[j + width];                                                  \
            out[i] = sums[0] + rest;                                                             \
        }                                                                                        \
    }
DOT(ddots, double)
DOT(sdots, float)

/* Products of rows[i] of a (m, k) with columns[i] of b (n, k), which is the second factor's transpose. */
static PyObject *
dots(PyObject *self, PyObject *args)
{
    PyArrayObject *a, *b, *rows, *columns, *out;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!", &PyArray_Type, &a, &PyArray_Type, &b, &PyArray_Type, &rows, &PyArray_Type,
                          &columns, &PyArray_Type, &out))
        return NULL;
    int type = PyArray_TYPE(a);
    npy_intp count = PyArray_SIZE(rows);
    if ((type != NPY_DOUBLE && type != NPY_FLOAT) || PyArray_TYPE(b) != type || PyArray_NDIM(a) != 2 ||
        PyArray_NDIM(b) != 2 || PyArray_DIM(a, 1) != PyArray_DIM(b, 1) || !PyArray_ISCARRAY_RO(a) ||
        !PyArray_ISCARRAY_RO(b) || !fits(rows, NPY_INT32, count) || !fits(columns, NPY_INT32, count) ||
        !fits(out, type, count)) {
        PyErr_SetString(PyExc_ValueError, "the operands do not have the dtypes, orders or sizes that are multiplied");
        return NULL;
    }
    const int32_t *r = PyArray_DATA(rows), *c = PyArray_DATA(columns);
    for (npy_intp i = 0; i < count; i++)
        if (r[i] < 0 || r[i] >= PyArray_DIM(a, 0) || c[i] < 0 || c[i] >= PyArray_DIM(b, 0))
            return PyErr_Format(PyExc_IndexError, "position %zd is outside of the product", (Py_ssize_t)i);
    const void *x = PyArray_DATA(a), *y = PyArray_DATA(b);
    void *to = PyArray_DATA(out);
    npy_intp k = PyArray_DIM(a, 1);
    Py_BEGIN_ALLOW_THREADS
    if (type == NPY_DOUBLE)
        ddots(x, y, k, r, c, count, to);
    else
        sdots(x, y, k, r, c, count, to);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"multiply", multiply, METH_VARARGS, "multiply(a, b, out)"},
    {"dots", dots, METH_VARARGS, "dots(a, b, rows, columns, out)"},
    {"use", use, METH_O, "Take LAPACK's functions from the capsules of scipy.linalg.cython_lapack."},
    {"det", det, METH_VARARGS, "det(a, out)"},
    {"solve", solve, METH_VARARGS, "solve(a, b, out, doubtful)"},
    {"inv", inv, METH_VARARGS, "inv(a, out, doubtful)"},
    {"expm", expm, METH_VARARGS, "expm(a, out, doubtful)"},
    {"cholesky", cholesky, METH_VARARGS, "cholesky(a, out, lower)"},
    {"lu", lu, METH_VARARGS, "lu(a, p, l, u)"},
    {"eig", eig, METH_VARARGS, "eig(a, w, left, right)"},
    {"paired", paired, METH_VARARGS, "paired(v, w, out)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_stacks", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC
PyInit__stacks(void)
{
    import_array();
    INVERSE_FACTORIALS[0] = 1;
    for (int i = 1; i <= DEGREE; i++)
        INVERSE_FACTORIALS[i] = INVERSE_FACTORIALS[i - 1] / i;
    return PyModule_Create(&module);
}
