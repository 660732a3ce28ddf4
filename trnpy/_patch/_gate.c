/* The compiled part of a hook, which lets small calls pass without Python code.

   Its function (trnpy/_patch/hook._call) decides every call. Where that function has found that calls from one place of
   the program are small and only counted, it lets the next ones from there pass: they go straight to NumPy's function,
   and each takes one from the iterator that counts them. A call whose operands are larger, or of another type, or for
   which a setting is no longer the object that it was, goes to the function. docs/baselines.md#what-the-runner-adds has
   what each step takes. */

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

#define FRAMES (PY_VERSION_HEX < 0x030E0000) /* the versions of Python whose frames were tried */
#if FRAMES
#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#endif

enum { SETTINGS = 4 };    /* attributes on which the decision about a small call rests */
enum { PLACES_LOG2 = 8 }; /* of the entries for places */
enum { NEXT = 4 };        /* a place has one of so many neighbouring entries */
enum { OPERANDS = 5 };    /* calls with as many positional arguments are not taken for small ones */

typedef struct {
    PyObject *code, *count, *context;
    PyObject *settings[SETTINGS];
    int instruction;
    long left;
    double elements, product;
} Place;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *decides, *direct, *context;
    PyTypeObject *owners[SETTINGS];
    PyObject *names[SETTINGS];
    Place *places, *end;
} Gated;

/* The code that calls, as a borrowed reference, and at which instruction; NULL if it is not Python's.

   PyEval_GetFrame() makes an object of the frame, which takes longer than all other steps together. */
static PyObject *
caller(int *instruction)
{
#if FRAMES
    PyThreadState *thread = PyThreadState_Get();
#if PY_VERSION_HEX < 0x030D0000
    struct _PyInterpreterFrame *frame = thread->cframe->current_frame;
    PyObject *code = frame == NULL ? NULL : (PyObject *)frame->f_code;
#else
    struct _PyInterpreterFrame *frame = thread->current_frame;
    PyObject *code = frame == NULL ? NULL : frame->f_executable;
#endif
    *instruction = code == NULL ? -1 : _PyInterpreterFrame_LASTI(frame) * (int)sizeof(_Py_CODEUNIT);
    return code;
#else
    PyFrameObject *frame = PyEval_GetFrame();
    if (frame == NULL) {
        return NULL;
    }
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    *instruction = PyFrame_GetLasti(frame);
    Py_DECREF(code); /* which the frame holds */
    return code;
#endif
}

/* The first entry that a place may have. */
static Place *
first_of(Gated *self, PyObject *code, int instruction)
{
    uint64_t key = (uint64_t)(uintptr_t)code + (uint64_t)instruction;
    return self->places + (key * UINT64_C(0x9E3779B97F4A7C15) >> (64 - PLACES_LOG2)); /* 2^64 over the golden ratio */
}

/* The entry of a place; NULL if it has none. */
static Place *
entry_of(Gated *self, PyObject *code, int instruction)
{
    Place *first = first_of(self, code, instruction);
    for (Place *place = first; place < first + NEXT; place++) {
        if (place->code == code && place->instruction == instruction) {
            return place;
        }
    }
    return NULL;
}

/* The entry that a place without one gets: where no more calls are to pass, else the first. */
static Place *
entry_for(Gated *self, PyObject *code, int instruction)
{
    Place *first = first_of(self, code, instruction);
    for (Place *place = first; place < first + NEXT; place++) {
        if (place->left <= 0) {
            return place;
        }
    }
    return first;
}

/* Drop what an entry held, after the entry has new contents: this may run any code. */
static void
drop(Place *before)
{
    Py_XDECREF(before->code);
    Py_XDECREF(before->count);
    Py_XDECREF(before->context);
    for (int i = 0; i < SETTINGS; i++) {
        Py_XDECREF(before->settings[i]);
    }
}

/* Whether the arguments are arrays within the limits of `place`, and options. */
static int
is_small(Place *place, PyObject *const *args, Py_ssize_t n)
{
    double elements = 0, product = 1;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (PyArray_CheckExact(args[i])) {
            double size = (double)PyArray_SIZE((PyArrayObject *)args[i]);
            elements += size;
            product *= size > 1 ? size : 1;
        }
        else if (args[i] != Py_None && !PyLong_Check(args[i]) && !PyFloat_Check(args[i]) && !PyUnicode_Check(args[i])) {
            return 0;
        }
    }
    return elements <= place->elements && product <= place->product;
}

/* Whether the settings are those under which calls from `place` may pass; -1 with an exception. */
static int
is_unchanged(Gated *self, Place *place)
{
    PyObject *now;
    if (PyContextVar_Get(self->context, Py_None, &now) < 0) {
        return -1;
    }
    Py_DECREF(now);
    int same = now == place->context;
    for (int i = 0; same && i < SETTINGS; i++) {
        same = _PyType_Lookup(self->owners[i], self->names[i]) == place->settings[i];
    }
    return same;
}

/* Whether a call passes; -1 with an exception. */
static int
passes(Gated *self, PyObject *const *args, Py_ssize_t positional, Py_ssize_t n)
{
    int instruction;
    PyObject *code = self->places == NULL || positional >= OPERANDS ? NULL : caller(&instruction);
    Place *place = code == NULL ? NULL : entry_of(self, code, instruction);
    if (place == NULL || place->left <= 0 || !is_small(place, args, n)) {
        return 0;
    }
    int may = is_unchanged(self, place);
    if (may == 1) {
        place->left--;
        PyObject *count = Py_NewRef(place->count); /* which may be any iterator, and call this very hook */
        PyObject *counted = PyIter_Next(count);
        Py_DECREF(count);
        if (counted == NULL) {
            return PyErr_Occurred() ? -1 : 0;
        }
        Py_DECREF(counted);
    }
    return may;
}

static PyObject *
gated_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t positional = PyVectorcall_NARGS(nargsf);
    Py_ssize_t n = positional + (kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames));
    int may = passes((Gated *)self, args, positional, n);
    if (may < 0) {
        return NULL;
    }
    return PyObject_Vectorcall(may ? ((Gated *)self)->direct : ((Gated *)self)->decides, args, nargsf, kwnames);
}

PyDoc_STRVAR(
    let_pass_doc,
    "_let_pass(frame, context, settings, count, left, elements, product)\n--\n\n"
    "Let the next small calls from the instruction at which ``frame`` is pass, at most ``left`` of them.\n\n"
    "They pass while the context variable has the value ``context`` and the attributes are the objects ``settings``.\n"
    "Small are arrays whose sizes add up to at most ``elements`` and, where none counts as less than one, multiply to\n"
    "at most ``product``. Each call takes one from ``count``.");

static PyObject *
gated_let_pass(Gated *self, PyObject *args)
{
    PyObject *frame, *context, *settings, *count;
    long left;
    double elements, product;
    if (!PyArg_ParseTuple(args, "O!OO!Oldd", &PyFrame_Type, &frame, &context, &PyTuple_Type, &settings, &count, &left,
                          &elements, &product)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(settings) != SETTINGS || !PyIter_Check(count)) {
        return PyErr_Format(PyExc_TypeError, "_let_pass() takes %d settings and an iterator", SETTINGS);
    }
    if (self->places == NULL) {
        size_t entries = ((size_t)1 << PLACES_LOG2) + NEXT - 1;
        self->places = PyMem_Calloc(entries, sizeof(Place));
        if (self->places == NULL) {
            return PyErr_NoMemory();
        }
        self->end = self->places + entries;
    }
    PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
    int instruction = PyFrame_GetLasti((PyFrameObject *)frame);
    Place *place = entry_of(self, code, instruction);
    place = place != NULL ? place : entry_for(self, code, instruction);
    Place before = *place;
    *place = (Place){code, Py_NewRef(count), Py_NewRef(context), {NULL}, instruction, left, elements, product};
    for (int i = 0; i < SETTINGS; i++) {
        place->settings[i] = Py_NewRef(PyTuple_GET_ITEM(settings, i));
    }
    drop(&before);
    Py_RETURN_NONE;
}

static PyObject *
gated_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *decides, *direct, *context, *settings;
    if (!PyArg_ParseTuple(args, "OOOO!", &decides, &direct, &context, &PyTuple_Type, &settings)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(settings) != SETTINGS) {
        return PyErr_Format(PyExc_TypeError, "Gated() takes %d settings", SETTINGS);
    }
    Gated *self = (Gated *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    if (type->tp_call == PyVectorcall_Call) {
        type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL; /* which classes inherit from Python 3.12 on only */
    }
    self->vectorcall = gated_vectorcall;
    self->decides = Py_NewRef(decides);
    self->direct = Py_NewRef(direct);
    self->context = Py_NewRef(context);
    for (int i = 0; i < SETTINGS; i++) {
        PyTypeObject *owner;
        PyObject *name;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(settings, i), "O!U", &PyType_Type, &owner, &name)) {
            Py_DECREF(self);
            return NULL;
        }
        self->owners[i] = (PyTypeObject *)Py_NewRef(owner);
        self->names[i] = Py_NewRef(name);
    }
    return (PyObject *)self;
}

static int
gated_traverse(Gated *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->decides);
    Py_VISIT(self->direct);
    Py_VISIT(self->context);
    for (int i = 0; i < SETTINGS; i++) {
        Py_VISIT(self->owners[i]);
    }
    for (Place *place = self->places; place < self->end; place++) {
        Py_VISIT(place->code);
        Py_VISIT(place->count);
        Py_VISIT(place->context);
        for (int i = 0; i < SETTINGS; i++) {
            Py_VISIT(place->settings[i]);
        }
    }
    return 0;
}

/* The functions stay, as a finalizer may still call: a cycle through them is broken where they hold the gate. */
static int
gated_clear(Gated *self)
{
    for (Place *place = self->places; place < self->end; place++) {
        Place before = *place;
        *place = (Place){NULL};
        drop(&before);
    }
    return 0;
}

static void
gated_dealloc(Gated *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    gated_clear(self);
    PyMem_Free(self->places);
    Py_CLEAR(self->decides);
    Py_CLEAR(self->direct);
    Py_CLEAR(self->context);
    for (int i = 0; i < SETTINGS; i++) {
        Py_CLEAR(self->owners[i]);
        Py_CLEAR(self->names[i]);
    }
    type->tp_free(self);
    Py_DECREF(type);
}

/* --- The entry of a ufunc --------------------------------------------------------------------------------------------

   ``a @ b`` and ``np.matmul(a, b)`` both call the one ufunc object, through its vectorcall pointer, a public field of
   PyUFuncObject. A gate replaces that pointer and not the object, so identity, attributes and pickles stay. */

static struct {
    PyUFuncObject *ufunc;
    vectorcallfunc original;
    PyObject *gate; /* NULL while no patch needs the entry */
} entry;

static PyObject *
entered(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    int instruction;
    if (entry.gate == NULL || caller(&instruction) == NULL) { /* code in C of a thread without Python frames */
        return entry.original(self, args, nargsf, kwnames);
    }
    PyObject *gate = Py_NewRef(entry.gate); /* another thread may take it out meanwhile */
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

PyDoc_STRVAR(enter_doc, "enter(function)\n--\n\nHave ``function`` answer calls of the ufunc that `behind` got; None: "
                        "the ufunc itself.");

static PyObject *
enter(PyObject *Py_UNUSED(module), PyObject *gate)
{
    if (entry.ufunc == NULL || !(gate == Py_None || PyCallable_Check(gate))) {
        return PyErr_Format(PyExc_TypeError, "enter(%R): expected a function, after behind()", gate);
    }
    PyObject *before = entry.gate;
    entry.gate = gate == Py_None ? NULL : Py_NewRef(gate);
    /* Neither, if other code has put its own in place, which calls what it found there. */
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

static PyMethodDef methods[] = {
    {"_let_pass", (PyCFunction)gated_let_pass, METH_VARARGS, let_pass_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Gated, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Gated(decides, direct, context, settings)\n--\n\nA function whose small calls pass before it decides."},
    {Py_tp_new, gated_new},
    {Py_tp_dealloc, gated_dealloc},
    {Py_tp_traverse, gated_traverse},
    {Py_tp_clear, gated_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec spec = {
    "trnpy._patch._gate.Gated", sizeof(Gated), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots,
};

static int
execute(PyObject *module)
{
    if (PyArray_ImportNumPyAPI() < 0 || _import_umath() < 0) {
        return -1;
    }
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int added = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return added;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_gate", "The compiled part of hooks.", 0, functions, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__gate(void)
{
    return PyModuleDef_Init(&definition);
}
