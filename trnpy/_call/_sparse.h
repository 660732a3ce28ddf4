/* What the gate knows of SciPy's sparse matrices: their classes, the modules of their operators, stored elements. */

/* SciPy's classes of CSR and CSC matrices, and the global variables of its modules with their operators: tuples, or
   NULL before a patch covers SciPy's sparse matrices. */
static PyObject *compressed, *operators;

static int
is_in(PyObject *tuple, PyObject *object)
{
    for (Py_ssize_t i = 0; tuple != NULL && i < PyTuple_GET_SIZE(tuple); i++) {
        if (PyTuple_GET_ITEM(tuple, i) == object) {
            return 1;
        }
    }
    return 0;
}

static PyObject *data_name, *indptr_name; /* interned strings */

static int
intern_names(void)
{
    data_name = PyUnicode_InternFromString("data");
    indptr_name = PyUnicode_InternFromString("indptr");
    return data_name == NULL || indptr_name == NULL ? -1 : 0;
}

/* The size of an array that is an attribute; -1 if there is none. */
static double
size_of(PyObject *a, PyObject *name)
{
    PyObject *array = PyObject_GetAttr(a, name);
    double size = array != NULL && PyArray_Check(array) ? (double)PyArray_SIZE((PyArrayObject *)array) : -1;
    if (array == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(array);
    return size;
}

/* The number of stored elements of a CSR or CSC matrix of SciPy; -1 for any other object. */
static double
stored_in(PyObject *a)
{
    return is_in(compressed, (PyObject *)Py_TYPE(a)) ? size_of(a, data_name) : -1;
}

/* The multiply-adds of a product of a CSR or CSC matrix with a dense one or with one of its own class; -1 for others. */
static double
multiply_adds(PyObject *a, PyObject *other)
{
    double stored = stored_in(a);
    if (stored < 0 || PyArray_CheckExact(other)) {
        PyArrayObject *dense = (PyArrayObject *)other;
        return stored < 0 ? -1 : stored * (PyArray_NDIM(dense) == 2 ? (double)PyArray_DIM(dense, 1) : 1);
    }
    double lines = Py_TYPE(a) == Py_TYPE(other) ? size_of(other, indptr_name) - 1 : 0;
    /* Each element meets those of a row of the other matrix; for CSC, exchange rows and columns. */
    return lines > 0 ? stored * stored_in(other) / lines : -1;
}

PyDoc_STRVAR(sparse_doc, "sparse(classes, variables)\n--\n\n"
                         "Set SciPy's classes of CSR and CSC matrices, and the global variables of its modules with their\n"
                         "operators: tuples.");

static PyObject *
sparse(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *classes, *variables;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &classes, &PyTuple_Type, &variables)) {
        return NULL;
    }
    Py_XSETREF(compressed, Py_NewRef(classes));
    Py_XSETREF(operators, Py_NewRef(variables));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"sparse", sparse, METH_VARARGS, sparse_doc},
    {NULL, NULL, 0, NULL},
};
