/* Eigenvalues and eigenvectors of general matrices by LAPACK's geev, included by _stacks.c.

   Vectors are filled as LAPACK stores them, in Fortran order like SciPy's. Those of real matrices are real: if
   eigenvalue j has a positive imaginary part, vectors j and j + 1 are the real and the imaginary part of its vector.
   ``paired`` makes them complex. */

typedef struct {
    Complex *values;
    char *left, *right; /* NULL if not wanted */
} Eigen;

/* ``s`` is the stack of the transposes, so that ``load`` copies matrices in Fortran order. */
static int
deig(const Stack *s, const Eigen *to, int space)
{
    int n = s->n, info = 0;
    npy_intp all = (npy_intp)n * n;
    double *a = s->space, *re = a + all, *im = re + n, *work = im + n, *left = re, *right = re;
    const char *l = to->left == NULL ? "N" : "V", *r = to->right == NULL ? "N" : "V";
    for (npy_intp i = 0; i < s->count; i++) {
        if (!dload(s, i, a))
            return NOT_FINITE;
        if (to->left != NULL)
            left = (double *)to->left + i * all;
        if (to->right != NULL)
            right = (double *)to->right + i * all;
        dgeev(l, r, &n, a, &n, re, im, left, &n, right, &n, work, &space, &info);
        if (info != 0)
            return NOT_CONVERGED;
        Complex *w = to->values + i * n;
        for (int j = 0; j < n; j++) /* SciPy adds wr + 1j * wi as complex numbers, which decides the signs of zeros */
            w[j].re = re[j] + (0 * im[j] - 0.0), w[j].im = 0.0 + im[j];
        if (!all_finite((double *)w, 2 * n))
            return NOT_FINITE;
    }
    return 0;
}

static int
zeig(const Stack *s, const Eigen *to, int space)
{
    int n = s->n, info = 0;
    npy_intp all = (npy_intp)n * n;
    Complex *a = s->space, *work = a + all, *left = work, *right = work;
    double *reals = (double *)(work + space);
    const char *l = to->left == NULL ? "N" : "V", *r = to->right == NULL ? "N" : "V";
    for (npy_intp i = 0; i < s->count; i++) {
        if (!zload(s, i, a))
            return NOT_FINITE;
        Complex *w = to->values + i * n;
        if (to->left != NULL)
            left = (Complex *)to->left + i * all;
        if (to->right != NULL)
            right = (Complex *)to->right + i * all;
        zgeev(l, r, &n, a, &n, w, left, &n, right, &n, work, &space, reals, &info);
        if (info != 0)
            return NOT_CONVERGED;
        if (!all_finite((double *)w, 2 * n))
            return NOT_FINITE;
    }
    return 0;
}

/* LAPACK's best workspace, in numbers; SciPy asks for the same, and blocks of other sizes round differently. */
static int
workspace(int type, int n, const Eigen *to)
{
    const char *l = to->left == NULL ? "N" : "V", *r = to->right == NULL ? "N" : "V";
    Complex found[2] = {{1, 0}, {1, 0}}, unused[1];
    double *x = (double *)unused;
    int info = 0, ask = -1;
    if (type == NPY_DOUBLE)
        dgeev(l, r, &n, x, &n, x, x, x, &n, x, &n, (double *)found, &ask, &info);
    else
        zgeev(l, r, &n, unused, &n, unused, unused, &n, unused, &n, found, &ask, x, &info);
    return (int)found[0].re;
}

static int
wanted(PyObject *given, int type, npy_intp elements, char **to)
{
    *to = NULL;
    if (given == Py_None)
        return 1;
    if (!PyArray_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "the eigenvectors are neither an array nor None");
        return 0;
    }
    *to = PyArray_BYTES((PyArrayObject *)given);
    return fits((PyArrayObject *)given, type, elements);
}

static PyObject *
eig(PyObject *self, PyObject *args)
{
    PyArrayObject *a, *w;
    PyObject *vl, *vr;
    Stack s;
    Eigen to;
    int status;
    if (!PyArg_ParseTuple(args, "O!O!OO", &PyArray_Type, &a, &PyArray_Type, &w, &vl, &vr) || described(a, &s) < 0)
        return NULL;
    if (s.m != s.n)
        return PyErr_Format(PyExc_ValueError, "the matrices are not square");
    int type = PyArray_TYPE(a);
    npy_intp n = s.n, swapped = s.row;
    if (!fits(w, NPY_CDOUBLE, s.count * n) || !wanted(vl, type, PyArray_SIZE(a), &to.left) ||
        !wanted(vr, type, PyArray_SIZE(a), &to.right))
        return NULL;
    to.values = PyArray_DATA(w);
    s.row = s.column, s.column = swapped;
    int space = workspace(type, s.n, &to);
    void *memory = room(&s, n * n + 3 * n + space);
    if (memory == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = RUN(s, eig(&s, &to, space));
    Py_END_ALLOW_THREADS
    free(memory);
    return PyLong_FromLong(status);
}

/* The complex vectors ``out`` of real matrices, from the v and w that ``eig`` has filled. */
static PyObject *
paired(PyObject *self, PyObject *args)
{
    PyArrayObject *v, *w, *out;
    Stack s;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyArray_Type, &v, &PyArray_Type, &w, &PyArray_Type, &out) ||
        described(v, &s) < 0 || !fits(v, NPY_DOUBLE, s.count * s.n * s.n) || !fits(w, NPY_CDOUBLE, s.count * s.n) ||
        !fits(out, NPY_CDOUBLE, PyArray_SIZE(v)))
        return NULL;
    const double *from = PyArray_DATA(v);
    const Complex *values = PyArray_DATA(w);
    Complex *to = PyArray_DATA(out);
    npy_intp n = s.n;
    Py_BEGIN_ALLOW_THREADS
    for (npy_intp j = 0; j < s.count * n; j++, from += n, to += n) {
        int first = (j + 1) % n != 0 && (values[j].im > 0 || values[j + 1].im < 0);
        for (npy_intp r = 0; r < n; r++)
            to[r].re = from[r], to[r].im = first ? from[n + r] : 0;
        if (first) {
            for (npy_intp r = 0; r < n; r++)
                to[n + r].re = from[r], to[n + r].im = -from[n + r];
            j++, from += n, to += n;
        }
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
