/* The entry of a ufunc: it gives `a @ b` and `np.matmul(a, b)` a hook without replacing the object np.matmul.

   Both call the same ufunc object through its vectorcall pointer, a public field of PyUFuncObject. A patch replaces
   this pointer and not the object, so identity, attributes and pickles stay the same (trnpy/_patch/hook.py). */

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>

static struct {
    PyUFuncObject *ufunc;
    vectorcallfunc original;
    PyObject *gate; /* NULL while no patch needs the entry */
} entry;

static PyObject *
entered(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (entry.gate == NULL) {
        return entry.original(self, args, nargsf, kwnames);
    }
    PyObject *gate = Py_NewRef(entry.gate); /* another thread may remove it meanwhile */
    PyObject *result = PyObject_Vectorcall(gate, args, nargsf, kwnames);
    Py_DECREF(gate);
    return result;
}

static PyObject *
original(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return entry.original(self, args, (size_t)nargs, kwnames);
}

static PyMethodDef original_method = {
    "matmul", (PyCFunction)(void (*)(void))original, METH_FASTCALL | METH_KEYWORDS, "The ufunc without a gate."};

PyDoc_STRVAR(behind_doc,
             "behind(ufunc)\n--\n\nA function that calls ``ufunc`` past its gate; only one ufunc has an entry.");

static PyObject *
behind(PyObject *Py_UNUSED(module), PyObject *ufunc)
{
    if (!PyObject_TypeCheck(ufunc, &PyUFunc_Type) || (entry.ufunc != NULL && (PyObject *)entry.ufunc != ufunc)) {
        return PyErr_Format(PyExc_TypeError, "behind(%R): expected the ufunc with the entry", ufunc);
    }
    if (entry.ufunc == NULL) {
        entry.ufunc = (PyUFuncObject *)Py_NewRef(ufunc);
        entry.original = entry.ufunc->vectorcall;
    }
    return PyCFunction_New(&original_method, ufunc);
}

PyDoc_STRVAR(enter_doc, "enter(function)\n--\n\nLet calls of the ufunc given to `behind` run ``function``; None: "
                        "the ufunc itself.");

static PyObject *
enter(PyObject *Py_UNUSED(module), PyObject *gate)
{
    if (entry.ufunc == NULL || !(gate == Py_None || PyCallable_Check(gate))) {
        return PyErr_Format(PyExc_TypeError, "enter(%R): expected a function, after behind()", gate);
    }
    PyObject *before = entry.gate;
    entry.gate = gate == Py_None ? NULL : Py_NewRef(gate);
    /* If other code has replaced the pointer, leave it: that code calls the pointer that it found. */
    if (gate != Py_None && entry.ufunc->vectorcall == entry.original) {
        entry.ufunc->vectorcall = entered;
    }
    else if (gate == Py_None && entry.ufunc->vectorcall == entered) {
        entry.ufunc->vectorcall = entry.original;
    }
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(is_entered_doc, "is_entered()\n--\n\nWhether calls of the ufunc go to a function first.");

static PyObject *
is_entered(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing))
{
    return PyBool_FromLong(entry.gate != NULL || (entry.ufunc != NULL && entry.ufunc->vectorcall == entered));
}

static PyMethodDef functions[] = {
    {"is_entered", is_entered, METH_NOARGS, is_entered_doc},
    {"behind", behind, METH_O, behind_doc},
    {"enter", enter, METH_O, enter_doc},
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *Py_UNUSED(module))
{
    return PyArray_ImportNumPyAPI() < 0 || _import_umath() < 0 ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_entry", "The compiled part of patches.", 0, functions, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__entry(void)
{
    return PyModuleDef_Init(&definition);
}
